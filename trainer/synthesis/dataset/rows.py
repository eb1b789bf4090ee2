"""Rows of the data set, from entries of the journal."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

VALIDATION, TEST = 5, 5
"""Per cent of the groups of tasks."""


def split_of(families: Sequence[str]) -> str:
    """The split of all tasks with the same operator families, so that no task has a neighbour in another split."""
    key = "\n".join(sorted(set(families)))
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % 100
    if number < TEST:
        return "test"
    return "validation" if number < TEST + VALIDATION else "train"


def row_of(entry: Mapping[str, Any], machine: Mapping[str, str]) -> dict[str, Any]:
    """A row of a kept task. machine: ``device``, ``device_name``, ``torch`` and ``transformers``."""
    task, facts = entry["task"], entry["facts"]
    times = {f"{name}_ms": _milliseconds(facts.get(f"{name}_s")) for name in TIMES}
    return {
        "id": task["id"],
        "ops": list(task["ops"]),
        "data_source": task["source"],
        "code": task["code"],
        "families": list(task["families"]),
        "pattern": task["pattern"],
        "dtype": task["dtype"],
        "training": task["training"],
        "launch_bound": task["small"],
        "inputs": facts["inputs"],
        "weights": facts["weights"],
        "bytes": facts["bytes"],
        **times,
        **{name: machine[name] for name in ("device", "device_name", "torch", "transformers")},
        "region_digests": facts["regions"],
        "graph_digests": facts["graphs"],
        "left_to_inductor": facts["left"],
        "split": split_of(task["families"]),
        "composer": task["provenance"]["composer"],
        "seed": task["provenance"]["seed"],
        "rung": task["provenance"]["rung"],
    }


TIMES = ("eager", "inductor", "floor")


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
