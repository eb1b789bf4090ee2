"""The Parquet file: native types, a page index, row groups small enough for viewers. Its metadata says which candidates
were dropped, and so that it is a set of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROW_GROUP = 500
DROPPED = b"cuda_agent.dropped"
"""The key of the metadata: candidates that are not in the set, by filter, as JSON."""


def schema() -> Any:
    """Of the rows of `rows.row_of`."""
    import pyarrow as pa

    text, texts = pa.string(), pa.list_(pa.string())
    tensor = [("shape", pa.list_(pa.int64())), ("dtype", text)]
    return pa.schema(
        [
            ("id", text),
            ("ops", texts),
            ("data_source", text),
            ("code", text),
            ("families", texts),
            ("pattern", text),
            ("dtype", text),
            ("training", pa.bool_()),
            ("launch_bound", pa.bool_()),
            ("inputs", pa.list_(pa.struct(tensor))),
            ("weights", pa.list_(pa.struct([("name", text), *tensor]))),
            ("bytes", pa.int64()),
            ("eager_ms", pa.float64()),
            ("inductor_ms", pa.float64()),
            ("floor_ms", pa.float64()),
            ("device", text),
            ("device_name", text),
            ("torch", text),
            ("transformers", text),
            ("region_digests", texts),
            ("graph_digests", texts),
            ("left_to_inductor", texts),
            ("split", text),
            ("composer", text),
            ("seed", pa.int64()),
            ("rung", pa.int64()),
        ]
    )


def write(rows: Sequence[Mapping[str, Any]], path: Path, dropped: Mapping[str, int]) -> None:
    """Write the rows, whole or not at all. dropped: candidates, by filter. May raise OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    described = schema().with_metadata({DROPPED: json.dumps(dict(dropped)).encode()})
    table = pa.Table.from_pylist(list(rows), schema=described)
    new = path.with_suffix(".new")
    pq.write_table(
        table,
        new,
        row_group_size=ROW_GROUP,
        compression="zstd",
        write_page_index=True,
    )
    new.replace(path)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, ours or the published one. Raises OSError, or pyarrow's own errors, where it is none."""
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def dropped(path: Path) -> dict[str, int] | None:
    """Candidates that were dropped for a set, by filter; None where the file is no set of ours. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
        found = json.loads(metadata[DROPPED])
    except (KeyError, ValueError, pa.ArrowException):
        return None
    return found if isinstance(found, dict) else None
