"""Common subexpressions of several loops over a row -> an array over the row, worked out once.

Inductor writes a cheap chain of operations out wherever it is read, which saves memory traffic. A row that stays on the
chip needs no traffic: a division or an exponential that every pass repeats is then what takes the time. The array takes
the place of what was read for it, so that no more is kept than before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from cuda_agent_backend.codegen.cuda.common.parts import local_types
from cuda_agent_backend.codegen.ir.indices import row_major
from cuda_agent_backend.codegen.ir.kernel import Kernel, Local, RowStage
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.ssa import (
    GATHER,
    PLACE,
    PLACE_EXPR,
    Body,
    Instruction,
    Value,
    pruned,
)
from cuda_agent_backend.codegen.ir.value_types import value_type

COSTS = {
    **dict.fromkeys(("load", "local", "constant", "index_expr", "identity"), 0),
    **dict.fromkeys(("truediv", "div", "exp", "exp2", "sqrt", "reciprocal"), 8),
    **dict.fromkeys(
        ("sigmoid", "tanh", "erf", "erfc", "log", "log2", "log10", "log1p", "expm1"), 20
    ),
    **dict.fromkeys(("pow", "sin", "cos", "tan", "lgamma"), 75),
}
"""Instructions of an operation, about; 1 where nothing is said."""
LEAST = 6
"""Instructions that it must take to work a value out for it to be kept."""
UNKNOWN = (GATHER, PLACE, PLACE_EXPR)
"""Operations whose values are not compared."""


@dataclass
class _Numbers:
    """Numbers for values, the same for those that are worked out alike, and what is known of them."""

    known: dict[Any, int] = field(default_factory=dict)
    parts: list[frozenset[int]] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    varies: list[bool] = field(default_factory=list)

    def of(self, key: Any, op: str, operands: Sequence[int], varies: bool) -> int:
        if key not in self.known:
            number = self.known[key] = len(self.known)
            self.parts.append(frozenset([number]).union(*(self.parts[o] for o in operands)))
            self.ops.append(op)
            self.varies.append(varies or any(self.varies[o] for o in operands))
        return self.known[key]

    def cost(self, number: int, beside: Collection[int]) -> int:
        """Instructions, about, that a value takes beside those of others."""
        known = frozenset().union(*(self.parts[n] for n in beside))
        return sum(COSTS.get(self.ops[n], 1) for n in self.parts[number] - known)


def store_common_values(
    kernel: Kernel, points: int, region: LoweredRegion
) -> tuple[Kernel, frozenset[str]]:
    """``kernel`` with arrays of what its loops over rows of ``points`` elements repeat, and their names.

    As it is where scans read the row, or where more would be kept than the loads that repeat.
    """
    full = [s for s in kernel.stages if s.inner and s.points == points]
    if len(full) < 2 or any(s.kind == "scan" for s in kernel.stages):
        return kernel, frozenset()
    numbers = _Numbers()
    loops = [sympy.Symbol(f"along{n}", integer=True) for n in range(len(full[0].inner))]
    sizes = [n for _, n in full[0].inner]
    alike = [s for s in full if [n for _, n in s.inner] == sizes]
    of_stage = {s.name: _numbered(s, loops, kernel, numbers) for s in alike}
    chosen = _chosen([(s, of_stage[s.name]) for s in alike], numbers)
    if not chosen or len(alike) < len(full):
        return kernel, frozenset()
    names = {number: f"shared{n}" for n, number in enumerate(sorted(chosen))}
    return _with_arrays(kernel, of_stage, names, region)


def _numbered(
    stage: RowStage, loops: Sequence[sympy.Symbol], kernel: Kernel, numbers: _Numbers
) -> dict[Value, int]:
    """The numbers of a stage's values, but of those that are not compared and what is made of them."""
    names: dict[sympy.Symbol, sympy.Expr] = {
        own: common for (own, _), common in zip(stage.inner, loops, strict=True)
    }
    found: dict[Value, int] = {}
    for i in stage.body.instructions:
        values = [o for o in i.operands if isinstance(o, Value)]
        scalar = i.op != "local" or kernel.locals[str(i.buffer)].size == 1
        if (
            i.body is not None
            or i.op in UNKNOWN
            or not scalar
            or not all(v in found for v in values)
        ):
            continue
        operands = tuple(found[o] if isinstance(o, Value) else ("is", repr(o)) for o in i.operands)
        index = None if i.index is None else i.index.xreplace(names)
        key = (i.op, operands, i.dtype, i.buffer, index)
        varies = index is not None and bool(index.free_symbols & set(loops))
        found[i.result] = numbers.of(key, i.op, [found[v] for v in values], varies)
    return found


