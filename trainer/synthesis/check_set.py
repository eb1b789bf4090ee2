"""The same filters over a set of others, such as the published CUDA-Agent-Ops-6K, from a local file.

Rows have three columns of text: ``ops`` (a JSON list of names), ``data_source`` and ``code``. Their code runs only in
the probe's confinement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.synthesis.compose.task import Composed, NotComposed
from trainer.synthesis.dataset import parquet
from trainer.synthesis.dataset.journal import OtherRun
from trainer.synthesis.machine import Machine
from trainer.synthesis.run import Settings, run
from trainer.synthesis.tally import Tally

COLUMNS = ("ops", "data_source", "code")


def rows_of(file: Path) -> list[dict[str, Any]] | str:
    """The rows, or why there are none."""
    if not file.is_file():
        return f"there is no file {file}"
    try:
        rows = parquet.read(file)
    except Exception as error:  # pyarrow's own errors, of many kinds
        return f"{file} is no Parquet file: {error}"
    missing = [name for name in COLUMNS if not rows or name not in rows[0]]
    return f"{file} has no column {', '.join(missing)}" if missing else rows


def ops_of(value: Any) -> tuple[str, ...]:
    """Names of operators, from a list or from JSON; () where it is neither."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    return tuple(map(str, value)) if isinstance(value, list) else ()


class RowsComposer:
    """Gives the rows of a set, by number."""

    name = "rows"
    trusted = False
    scales = False

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    def compose(self, seed: int, rung: int) -> Composed | NotComposed:
        """See `Composer.compose`. Foreign tasks are not scaled."""
        if seed >= len(self._rows):
            return NotComposed("there are no more rows")
        row = self._rows[seed]
        ops = ops_of(row["ops"])
        return Composed(
            code=str(row["code"]),
            ops=ops,
            families=tuple(row.get("families") or ops),
            source=str(row["data_source"]),
            dtype=str(row.get("dtype") or "float32"),
            training=bool(row.get("training")),
            pattern=str(row.get("pattern") or "unknown"),
            small=bool(row.get("launch_bound")),
            provenance={"composer": self.name, "seed": seed, "rung": 0},
        )


def check(
    settings: Settings,
    rows: Sequence[Mapping[str, Any]],
    machine: Machine,
    tell: Callable[[Tally], None],
) -> Tally | OtherRun:
    """Look at every row once; the rows that pass are written like a set of ours."""
    return run(settings, RowsComposer(rows), machine, tell, last=len(rows))
