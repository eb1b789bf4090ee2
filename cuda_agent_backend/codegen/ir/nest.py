"""Stages -> kernels: which loop nests run together over a common set of rows, and where their values live.

A kernel has common ``outer`` dimensions (a point of them is a *row*); each of its stages loops over its own
``inner`` dimensions within the row. A buffer made and read inside one row is *local*: it needs no memory outside
the core (a register, a thread's scratch, shared memory), which is what fusing is for. Whether a read stays
within its row is decided symbolically, never assumed.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
from torch._inductor.sizevars import SizeVarAllocator
from torch.utils._sympy.functions import FloorDiv, Identity, ModularIndexing

from cuda_agent_backend.codegen.ir.index_divisions import decided
from cuda_agent_backend.codegen.ir.region import Buffer, LoweredRegion, Stage, Store
from cuda_agent_backend.codegen.ir.ssa import GATHER, Body, Instruction, Unsupported, Value

Dim = tuple[sympy.Symbol, int]
AT_LEAST: dict[str, Callable[[sympy.Expr, sympy.Expr], sympy.Expr]] = {
    "lt": lambda a, b: b - a - 1,
    "le": lambda a, b: b - a,
    "gt": lambda a, b: a - b - 1,
    "ge": lambda a, b: a - b,
}
"""Comparisons as something that is not negative."""


@dataclass(frozen=True)
class Local:
    """A buffer that lives within a row. ``size`` 1 is a scalar, else a dense array of that many elements."""

    name: str
    size: int


@dataclass(frozen=True)
class RowStage:
    """A stage in terms of the kernel's outer symbols and its own inner dimensions (merged, in loop order).

    Loads and stores of local buffers carry their index within the row. ``stores`` are writes to memory,
    ``local_stores`` writes to locals; both index by outer and inner symbols.
    """

    name: str
    kind: str
    combine: str
    dtype: object
    inner: tuple[Dim, ...]
    body: Body
    stores: tuple[Store, ...]
    local_stores: tuple[Store, ...]

    @property
    def points(self) -> int:
        return math.prod(n for _, n in self.inner)


@dataclass(frozen=True)
class Kernel:
    """Stages over common rows. ``locals`` by buffer name; a local that is also kept has a memory store too."""

    outer: tuple[Dim, ...]
    stages: tuple[RowStage, ...]
    locals: dict[str, Local]

    @property
    def rows(self) -> int:
        return math.prod(n for _, n in self.outer)

    @property
    def is_map(self) -> bool:
        return all(s.kind == "map" for s in self.stages)


Nests = tuple[LoweredRegion, tuple[Kernel, ...]]
"""A region and its kernels."""


def temporaries(region: LoweredRegion, kernels: Iterable[Kernel]) -> list[Buffer]:
    """What goes through memory from kernel to kernel."""
    written = {s.buffer for k in kernels for stage in k.stages for s in stage.stores}
    return [b for b in region.buffers.values() if b.role == "temporary" and b.name in written]


def simplify(expr: sympy.Expr, ranges: Iterable[Dim]) -> sympy.Expr:
    """``expr`` with divisions and remainders removed where the ranges allow it."""
    return _simplified(expr, tuple(ranges))


@functools.lru_cache(maxsize=1 << 16)
def _simplified(expr: sympy.Expr, ranges: tuple[Dim, ...]) -> sympy.Expr:
    """Every schedule of a kernel asks for the same, and loops written out ask thousands of times."""
    plain = sympy.expand(expr.replace(Identity, lambda inner: inner))
    if not plain.has(FloorDiv, ModularIndexing):
        return plain
    found = sympy.expand(SizeVarAllocator().simplify_with_ranges(plain, dict(ranges)))
    if not found.has(FloorDiv, ModularIndexing):
        return found
    return sympy.expand(decided(found, dict(ranges)))


def row_major(dims: Iterable[Dim]) -> sympy.Expr:
    """The number of a point of the loops, in their order."""
    number: sympy.Expr = sympy.S.Zero
    for symbol, size in dims:
        number = number * size + symbol
    return sympy.expand(number)


def coefficient(expr: sympy.Expr, symbol: sympy.Symbol) -> int | None:
    """Constant ``c`` with ``expr = c * symbol + rest`` and ``rest`` free of it; None where not linear."""
    if symbol not in expr.free_symbols:
        return 0
    linear = expr.coeff(symbol, 1)
    if not linear.is_Integer or symbol in (expr - linear * symbol).expand().free_symbols:
        return None
    return int(linear)


# --- common rows --------------------------------------------------------------------------------------------


def refine(chains: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Coarsest sizes into which every list of sizes (of equal product) splits evenly; None if there is none."""
    cuts = {1}
    for chain in chains:
        product = 1
        for size in reversed(chain):
            product *= size
            cuts.add(product)
    ordered = sorted(cuts)
    sizes = []
    for low, high in itertools.pairwise(ordered):
        if high % low:
            return None
        sizes.append(high // low)
    return tuple(reversed(sizes))


def prefix_split(
    dims: Sequence[Dim], rows: int
) -> tuple[list[Dim], list[Dim], dict[sympy.Symbol, sympy.Expr]] | None:
    """Split dimensions in order into rows and the rest, cutting one dimension in two where needed."""
    outer: list[Dim] = []
    rest = list(dims)
    cut: dict[sympy.Symbol, sympy.Expr] = {}
    while rows > 1:
        if not rest:
            return None
        symbol, size = rest.pop(0)
        if rows % size == 0:
            outer.append((symbol, size))
            rows //= size
        elif size % rows == 0:
            high = sympy.Symbol(f"{symbol}h", integer=True, nonnegative=True)
            low = sympy.Symbol(f"{symbol}l", integer=True, nonnegative=True)
            cut[symbol] = high * (size // rows) + low
            outer.append((high, rows))
            rest.insert(0, (low, size // rows))
            rows = 1
        else:
            return None
    return outer, rest, cut


def split_by_load(
    dims: Sequence[Dim], index: sympy.Expr, rows: int
) -> tuple[list[Dim], list[Dim]] | None:
    """Take as rows the dimensions by which a row-sized buffer is read: ``index`` numbers the rows."""
    used = [
        (symbol, size, coefficient(index, symbol))
        for symbol, size in dims
        if symbol in index.free_symbols
    ]
    if any(c is None for *_, c in used):
        return None
    used.sort(key=lambda item: -(item[2] or 0))
    expected = 1
    for _, size, c in reversed(used):
        if c != expected:
            return None
        expected *= size
    if expected != rows:
        return None
    chosen = {symbol for symbol, *_ in used}
    return [(s, n) for s, n, _ in used], [d for d in dims if d[0] not in chosen]


def split_by_scan(
    dims: Sequence[Dim], index: sympy.Expr, scan: Stage
) -> tuple[list[Dim], list[Dim]] | None:
    """Take as rows the dimensions that step through what ``scan`` made, read at ``index``, as its own rows do."""
    rest, rows = list(dims), []
    for symbol, size in scan.outer:
        step = coefficient(scan.stores[0].index, symbol)
        own = [d for d in rest if d[1] == size and coefficient(index, d[0]) == step]
        if len(own) != 1:
            return None
        rows.append(own[0])
        rest.remove(own[0])
    return rows, rest


# --- one stage on common rows ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Placed:
    stage: Stage
    outer: tuple[Dim, ...]
    inner: tuple[Dim, ...]
    replace: dict[sympy.Symbol, sympy.Expr]


def _placements(
    stage: Stage, rows: int, row_buffers: set[str], scans: Mapping[str, Stage]
) -> list[_Placed]:
    """Ways of seeing ``stage`` as ``rows`` rows, most natural first. ``scans``: those before it, by what they make."""
    if stage.kind != "map":
        if math.prod(n for _, n in stage.outer) != rows:
            return []
        return [_Placed(stage, stage.outer, stage.inner, {})]
    result = []
    split = prefix_split(stage.outer, rows)
    if split is not None:
        result.append(_Placed(stage, tuple(split[0]), tuple(split[1]), split[2]))
    for load in stage.body.loads():
        by_load = None
        if load.buffer in row_buffers and load.index is not None:
            by_load = split_by_load(stage.outer, load.index, rows)
        elif load.buffer is not None and load.buffer in scans and load.index is not None:
            index = simplify(load.index, stage.outer)
            by_load = split_by_scan(stage.outer, index, scans[load.buffer])
        if by_load is not None:
            result.append(_Placed(stage, tuple(by_load[0]), tuple(by_load[1]), {}))
    return result


def _common(placed: _Placed, outer: Sequence[Dim]) -> dict[sympy.Symbol, sympy.Expr]:
    """The stage's outer variables as expressions over the kernel's, both in row-major order."""
    replacements: dict[sympy.Symbol, sympy.Expr] = {}
    position = len(outer)
    for symbol, size in reversed(placed.outer):
        expression, product = sympy.S.Zero, 1
        while product < size:
            position -= 1
            expression += outer[position][0] * product
            product *= outer[position][1]
        replacements[symbol] = expression
    return replacements


def _rename_inner(
    placed: _Placed, tag: str
) -> tuple[tuple[Dim, ...], dict[sympy.Symbol, sympy.Expr]]:
    inner, names = [], {}
    for position, (symbol, size) in enumerate(placed.inner):
        fresh = sympy.Symbol(f"{tag}r{position}", integer=True, nonnegative=True)
        inner.append((fresh, size))
        names[symbol] = fresh
    return tuple(inner), names


def with_indices(body: Body, change: dict[sympy.Symbol, sympy.Expr], ranges: Sequence[Dim]) -> Body:
    """``body`` with variables replaced in every index, simplified over the loops ``ranges``."""

    def one(b: Body) -> Body:
        instructions = [
            replace(
                i,
                index=simplify(i.index.xreplace(change), ranges) if i.index is not None else None,
                body=one(i.body) if i.body is not None else None,
            )
            for i in b.instructions
        ]
        return Body(instructions, b.results)

    return one(body)


def split_outer(kernel: Kernel, symbol: sympy.Symbol, part: int) -> Kernel:
    """The same kernel with one outer loop as two: over parts of that many points, and within one."""
    (size,) = (n for s, n in kernel.outer if s == symbol)
    return cut_loops(kernel, {symbol: (size // part, part)})


def cut_loops(kernel: Kernel, parts: Mapping[sympy.Symbol, Sequence[int]]) -> Kernel:
    """The same kernel with loops as several each, of the sizes in ``parts``, from the outermost to the innermost."""
    loops, change = loops_of_parts(parts)

    def cut(dims: Sequence[Dim]) -> tuple[Dim, ...]:
        return tuple(own for dim in dims for own in loops.get(dim[0], (dim,)))

    outer = cut(kernel.outer)

    def stage(s: RowStage) -> RowStage:
        inner = cut(s.inner)
        ranges = (*outer, *inner)

        def moved(stores: tuple[Store, ...]) -> tuple[Store, ...]:
            return tuple(
                replace(t, index=simplify(t.index.xreplace(change), ranges)) for t in stores
            )

        body = with_indices(s.body, change, ranges)
        return replace(
            s,
            inner=inner,
            body=body,
            stores=moved(s.stores),
            local_stores=moved(s.local_stores),
        )

    return replace(kernel, outer=outer, stages=tuple(map(stage, kernel.stages)))


def loops_of_parts(
    parts: Mapping[sympy.Symbol, Sequence[int]],
) -> tuple[dict[sympy.Symbol, tuple[Dim, ...]], dict[sympy.Symbol, sympy.Expr]]:
    """The loops that stand for each of those that are cut, of the sizes in ``parts``, and its value over them."""
    loops = {s: tuple((_part(s, n), size) for n, size in enumerate(p)) for s, p in parts.items()}
    change: dict[sympy.Symbol, sympy.Expr] = {}
    for symbol, dims in loops.items():
        change[symbol] = sympy.S.Zero
        for own, size in dims:
            change[symbol] = change[symbol] * size + own
        change[symbol] = sympy.expand(change[symbol])
    return loops, change


def _part(symbol: sympy.Symbol, number: int) -> sympy.Symbol:
    return sympy.Symbol(f"{symbol}_{number}", integer=True, nonnegative=True)


# --- rows and locals ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RowArray:
    """Where a stage of this kernel stores a buffer: ``base`` over outer symbols, ``inner`` over inner ones."""

    base: sympy.Expr
    strides: tuple[tuple[int, int], ...]
    size: int

    @property
    def dense(self) -> bool:
        """Whether address order within the row is the row-major order of the stage's loops."""
        expected = 1
        for stride, size in reversed(self.strides):
            if stride != expected:
                return False
            expected *= size
        return True


def _row_array(index: sympy.Expr, outer: Sequence[Dim], inner: Sequence[Dim]) -> _RowArray | None:
    base = index.xreplace({s: sympy.S.Zero for s, _ in inner})
    rest = sympy.expand(index - base)
    if rest.free_symbols & {s for s, _ in outer}:
        return None
    strides = []
    for symbol, size in inner:
        c = coefficient(rest, symbol)
        if c is None:
            return None
        strides.append((c, size))
    return _RowArray(base, tuple(strides), math.prod(n for _, n in inner))


def _least(expr: sympy.Expr, ranges: Iterable[Dim]) -> int | None:
    """The least that ``expr`` is within its loops; None where it is not linear in them."""
    total, rest = 0, expr
    for symbol, size in ranges:
        c = coefficient(expr, symbol)
        if c is None:
            return None
        total += min(0, c * (size - 1))
        rest = rest - c * symbol
    constant = sympy.expand(rest)
    return total + int(constant) if constant.is_Integer else None


def never_negative(
    expr: sympy.Expr, ranges: Sequence[Dim], known: Sequence[sympy.Expr] = (), steps: int = 3
) -> bool:
    """Whether ``expr`` is nowhere less than zero, given that nothing in ``known`` is.

    ``steps``: multiples of what is known that may be taken off until the loops alone say so.
    """
    least = _least(expr, ranges)
    if least is not None and least >= 0:
        return True
    for fact, (symbol, _) in itertools.product(known if steps else (), ranges):
        whole, part = coefficient(expr, symbol), coefficient(fact, symbol)
        if whole and part and whole % part == 0 and whole // part > 0:
            rest = sympy.expand(expr - whole // part * fact)
            if never_negative(rest, ranges, known, steps - 1):
                return True
    return False


def stays_within(index: sympy.Expr, size: int, ranges: Sequence[Dim]) -> bool:
    """Whether ``index`` surely names one of ``size`` elements at every point of its loops."""
    return all(never_negative(e, ranges) for e in (index, size - 1 - index))


def local_index(
    index: sympy.Expr,
    array: _RowArray,
    outer: Sequence[Dim],
    inner: Sequence[Dim],
    known: Sequence[sympy.Expr] = (),
) -> sympy.Expr | None:
    """Index within the row array of a read at memory index ``index``; None if it may leave the row.

    ``known``: what is never negative where the read is done.
    """
    rest = sympy.expand(index - array.base)
    if rest.free_symbols & {s for s, _ in outer} or not rest.free_symbols <= {s for s, _ in inner}:
        return None
    if len(array.strides) == 1:
        rest = _in_steps(rest, array.strides[0][0])
    elif not array.dense:
        rest = _in_dense_order(rest, array, inner)
    if rest is None or any((coefficient(rest, s) or 0) < 0 for s, _ in inner):
        return None
    ranges = (*outer, *inner)
    within = all(never_negative(e, ranges, known) for e in (rest, array.size - 1 - rest))
    return rest if within else None


def _in_steps(rest: sympy.Expr, stride: int) -> sympy.Expr | None:
    """``rest`` in steps of ``stride``; None where it lies between them."""
    factors = rest.as_coefficients_dict().values()
    if not all(f.is_Integer and int(f) % stride == 0 for f in factors):
        return None
    return sympy.expand(rest / stride)


def _in_dense_order(rest: sympy.Expr, array: _RowArray, inner: Sequence[Dim]) -> sympy.Expr | None:
    """``rest``, in the steps of the array's own loops, in steps of the same loops laid out densely."""
    dense_stride: dict[tuple[int, int], int] = {}
    expected = 1
    for stride, size in reversed(array.strides):
        dense_stride[(stride, size)] = expected
        expected *= size
    total = sympy.S.Zero
    for symbol, size in inner:
        c = coefficient(rest, symbol)
        if c == 0:
            continue
        if c is None or (c, size) not in dense_stride:
            return None
        total += symbol * dense_stride.pop((c, size))
    constant = rest.xreplace({s: sympy.S.Zero for s, _ in inner})
    return sympy.expand(total) if constant == 0 else None


def not_negative(body: Body, condition: Value, before: Sequence[Instruction]) -> list[sympy.Expr]:
    """Index expressions that are not negative where ``condition``, made in ``body`` or ``before`` it, holds."""
    made = {i.result: i for i in (*before, *body.instructions)}

    def index(operand: object) -> sympy.Expr | None:
        i = made.get(operand) if isinstance(operand, Value) else None
        if i is not None and i.op == "constant" and str(i.operands[0]).lstrip("-").isdigit():
            return sympy.Integer(str(i.operands[0]))
        return i.index if i is not None and i.op == "index_expr" else None

    def of(value: object) -> list[sympy.Expr]:
        i = made.get(value) if isinstance(value, Value) else None
        if i is None:
            return []
        if i.op in ("logical_and", "bitwise_and", "and_"):
            return [fact for o in i.operands for fact in of(o)]
        if i.op not in AT_LEAST:
            return []
        a, b = (index(o) for o in i.operands)
        return [] if a is None or b is None else [sympy.expand(AT_LEAST[i.op](a, b))]

    return of(condition)


def _localise(
    body: Body,
    arrays: dict[str, _RowArray],
    outer: Sequence[Dim],
    inner: Sequence[Dim],
    known: Sequence[sympy.Expr] = (),
    before: Sequence[Instruction] = (),
) -> Body | None:
    """Rewrite reads of buffers made in this kernel to row indices; None if one may leave its row.

    ``known``: what is never negative where ``body`` is done; ``before``: instructions around it.
    """
    instructions = []
    for i in body.instructions:
        if i.op == "load" and i.buffer in arrays:
            assert i.index is not None
            index = local_index(i.index, arrays[i.buffer], outer, inner, known)
            if index is None:
                return None
            i = replace(i, op="local", index=index)
        elif i.op == GATHER and i.buffer in arrays:
            return None
        elif i.body is not None:
            facts = not_negative(body, i.operands[0], before)
            around = (*before, *body.instructions)
            sub = _localise(i.body, arrays, outer, inner, (*known, *facts), around)
            if sub is None:
                return None
            i = replace(i, body=sub)
        instructions.append(i)
    return Body(instructions, body.results)


def mergeable(a: Dim, b: Dim, indices: Iterable[sympy.Expr]) -> bool:
    """Whether loops ``a`` (outside) and ``b`` (inside) are one loop for every index."""
    for e in indices:
        ca, cb = coefficient(e, a[0]), coefficient(e, b[0])
        if ca is None or cb is None or ca != cb * b[1]:
            return False
    return True


def merge_inner(stage: RowStage) -> RowStage:
    """Join adjacent inner loops wherever every access allows it."""
    inner = list(stage.inner)
    body, stores, local_stores = stage.body, stage.stores, stage.local_stores
    position = len(inner) - 2
    while position >= 0:
        a, b = inner[position], inner[position + 1]
        indices = [i.index for i in body.walk() if i.index is not None]
        indices += [s.index for s in (*stores, *local_stores)]
        if mergeable(a, b, indices):
            change = {a[0]: sympy.S.Zero}
            body = body.substitute(change)
            stores = tuple(replace(s, index=s.index.xreplace(change)) for s in stores)
            local_stores = tuple(replace(s, index=s.index.xreplace(change)) for s in local_stores)
            inner[position : position + 2] = [(b[0], a[1] * b[1])]
        position -= 1
    return replace(stage, inner=tuple(inner), body=body, stores=stores, local_stores=local_stores)


def merge_outer(kernel: Kernel) -> Kernel:
    """Join adjacent outer loops wherever every access allows it: longer lines of neighbouring rows."""
    outer = list(kernel.outer)
    indices = [i.index for s in kernel.stages for i in s.body.walk() if i.index is not None]
    indices += [t.index for s in kernel.stages for t in s.stores]
    gone: dict[sympy.Symbol, sympy.Expr] = {}
    for position in range(len(outer) - 2, -1, -1):
        a, b = outer[position], outer[position + 1]
        if mergeable(a, b, indices):
            gone[a[0]] = sympy.S.Zero
            outer[position : position + 2] = [(b[0], a[1] * b[1])]
    if not gone:
        return kernel
    stages = tuple(
        replace(
            s,
            body=s.body.substitute(gone),
            stores=tuple(replace(t, index=t.index.xreplace(gone)) for t in s.stores),
        )
        for s in kernel.stages
    )
    return replace(kernel, outer=tuple(outer), stages=stages)


def _order_inner(placed: _Placed) -> _Placed:
    """Loop order by memory: the smallest stride of the largest access goes innermost."""
    stage = placed.stage
    if stage.kind == "scan" or len(placed.inner) < 2:
        return placed
    index = (
        stage.stores[0].index
        if stage.kind == "map"
        else next((i.index for i in stage.body.loads() if i.index is not None), None)
    )
    if index is None:
        return placed
    index = sympy.expand(index.xreplace(placed.replace))
    strides = {s: coefficient(index, s) for s, _ in placed.inner}
    if stage.combine in ("argmax", "argmin") or any(c is None or c == 0 for c in strides.values()):
        return placed  # an arg reduction numbers its points in logical order
    return replace(placed, inner=tuple(sorted(placed.inner, key=lambda d: -(strides[d[0]] or 0))))


# --- building kernels -------------------------------------------------------------------------------------------


def _build(stages: Sequence[Stage], rows: int, keep: set[str]) -> Kernel | None:
    """One kernel of all ``stages`` over ``rows`` rows, or None if some read may leave its row."""
    made: set[str] = set()
    choices: list[list[_Placed]] = []
    row_buffers = {s.buffer for st in stages if st.kind == "reduce" for s in st.stores}
    scans = {s.buffer: st for st in stages if st.kind == "scan" for s in st.stores}
    for stage in stages:
        options = [_order_inner(p) for p in _placements(stage, rows, row_buffers, scans)]
        if not options:
            return None
        choices.append(options)
        made |= stage.writes()
    # the second choice of a stage serves layouts whose rows are not a prefix; try all-first, then all-last
    for pick in (0, -1):
        kernel = _place(tuple(options[pick] for options in choices), keep)
        if kernel is not None:
            return kernel
    return None


def _place(placed: tuple[_Placed, ...], keep: set[str]) -> Kernel | None:
    sizes = refine([[n for _, n in p.outer] for p in placed])
    if sizes is None:
        return None
    outer = tuple(
        (sympy.Symbol(f"p{i}", integer=True, nonnegative=True), n) for i, n in enumerate(sizes)
    )
    arrays: dict[str, _RowArray] = {}
    in_parts: set[str] = set()
    result = []
    for number, p in enumerate(placed):
        inner, names = _rename_inner(p, f"s{number}")
        # two steps: a cut variable becomes (high, low) first, then both get their final names
        to_common = {**_common(p, outer), **names}
        ranges = (*outer, *inner)
        body = p.stage.body.substitute(p.replace)
        body = with_indices(body, to_common, ranges)
        local_body = _localise(body, arrays, outer, inner)
        if local_body is None or p.stage.reads() & in_parts:
            return None
        stores, local_stores = [], []
        for s in p.stage.stores:
            index = simplify(s.index.xreplace(p.replace).xreplace(to_common), ranges)
            array = _row_array(index, outer, inner if p.stage.kind != "reduce" else ())
            if array is None:
                return None
            if s.buffer in arrays:
                in_parts.add(s.buffer)
            arrays[s.buffer] = array
            if s.buffer in keep:
                stores.append(replace(s, index=index))
            local_stores.append(replace(s, index=_dense(p, inner)))
        result.append(
            merge_inner(
                RowStage(
                    p.stage.name,
                    p.stage.kind,
                    p.stage.combine,
                    p.stage.dtype,
                    inner,
                    local_body,
                    tuple(stores),
                    tuple(local_stores),
                )
            )
        )
    read = {i.buffer for s in result for i in s.body.walk() if i.op == "local"}
    final = tuple(
        replace(s, local_stores=tuple(t for t in s.local_stores if t.buffer in read))
        for s in result
    )
    locals_ = {b: Local(b, a.size) for b, a in arrays.items() if b in read}
    return Kernel(outer, final, locals_)


def _dense(placed: _Placed, inner: Sequence[Dim]) -> sympy.Expr:
    """Row-major index within the row array. Row order is that of the stage's loops as written."""
    if placed.stage.kind == "reduce":
        return sympy.S.Zero
    total, stride = sympy.S.Zero, 1
    for symbol, size in reversed(inner):
        total += symbol * stride
        stride *= size
    return sympy.expand(total)


def _rows_wanted(stages: Sequence[Stage]) -> int | None:
    """Rows that the reductions and scans ask for; -1 if they disagree, None if there is none."""
    wanted = {math.prod(n for _, n in s.outer) for s in stages if s.kind != "map"}
    if not wanted:
        return None
    return wanted.pop() if len(wanted) == 1 else -1


def _map_rows(stages: Sequence[Stage]) -> list[int]:
    """Row counts to try for stages that are all maps: fewest first, so that inner loops are long."""
    smallest = min(math.prod(n for _, n in s.outer) for s in stages)
    dims = min((s.outer for s in stages), key=lambda d: math.prod(n for _, n in d))
    counts, product = [1], 1
    for _, size in dims:
        product *= size
        counts.append(product)
    return [c for c in counts if c <= smallest]


def _try(stages: Sequence[Stage], keep: set[str]) -> Kernel | None:
    wanted = _rows_wanted(stages)
    if wanted == -1:
        return None
    if wanted is not None:
        return _build(stages, wanted, keep)
    if len(stages) == 1:
        return _build(stages, 1, keep)
    if any(
        math.prod(n for _, n in s.outer) != math.prod(n for _, n in stages[0].outer) for s in stages
    ):
        return None
    for rows in _map_rows(stages):
        kernel = _build(stages, rows, keep)
        # one row of everything would keep whole tensors "on chip"
        if kernel is not None and sum(v.size for v in kernel.locals.values()) <= 65536:
            return kernel
    return None


def _ancestors(stage: Stage, waiting: Sequence[Stage]) -> list[Stage]:
    """Those of ``waiting``, in order, that ``stage`` needs."""
    wanted = stage.reads()
    found: list[Stage] = []
    for other in reversed(waiting):
        if other.writes() & wanted:
            wanted = wanted | other.reads()
            found.append(other)
    return found[::-1]


def _by_rows(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """``stages`` in an order in which a reduction follows those before over as many rows, with the maps it needs."""
    waiting = list(stages)
    ordered: list[Stage] = []
    while waiting:
        rows = _rows_wanted([s for s in ordered if s.kind != "map"][-1:])
        taken = waiting[:1]
        for number, stage in enumerate(waiting):
            if stage.kind == "map" or _rows_wanted([stage]) != rows:
                continue
            needed = _ancestors(stage, waiting[:number])
            if all(s.kind == "map" for s in needed):
                taken = [*needed, stage]
                break
        ordered += taken
        waiting = [s for s in waiting if not any(s is t for t in taken)]
    return tuple(ordered)


def group(
    region: LoweredRegion, fits: Callable[[Kernel], bool] = lambda kernel: True
) -> tuple[Kernel, ...]:
    """Cut the region's stages into kernels, in the order that takes fewer. ``fits``: what kernels of several may be.

    Raises:
        Unsupported: a single stage fits no kernel.
    """
    found = _group(region.stages, region.outputs, fits)
    ordered = _by_rows(region.stages)
    if len(found) == 1 or all(a is b for a, b in zip(ordered, region.stages, strict=True)):
        return found
    other = _group(ordered, region.outputs, fits)
    return other if len(other) < len(found) else found


def _group(
    stages: Sequence[Stage], outputs: Sequence[str], fits: Callable[[Kernel], bool]
) -> tuple[Kernel, ...]:
    """Kernels greedily as long as possible, in order."""
    kernels: list[Kernel] = []
    start = 0
    while start < len(stages):
        best: tuple[int, Kernel] | None = None
        for end in range(len(stages), start, -1):
            outside = {b for s in stages[end:] for b in s.reads()} | set(outputs)
            kernel = _try(stages[start:end], outside)
            if kernel is not None and (end == start + 1 or fits(kernel)):
                best = (end, kernel)
                break
        if best is None:
            raise Unsupported(f"stage {stages[start].name} fits no kernel form")
        kernels.append(best[1])
        start = best[0]
    return tuple(kernels)
