"""Tables in Parquet: one file for each while they are measured, packed into one file when they are done.

A file is written whole or not at all, and never changed: a run that was cut goes on with the tables that are missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.world.rows import STEPS, Table, from_dict, to_dict

FOLDER = "tables"


def schema() -> Any:
    """Of the Parquet file: a row for each table, with a list of its candidates."""
    import pyarrow as pa

    text, texts = pa.string(), pa.list_(pa.string())
    samples = pa.list_(pa.float32())
    row = [
        ("candidate", text), ("schedules", texts), ("rank", pa.int32()), ("proposed", pa.bool_()),
        ("status", text), ("reason", text), ("answer", text), ("error_ratio", pa.float64()),
        ("facts", text), ("kernels", pa.int32()), ("registers", pa.int32()),
        ("spill_bytes", pa.int32()), ("shared_bytes", pa.int32()), ("occupancy", pa.float32()),
        ("compile_s", pa.float32()), ("check_s", pa.float32()), ("time_s", pa.float32()),
        ("seconds", samples), ("baseline", samples), ("retimed", samples),
        ("retimed_baseline", samples),
    ]  # fmt: skip
    return pa.schema(
        [
            *((name, text) for name in ("id", "task", "target", "arch", "device_name")),
            *((name, text) for name in ("device_facts", "torch", "generator", "flags", "sketch")),
            ("source", text),
            ("families", texts),
            *((name, text) for name in ("family", "structure", "dtype", "split")),
            *((f"{name}_s", pa.float64()) for name in ("eager", "inductor", "overhead", "floor")),
            ("rival", text),
            ("ceilings", text),
            ("operations", pa.int64()),
            ("proposals", texts),
            ("space", pa.int32()),
            ("legal", pa.int32()),
            ("complete", pa.bool_()),
            ("refused", pa.list_(pa.struct([("schedule", text), ("reason", text)]))),
            ("steps", pa.struct([(name, pa.float64()) for name in STEPS])),
            ("rows", pa.list_(pa.struct(row))),
        ]
    )


def write(tables: Sequence[Table], path: Path) -> None:
    """Write tables as one file, whole or not at all. May raise OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = pa.Table.from_pylist([to_dict(table) for table in tables], schema=schema())
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}.new")  # another process may write the same table
    pq.write_table(made, new, compression="zstd", compression_level=12)
    new.replace(path)


def part(out: Path, id: str) -> Path:
    """Where the table of this id lies in a run's folder."""
    return out / FOLDER / f"{id}.parquet"


def read(paths: Iterable[Path]) -> list[Table]:
    """The tables of files, and of runs' folders, in the order of their ids; of equal ids the first that comes.

    Raises OSError where there is no such file, ValueError where it holds no tables.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: dict[str, Table] = {}
    for file in _files(paths):
        try:
            for value in pq.read_table(file).to_pylist():
                found.setdefault(value["id"], from_dict(value))
        except (pa.ArrowInvalid, KeyError, TypeError) as error:
            raise ValueError(f"{file} holds no tables: {error}") from None
    return [found[id] for id in sorted(found)]


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            inner = path / FOLDER if (path / FOLDER).is_dir() else path
            yield from sorted(inner.glob("*.parquet"))
        elif path.is_file():
            yield path
        else:
            raise FileNotFoundError(f"no tables at {path}")
