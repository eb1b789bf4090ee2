"""Sorts and selections of the largest or smallest along one dimension among the tasks: recognised as one operator."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.operators.sorts import SORTED_DTYPES, SORTS
from sandbox.task.task import InputRef, NodeRef, Task, TensorSpec

DTYPES = frozenset(str(dtype).removeprefix("torch.") for dtype in SORTED_DTYPES)
Dim = tuple[int, int]
"""Size, and elements between neighbours."""


@dataclass(frozen=True)
class Rows:
    """A tensor as rows along a dimension: ``step`` between neighbours of a row, ``outer`` the other dimensions."""

    dtype: str
    step: int
    outer: tuple[Dim, ...]


@dataclass(frozen=True)
class Sorting:
    """The first ``kept`` of each row of ``length``, in order; values or positions (int64) or both are put out."""

    length: int
    kept: int
    rows: int
    descending: bool
    source: Rows
    values: Rows | None
    places: Rows | None
    selects: bool

    @property
    def results(self) -> tuple[Rows, ...]:
        return tuple(r for r in (self.values, self.places) if r is not None)


def is_sorting(task: Task) -> bool:
    return any(node.op in SORTS for node in task.nodes)


def sorting_of(task: Task) -> Sorting:
    """The sort or selection that ``task`` is.

    Raises:
        Unsupported: it is more than that, or of a dtype that is not known, with the reason.
    """
    if len(task.nodes) != 1 or not set(task.outputs) <= {NodeRef(0, 0), NodeRef(0, 1)}:
        raise Unsupported("a sort together with other operators")
    node = task.nodes[0]
    args, source = node.args, node.args["self"]
    if not isinstance(source, InputRef):
        raise Unsupported("a sort of something that is not an input")
    spec = task.inputs[source.index]
    if not spec.shape or spec.dtype not in DTYPES:
        raise Unsupported(f"a sort of {spec.dtype}{list(spec.shape)}")
    selects = node.name == "topk"
    if args.get("sorted", True) is not True:
        raise Unsupported("a selection in no order")
    dim, k = args.get("dim", -1), args.get("k")
    if not isinstance(dim, int):
        raise Unsupported("a sort along a dimension that is not known")
    dim %= len(spec.shape)
    length = spec.shape[dim]
    if length < 1:
        raise Unsupported("rows without elements")
    kept = k if selects and isinstance(k, int) else length
    found = dict(zip(task.outputs, task.output_specs, strict=True))
    rows = rows_of(spec, dim)
    assert rows is not None
    return Sorting(
        length,
        kept,
        math.prod(spec.shape) // length,
        bool(args.get("largest", True) if selects else args.get("descending", False)),
        rows,
        rows_of(found.get(NodeRef(0, 0)), dim),
        rows_of(found.get(NodeRef(0, 1)), dim),
        selects,
    )


def rows_of(spec: TensorSpec | None, dim: int) -> Rows | None:
    """A tensor as rows along ``dim``."""
    if spec is None:
        return None
    dims = [
        (n, s) for i, (n, s) in enumerate(zip(spec.shape, spec.stride, strict=True)) if i != dim
    ]
    return Rows(spec.dtype, spec.stride[dim], tuple((n, s) for n, s in dims if n != 1))
