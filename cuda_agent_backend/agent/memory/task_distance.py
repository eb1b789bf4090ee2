"""How near two tasks are to each other, in figures that anybody can follow.

The distance is the sum of three parts. structure: 0 where both have the same graph but for sizes, dtypes and layouts;
else from 1 to 2, 1 plus the share of operators (as a multiset) that they do not have in common. size: from 0 towards 1,
by how many doublings the extents of their tensors differ on average. dtype: the share of tensors whose dtypes differ.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from sandbox.task.arguments import Arg, InputRef, NodeRef
from sandbox.task.task import Node, Task

KEPT = frozenset({"dim", "dims", "keepdim", "descending", "correction"})
"""Arguments beside tensors that say what a graph does rather than how large it is."""
DOUBLINGS = 4.0
"""Doublings at which the size part is half of what it can be."""


@dataclass(frozen=True)
class TaskFeatures:
    """A task without what is of no account for the distance. extents: of each tensor the sizes' base-2 logarithms."""

    target: str
    structure: str
    operators: tuple[tuple[str, int], ...]
    extents: tuple[tuple[float, ...], ...]
    dtypes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "target": self.target,
            "structure": self.structure,
            "operators": [list(pair) for pair in self.operators],
            "extents": [list(extent) for extent in self.extents],
            "dtypes": list(self.dtypes),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> TaskFeatures:
        """What `to_json` gave. Raises `KeyError`, `TypeError` or `ValueError` on anything else."""
        operators = tuple((str(name), int(count)) for name, count in value["operators"])
        extents = tuple(tuple(_finite(n) for n in extent) for extent in value["extents"])
        dtypes = tuple(str(name) for name in value["dtypes"])
        if len(dtypes) != len(extents):
            raise ValueError("as many dtypes as tensors are needed")
        return TaskFeatures(
            str(value["target"]), str(value["structure"]), operators, extents, dtypes
        )


def features_of(task: Task) -> TaskFeatures:
    """The task as the distance sees it: tensors in an order of their own, whatever that of the inputs is."""
    tensors = sorted(
        (tuple(math.log2(max(1, n)) for n in spec.shape), spec.dtype, kind)
        for kind, specs in (("input", task.inputs), ("output", task.output_specs))
        for spec in specs
    )
    tensors.sort(key=lambda tensor: (tensor[2], -sum(tensor[0]), tensor))
    return TaskFeatures(
        task.target,
        structure_digest(task),
        tuple(sorted(Counter(node.op for node in task.nodes).items())),
        tuple(extent for extent, _, _ in tensors),
        tuple(dtype for _, dtype, _ in tensors),
    )


def structure_digest(task: Task) -> str:
    """A digest of the graph: operators, what they read, along which dimensions; the same for inputs in any order."""
    seen: dict[int, int] = {}

    def name(arg: Arg) -> Any:
        match arg:
            case InputRef(index):
                return ["i", seen.setdefault(index, len(seen))]
            case NodeRef(node, output):
                return ["n", node, output]
            case tuple():
                return [name(item) for item in arg]
        return None

    nodes = [[node.op, [[key, _kept(key, node) or name(node.args[key])] for key in sorted(node.args)]]
             for node in task.nodes]  # fmt: skip
    text = json.dumps([nodes, [name(output) for output in task.outputs]])
    return hashlib.sha256(text.encode()).hexdigest()


def _kept(key: str, node: Node) -> str:
    return repr(node.args[key]) if key in KEPT else ""


def distance(one: TaskFeatures, other: TaskFeatures) -> float:
    """See the module: 0 for equal tasks, symmetric, infinite between targets."""
    if one.target != other.target:
        return math.inf
    return (
        _structure(one, other)
        + _size(one.extents, other.extents)
        + _share(one.dtypes, other.dtypes)
    )


def unlike(one: TaskFeatures, other: TaskFeatures) -> float:
    """The share of operators (as a multiset) that two tasks do not have in common."""
    mine, yours = Counter(dict(one.operators)), Counter(dict(other.operators))
    union = (mine | yours).total()
    return 1.0 - (mine & yours).total() / union if union else 0.0


def _structure(one: TaskFeatures, other: TaskFeatures) -> float:
    return 0.0 if one.structure == other.structure else 1.0 + unlike(one, other)


def _size(one: Sequence[tuple[float, ...]], other: Sequence[tuple[float, ...]]) -> float:
    gaps = [
        abs(a - b)
        for mine, yours in zip_longest(one, other, fillvalue=())
        for a, b in zip_longest(mine[::-1], yours[::-1], fillvalue=0.0)
    ]
    mean = sum(gaps) / len(gaps) if gaps else 0.0
    return mean / (mean + DOUBLINGS)


def _share(one: Sequence[str], other: Sequence[str]) -> float:
    pairs = list(zip_longest(one, other))
    return sum(a != b for a, b in pairs) / len(pairs) if pairs else 0.0


def _finite(value: Any) -> float:
    number = float(value)
    if not 0.0 <= number < 64.0:
        raise ValueError(f"{value!r} is no logarithm of an extent")
    return number