def _chosen(stages: Sequence[tuple[RowStage, dict[Value, int]]], numbers: _Numbers) -> set[int]:
    """Values that several stages work out and are worth keeping, those that save most first, as long as they take no
    more room than the loads that repeat."""
    counts = Counter(n for _, found in stages for n in set(found.values()))
    common = {n for n, count in counts.items() if count > 1 and numbers.varies[n]}
    left = {n for stage, found in stages for n in _wanted(stage, found, common)}
    room = sum(numbers.ops[n] == "load" for n in common)
    chosen: set[int] = set()
    while left:
        costs = {n: numbers.cost(n, beside=chosen) for n in left}
        best = max(left, key=lambda n: ((counts[n] - 1) * costs[n], -n))
        left.remove(best)
        more = {*chosen, best}
        if costs[best] >= LEAST and len(more) + _loads_left(stages, more, numbers) <= room:
            chosen = more
    return chosen


def _wanted(stage: RowStage, found: Mapping[Value, int], common: set[int]) -> Iterator[int]:
    """Common values of a stage that it needs for something else than common values."""
    for i in stage.body.walk():
        if found.get(i.result) in common:
            continue
        needed = [*i.operands, *(i.body.results if i.body is not None else ())]
        yield from (found[v] for v in needed if isinstance(v, Value) and found.get(v) in common)
    yield from (found[v] for v in stage.body.results if found.get(v) in common)


def _loads_left(
    stages: Sequence[tuple[RowStage, dict[Value, int]]], chosen: set[int], numbers: _Numbers
) -> int:
    """Loads along the row that several stages still do where they have the chosen values."""
    seen: Counter[int] = Counter()
    for stage, found in stages:
        body = pruned(_reading(stage, found, dict.fromkeys(chosen, "")))
        seen.update({found[i.result] for i in body.instructions if i.op == "load"})
    return sum(count > 1 and numbers.varies[n] for n, count in seen.items())


def _reading(stage: RowStage, found: Mapping[Value, int], names: Mapping[int, str]) -> Body:
    """The stage's body with values read from arrays by ``names``."""
    place = row_major(stage.inner)

    def one(i: Instruction) -> Instruction:
        name = names.get(found.get(i.result, -1))
        if name is None:
            return i
        return Instruction(i.result, "local", (), torch.float32, name, place)

    return Body([one(i) for i in stage.body.instructions], stage.body.results)


def _with_arrays(
    kernel: Kernel,
    of_stage: Mapping[str, dict[Value, int]],
    names: dict[int, str],
    region: LoweredRegion,
) -> tuple[Kernel, frozenset[str]]:
    """The kernel with the arrays, each made before the first stage that reads it."""
    types = local_types(kernel)
    stages: list[RowStage] = []
    locals_ = dict(kernel.locals)
    made: set[str] = set()
    for stage in kernel.stages:
        found = of_stage.get(stage.name, {})
        for value, number in found.items():
            name = names.get(number)
            if name is None or name in made:
                continue
            body = pruned(Body(stage.body.instructions, (value,)))
            if value_type(body, lambda b: region.buffers[b].dtype, types.__getitem__) != "float":
                names = {n: other for n, other in names.items() if other != name}
                continue
            made.add(name)
            locals_[name] = Local(name, stage.points)
            store = Store(name, row_major(stage.inner))
            stages.append(RowStage(name, "map", "", torch.float32, stage.inner, body, (), (store,)))
        stages.append(replace(stage, body=pruned(_reading(stage, found, names))))
    return Kernel(kernel.outer, tuple(stages), locals_), frozenset(made)
