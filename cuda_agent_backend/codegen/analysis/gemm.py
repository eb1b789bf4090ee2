"""GEMMs among the kernels, as one form (`GemmForm`): matrix products of any layout, batched or not, and convolutions.

:func:`gemm_of` recognises ``C[b, m, n] = sum over k of A[b, m, k] B[b, n, k]`` where b, m, n and k each stand
for any number of loops, in any order in memory. An operand may be masked, as what lies beside an image is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from cuda_agent_backend.codegen.analysis.quantized_operand import codes_of
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.loops import cut_loops, mergeable
from cuda_agent_backend.codegen.ir.printer import HALVES
from cuda_agent_backend.codegen.ir.ssa import GATHER, Body, Instruction, Value, number_of
from cuda_agent_backend.codegen.ir.value_types import stage_dtype

LOADS = ("load", GATHER, "masked", "local")
FACTORS = (torch.float32, *HALVES)
LARGEST_FACTOR = 2.0**20
"""Of the constants that sums are scaled by for their operands, whose reciprocal is the smallest: sums that are made
before they are scaled must not leave the range that scaled operands keep them in."""


@dataclass(frozen=True)
class Factor:
    """An operand: the load of ``buffer`` at ``index``, 0 where ``mask`` (a body with one result) is false.

    absent: there the whole term is missing, rather than 0 times the other factor (see `expand_convolution`).
    zero: of integers that stand for numbers, as weights of 8 bits do, the one that stands for 0; None of numbers.
    scale: what results are multiplied by for it, a body whose result is the same for all terms of a sum.
    other: a buffer that is read instead, at the same index, where that loop is at 1 (see `dual_gemm`).
    """

    buffer: str
    index: sympy.Expr
    mask: Body | None
    absent: bool = False
    zero: int | None = None
    scale: Body | None = None
    other: tuple[str, sympy.Symbol] | None = None

    @property
    def buffers(self) -> tuple[str, ...]:
        """All that it is read from."""
        return (self.buffer,) if self.other is None else (self.buffer, self.other[0])

    @property
    def is_quantized(self) -> bool:
        return self.zero is not None

    @property
    def constant(self) -> float:
        """What elements that are numbers as they lie in memory are scaled by."""
        if self.scale is None or self.is_quantized:
            return 1.0
        return number_of(self.scale.instructions[-1].operands[0])

    @property
    def symbols(self) -> set[sympy.Symbol]:
        return set(self.index.free_symbols) | self.mask_symbols

    @property
    def mask_symbols(self) -> set[sympy.Symbol]:
        """What the mask depends on."""
        found: set[sympy.Symbol] = set()
        for i in self.mask.walk() if self.mask is not None else ():
            found |= i.index.free_symbols if i.index is not None else set()
        return found


@dataclass(frozen=True)
class GemmForm:
    """``left`` has the rows, ``right`` the columns, both of ``dtype``; all dimensions are in the kernel's symbols.

    Rows and columns are in the order of what is stored, inner dimensions in that of the operand with more elements, so
    that the last of them is the one whose neighbours are nearest in memory. ``window``: the last loops of rows whose
    results become one in the tile that has them all (see `cuda.gemm.epilogue.pool`). ``parts``: the
    loop of columns over parts that are combined in their tile, the last one or the last but one (see
    `cuda.gemm.epilogue.glu`).
    """

    left: Factor
    right: Factor
    batch: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    columns: tuple[Dim, ...]
    inner: tuple[Dim, ...]
    dtype: torch.dtype = torch.float32
    window: tuple[Dim, ...] = ()
    parts: tuple[Dim, ...] = ()

    def rows_within(self, tile: int) -> int:
        """Of the rows of a tile, those of whole windows."""
        return tile - tile % points(self.window)

    def columns_within(self, tile: int) -> int:
        """Of the columns of a tile, those of which it has all parts."""
        return tile - tile % (points(self.parts) * self.chunk)

    @property
    def chunk(self) -> int:
        """Columns of one part that follow each other."""
        return self.columns[-1][1] if self.parts and self.columns[-1] not in self.parts else 1

    @property
    def is_half(self) -> bool:
        """Whether the factors are of 16 bits; sums are of float32 whatever they are."""
        return self.dtype in HALVES

    @property
    def is_quantized(self) -> bool:
        """Whether a factor is of integers."""
        return self.left.is_quantized or self.right.is_quantized

    @property
    def constant(self) -> float:
        """What terms are scaled by, where no factor is of integers."""
        return self.left.constant * self.right.constant

    @property
    def batches(self) -> int:
        return points(self.batch)

    @property
    def m(self) -> int:
        return points(self.rows)

    @property
    def n(self) -> int:
        return points(self.columns)

    @property
    def k(self) -> int:
        return points(self.inner)


def points(dims: Sequence[Dim]) -> int:
    """How many points the loops have."""
    return math.prod(n for _, n in dims)


def gemm_of(kernel: Kernel) -> GemmForm | None:
    """The sum of products that ``kernel`` begins with, if everything after it works on its results one by one."""
    first, *rest = kernel.stages
    if first.kind != "reduce" or first.combine != "sum" or stage_dtype(first) not in FACTORS:
        return None
    if not first.inner or any(stage.kind != "map" or stage.inner for stage in rest):
        return None
    factors = _factors(first.body, {s for s, _ in first.inner})
    if factors is None:
        return None
    left, right = factors
    if stage_dtype(first) in HALVES and (left.scale or right.scale):
        return None  # eager mode rounds what is scaled
    kinds = [(s in left.symbols, s in right.symbols) for s, _ in kernel.outer]
    if (False, False) in kinds:
        return None

    def dims(kind: tuple[bool, bool]) -> tuple[Dim, ...]:
        return tuple(d for d, k in zip(kernel.outer, kinds, strict=True) if k == kind)

    rows, columns = dims((True, False)), dims((False, True))
    if not rows or not columns:
        return None
    stored = [s.index for stage in reversed(kernel.stages) for s in stage.stores]
    larger = left if points(rows) >= points(columns) else right
    return GemmForm(
        left,
        right,
        dims((True, True)),
        by_memory(rows, stored[0]),
        phases_first(by_memory(columns, stored[0]), rows[-1], right, stored[0]),
        by_memory(first.inner, larger.index),
        stage_dtype(first),
    )


def numbers_of(kernel: Kernel) -> GemmForm | None:
    """The same where both operands are numbers as they lie in memory, or constant multiples of these."""
    found = gemm_of(kernel)
    return None if found is None or found.is_quantized else found


def by_memory(dims: Sequence[Dim], index: sympy.Expr) -> tuple[Dim, ...]:
    """``dims`` from the widest step of ``index`` to the narrowest; as they are where one has none."""
    steps = [coefficient(index, symbol) for symbol, _ in dims]
    if not all(steps):
        return tuple(dims)
    ranked = sorted(zip(steps, dims, strict=True), key=lambda item: -abs(item[0] or 0))
    return tuple(dim for _, dim in ranked)


def phases_first(
    columns: tuple[Dim, ...], row: Dim, right: Factor, stored: sympy.Expr
) -> tuple[Dim, ...]:
    """``columns`` such that those which lack the same terms lie next to each other.

    The last stays where its results lie nearer to each other than those of neighbouring rows: stores are wide by that.
    """
    steps = [coefficient(stored, d[0]) or 0 for d in (columns[-1], row)]
    others = columns[:-1] if abs(steps[0]) < abs(steps[1]) else columns
    lacking = [d for d in others if right.absent and d[0] in right.mask_symbols]
    return (*lacking, *(d for d in columns if d not in lacking))


def _factors(body: Body, inner: set[sympy.Symbol]) -> tuple[Factor, Factor] | None:
    made = {i.result: i for i in body.instructions}
    product = made[body.results[0]]
    if product.op != "mul" or len(product.operands) != 2:
        return None
    operands = [made[o] for o in product.operands if isinstance(o, Value)]
    found = [
        _factor(o, made) or _diminished(o, made) or quantized_factor(o, made, inner)
        for o in operands
    ]
    known = [f for f in found if f is not None]
    return (known[0], known[1]) if len(known) == 2 else None


def _factor(value: Instruction, made: dict[Value, Instruction]) -> Factor | None:
    """A load, masked or not. Masks within each other are one: an image padded before its convolution pads it again."""
    if value.op == "load" and value.buffer is not None and value.index is not None:
        return Factor(value.buffer, value.index, None)
    if value.op != "masked" or value.body is None or float(value.operands[1]) != 0.0:
        return None
    within = made | {i.result: i for i in value.body.instructions}
    found = _factor(within[value.body.results[0]], within)
    mask = _closure(value.operands[0], made)
    absent = math.copysign(1.0, float(value.operands[1])) < 0
    if found is None or mask is None or (found.mask is not None and (absent or found.absent)):
        return None
    both = mask if found.mask is None else _both(mask, found.mask)
    return Factor(found.buffer, found.index, both, absent)


def _diminished(value: Instruction, made: dict[Value, Instruction]) -> Factor | None:
    """A load times a constant below 1, without which a sum may overflow that does not with it.

    `unscaled` has the others.
    """
    found = scaled_by(value, made)
    if found is None or not is_moderate(found[1]) or abs(found[1]) >= 1:
        return None
    load = made[found[0]]
    factor = _factor(load, made) if load.op == "load" else None
    constant = Instruction(Value(0), "constant", (repr(found[1]),), torch.float32)
    return factor and replace(factor, scale=Body([constant], (constant.result,)))


def is_moderate(constant: float) -> bool:
    """Whether a sum may be scaled by it rather than its terms."""
    return 1 / LARGEST_FACTOR <= abs(constant) <= LARGEST_FACTOR


def scaled_by(value: Instruction, made: dict[Value, Instruction]) -> tuple[Value, float] | None:
    """What a constant scales, and the constant."""
    if value.op != "mul":
        return None
    for one, other in (value.operands, value.operands[::-1]):
        constant = made.get(other) if isinstance(other, Value) else None
        if isinstance(one, Value) and constant is not None and constant.op == "constant":
            return one, number_of(constant.operands[0])
    return None


def quantized_factor(
    value: Instruction, made: dict[Value, Instruction], inner: set[sympy.Symbol]
) -> Factor | None:
    """Integers of 8 bits that stand for numbers, scaled by what is the same for all terms (``inner``)."""
    found = codes_of(value, made, inner)
    if found is None:
        return None
    load, zero, scale = found
    assert load.buffer is not None and load.index is not None
    return Factor(load.buffer, load.index, None, zero=zero, scale=scale)


def _both(a: Body, b: Body) -> Body:
    """Whether two masks of one loop body hold."""
    instructions = list({i.result: i for i in (*a.instructions, *b.instructions)}.values())
    result = Value(1 + max(i.result.number for i in instructions))
    joined = Instruction(result, "and_", (a.results[0], b.results[0]))
    return Body([*instructions, joined], (result,))


def _closure(value: Value, made: dict[Value, Instruction]) -> Body | None:
    """All that ``value`` is computed from; None where that is more than indices."""
    needed = {value}
    for i in reversed(list(made.values())):
        if i.result in needed:
            if i.op in LOADS:
                return None
            needed |= {o for o in i.operands if isinstance(o, Value)}
    return Body([i for i in made.values() if i.result in needed], (value,))


def straightened(kernel: Kernel) -> Kernel:
    """``kernel`` with loops of its sum of products cut where an operand that is laid out otherwise has its own.

    A product of tokens by heads that lie inside has one loop over batches and heads; its operands have two.
    """
    found = gemm_of(kernel)
    if found is None:
        return kernel
    cuts = {s: {1, n} for s, n in (*kernel.outer, *kernel.stages[0].inner)}
    for index in _indices((found.left, found.right)):
        for part in index.atoms(FloorDiv, ModularIndexing):
            base, divisor, *modulus = part.args
            ends = (divisor, *(divisor * m for m in modulus))
            if base in cuts and all(end.is_Integer for end in ends):
                cuts[base] |= {int(end) for end in ends}
    parts = {s: cut_sizes(sorted(places)) for s, places in cuts.items() if len(places) > 2}
    found_parts = {s: sizes for s, sizes in parts.items() if sizes}
    cut = cut_loops(kernel, found_parts) if found_parts else kernel
    # a loop of which an operand repeats its elements has a part that no operand has
    return cut if gemm_of(cut) is not None else kernel


def _indices(factors: Sequence[Factor]) -> Iterator[sympy.Expr]:
    """Of the elements, and what masks depend on."""
    for factor in factors:
        yield factor.index
        for i in factor.mask.walk() if factor.mask is not None else ():
            if i.index is not None:
                yield i.index


def cut_sizes(cuts: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the loops, outermost first, between cuts in rising order; () where these do not divide each other."""
    if any(high % low for low, high in itertools.pairwise(cuts)):
        return ()
    return tuple(high // low for low, high in itertools.pairwise(cuts))[::-1]


@dataclass(frozen=True)
class Lines:
    """Loops of an operand with neighbours that are evenly spaced in memory merged, and its index over them."""

    dims: tuple[Dim, ...]
    index: sympy.Expr

    @property
    def step(self) -> int | None:
        """Elements from one point of the last loop to the next; None where that is not constant."""
        return coefficient(self.index, self.dims[-1][0])


def merged(dims: Sequence[Dim], factor: Factor, tag: str) -> Lines:
    """``dims`` of a factor, merged where its mask does not tell them apart."""
    index, out, masked = factor.index, [dims[0]], factor.mask_symbols
    for number, dim in enumerate(dims[1:]):
        last = out[-1]
        if not {last[0], dim[0]} & masked and mergeable(last, dim, [index]):
            both = sympy.Symbol(f"{tag}{number}", integer=True, nonnegative=True)
            index = sympy.expand(index.xreplace({last[0]: sympy.S.Zero, dim[0]: both}))
            out[-1] = (both, last[1] * dim[1])
        else:
            out.append(dim)
    return Lines(tuple(out), index)
