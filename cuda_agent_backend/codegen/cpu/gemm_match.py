"""Matrix products among the kernels.

A product is lowered like any sum of products (see ``expand``), so that whatever follows it point by point joins its
kernel by the same rules as elsewhere. :func:`product_of` recognises the loops: rows come from one operand, columns from
the other.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import sympy
import torch

from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.loops import mergeable
from cuda_agent_backend.codegen.ir.ssa import Instruction


@dataclass(frozen=True)
class Operand:
    """A matrix in memory: ``index`` over batch, row (or column) and ``inner`` symbols, linear in ``inner``."""

    buffer: str
    index: sympy.Expr
    step: int
    """Elements from one row of A, or column of B, to the next."""
    inner_step: int
    """Elements from one term of a sum to the next."""


@dataclass(frozen=True)
class Product:
    """The first stage of a kernel as ``C[b, m, n] = sum over k of A[b, m, k] B[b, k, n]``, in the kernel's symbols.

    ``batch``, ``rows`` and ``columns`` together are the kernel's outer dimensions, in order.
    """

    left: Operand
    right: Operand
    batch: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    columns: tuple[Dim, ...]
    inner: Dim

    @property
    def batches(self) -> int:
        return math.prod(n for _, n in self.batch)

    @property
    def m(self) -> int:
        return math.prod(n for _, n in self.rows)

    @property
    def n(self) -> int:
        return math.prod(n for _, n in self.columns)

    @property
    def k(self) -> int:
        return self.inner[1]


def _even_step(index: sympy.Expr, dims: tuple[Dim, ...]) -> int | None:
    """Elements from one point of ``dims`` to the next, None where they are not evenly spaced."""
    if any(not mergeable(a, b, [index]) for a, b in itertools.pairwise(dims)):
        return None
    return coefficient(index, dims[-1][0])


def product_of(kernel: Kernel) -> Product | None:
    """The product that ``kernel`` begins with, if everything after it works on its results one by one."""
    first, *rest = kernel.stages
    if first.combine != "sum" or len(first.inner) != 1 or first.dtype != torch.float32:
        return None
    if any(stage.kind != "map" or stage.inner for stage in rest):
        return None
    operands = _factors(first.body.instructions)
    if operands is None:
        return None
    for left, right in (operands, operands[::-1]):
        found = _arrange(kernel, first.inner[0], left, right)
        if found is not None:
            return found
    return None


def _factors(instructions: list[Instruction]) -> tuple[Instruction, Instruction] | None:
    loads = [i for i in instructions if i.op == "load"]
    if len(instructions) != 3 or len(loads) != 2 or instructions[2].op != "mul":
        return None
    if set(instructions[2].operands) != {i.result for i in loads}:
        return None
    return loads[0], loads[1]


def _kind(symbol: sympy.Symbol, left: sympy.Expr, right: sympy.Expr) -> str:
    if symbol not in left.free_symbols:
        return "columns"
    return "batch" if symbol in right.free_symbols else "rows"


def _arrange(kernel: Kernel, inner: Dim, left: Instruction, right: Instruction) -> Product | None:
    assert left.index is not None and right.index is not None
    kinds = [_kind(s, left.index, right.index) for s, _ in kernel.outer]
    if not {"rows", "columns"} <= set(kinds):
        return None
    # what B alone has before the rows is a batch that shares its A
    kinds[: kinds.index("rows")] = ["batch"] * kinds.index("rows")
    if kinds != sorted(kinds, key=("batch", "rows", "columns").index) or kinds[-1] != "columns":
        return None
    if any(coefficient(i, s) is None for i in (left.index, right.index) for s, _ in kernel.outer):
        return None

    def dims(kind: str) -> tuple[Dim, ...]:
        return tuple(d for d, k in zip(kernel.outer, kinds, strict=True) if k == kind)

    a, b = _operand(left, dims("rows"), inner), _operand(right, dims("columns"), inner)
    if a is None or b is None:
        return None
    return Product(a, b, dims("batch"), dims("rows"), dims("columns"), inner)


def _operand(load: Instruction, dims: tuple[Dim, ...], inner: Dim) -> Operand | None:
    assert load.buffer is not None and load.index is not None
    step, inner_step = _even_step(load.index, dims), coefficient(load.index, inner[0])
    return Operand(load.buffer, load.index, step, inner_step) if step and inner_step else None
