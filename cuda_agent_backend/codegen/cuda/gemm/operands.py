"""How a GEMM reads its operands and stores its results on cuda: along which loop, and how many elements at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.codegen.analysis.gemm import Factor, GemmForm, Lines, merged, points
from cuda_agent_backend.codegen.cuda.common.lane_printer import is_aligned
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel


@dataclass(frozen=True)
class Side:
    """One operand as a block copies it: ``rows`` of a tile, along ``k`` or along the rows, ``vector`` at a time."""

    name: str
    factor: Factor
    rows: Lines
    inner: Lines
    along_k: bool
    vector: int

    @property
    def index(self) -> sympy.Expr:
        return self.rows.index


MAX_TAPS = 63
"""As many bits as a row's mask has, less one for terms that are not there."""


@dataclass(frozen=True)
class Gather:
    """An operand whose places are the row's ``base`` plus the term's ``offset``; ``taps``: what the mask sees of k.

    Of one that is copied along k, the other way round: the term's base plus the row's offset, which has the taps.
    """

    base: sympy.Expr
    offset: sympy.Expr
    taps: tuple[Dim, ...]

    @property
    def bits(self) -> str:
        """The type of a row's mask."""
        return "unsigned" if points(self.taps) < 32 else "uint64_t"


def gather_of(side: Side) -> Gather | None:
    """For operands copied element by element, if row and term are independent; not of codes, which wait for nothing."""
    if side.vector > 1 or side.factor.is_quantized or side.factor.other is not None:
        return None
    away = side.rows.dims if side.along_k else side.inner.dims
    base = side.index.xreplace(dict.fromkeys((s for s, _ in away), sympy.S.Zero))
    offset = sympy.expand(side.index - base)
    taps = tuple(d for d in away if d[0] in side.factor.mask_symbols)
    if side.along_k and not taps:
        return None  # a place is quickly worked out
    mixed = offset.free_symbols - {s for s, _ in away}
    return None if mixed or points(taps) > MAX_TAPS else Gather(base, offset, taps)


NEAR = 4
"""Elements between neighbours up to which a line of the cache still serves several threads."""
COPY_BYTES = 16
"""Of the widest copy."""
LEAST_COPY_BYTES = 4
"""Of the narrowest that is asynchronous."""


def side_of(
    name: str,
    factor: Factor,
    rows: Sequence[Dim],
    inner: Sequence[Dim],
    widest: int,
    windows: bool = False,
) -> Side:
    """How to copy an operand: along the loop whose neighbours are nearest in memory, as wide as alignment allows.

    Or along the other one, where that is nearly as near and spares each element its own place: the image of a strided
    convolution has a window's few neighbours next to each other in memory, those of neighbouring windows a step apart.
    ``windows``: rows are numbered by windows of them, which go on in memory where the one before ends.
    """
    lines = merged(rows, factor, f"{name}r")
    inner_lines = merged(inner, replace(factor, index=lines.index), f"{name}k")
    lines = Lines(lines.dims, inner_lines.index)
    near, away = _nearness(inner_lines), _nearness(lines)
    along_k = near[0] < away[0] if windows else near <= away
    chosen = inner_lines if along_k else lines
    found = Side(name, factor, lines, inner_lines, along_k, _vector(factor, chosen, widest))
    if factor.mask is None or found.vector > 1 or gather_of(found) is not None:
        return found
    turned, other = replace(found, along_k=not along_k), lines if along_k else inner_lines
    return turned if _nearness(other)[0] <= NEAR and gather_of(turned) is not None else found


def _nearness(lines: Lines) -> tuple[int, int]:
    """Sorts loops by how near in memory their neighbours are, and how many follow each other so."""
    return abs(lines.step or 1 << 40), -lines.dims[-1][1]


def _vector(factor: Factor, lines: Lines, widest: int) -> int:
    symbol, size = lines.dims[-1]
    if symbol in factor.mask_symbols or lines.step != 1:
        return 1
    least = LEAST_COPY_BYTES if factor.is_quantized else 2
    possible = (v for v in (16, 8, 4, 2) if least <= v <= widest and size % v == 0)
    return next((v for v in possible if is_aligned(lines.index, symbol, 1, v, v)), 1)


@dataclass(frozen=True)
class Output:
    """How results leave: ``vector`` rows (``by_rows``) or columns together, and the next ones by the next thread.

    across: after so many of them the next thread takes the next of the other dimension, where that is what lies nearer:
    the phases of a transposed convolution are columns next to each other, but few. 0: never.
    """

    by_rows: bool
    vector: int
    across: int = 0


def output_of(kernel: Kernel, c: GemmForm) -> Output:
    """Along the loop by which stores are nearest to each other, contiguous or not."""
    stores = [s.index for stage in kernel.stages for s in stage.stores]
    by_rows = _step(c.rows[-1], stores) < _step(c.columns[-1], stores)
    own, other = (c.rows, c.columns) if by_rows else (c.columns, c.rows)
    vector = next((v for v in (4, 2) if in_vectors(own[-1], stores, v)), 1)
    following = _step(own[-2], stores) if len(own) > 1 else FAR
    short = own[-1][1] == vector and _step(other[-1], stores) < following
    return Output(by_rows, vector, vector if short else 0)


FAR = 1 << 40
"""A step that is not constant, or that there is none of."""


def _step(dim: Dim, stores: Sequence[sympy.Expr]) -> int:
    """Elements from one point of a loop to the next, where stores take the longest."""
    steps = [coefficient(index, dim[0]) for index in stores]
    return max((abs(step or FAR) for step in steps), default=FAR)


def in_vectors(dim: Dim, stores: Sequence[sympy.Expr], vector: int) -> bool:
    """Whether each ``vector`` points of a loop are stored next to each other, from aligned places on."""
    symbol, size = dim
    return size % vector == 0 and all(
        coefficient(i, symbol) == 1 and is_aligned(i, symbol, 1, vector, vector) for i in stores
    )
