"""The stages of a loop's step as work at lanes: which of a stage's loops are steps, and which are lanes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import sympy

from cuda_agent_backend.codegen.cuda.reroll.form import STEP, LaneStage, StepState
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient, simplify, with_indices
from cuda_agent_backend.codegen.ir.kernel import Dim
from cuda_agent_backend.codegen.ir.region import Buffer, LoweredRegion, Stage
from cuda_agent_backend.codegen.ir.ssa import Body
from cuda_agent_backend.codegen.ir.value_types import WIDE

REDUCTIONS = ("sum", "prod", "max", "min")
"""What may join the lanes of a step."""


class Lanes:
    """Says of each stage which loops are steps and lanes, by how it reads what is at hand."""

    def __init__(self, region: LoweredRegion, states: Sequence[StepState], steps: int) -> None:
        self.region, self.states = region, states
        shapes = {region.buffers[s.given].shape[1:] for s in states}
        if len(shapes) != 1:
            raise Unsupported("a loop with states of several shapes")
        (shape,) = shapes
        sizes = [n for n in shape if n != 1]
        symbols = [sympy.Symbol(f"l{n}", integer=True, nonnegative=True) for n in range(len(sizes))]
        self.lanes: tuple[Dim, ...] = tuple(zip(symbols, sizes, strict=True))
        self.dims: tuple[Dim, ...] = ((STEP, steps), *self.lanes)
        self.reduced: frozenset[sympy.Symbol] = frozenset()
        self.at_hand: dict[str, tuple[tuple[sympy.Symbol, int], ...]] = {}
        """Of each buffer that is at hand the dimensions with their strides."""
        for state in states:
            self.at_hand[state.given] = _strides(region.buffers[state.given], self.dims)

    def found(self) -> tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[LaneStage, ...]]:
        """Lanes that are not reduced, those that are, and the stages."""
        extents = (b.extent for b in self.region.buffers.values())
        if max(*extents, math.prod(n for _, n in self.dims)) >= WIDE:
            raise Unsupported("a loop over more than 31 bits number")
        mapped = [(stage, self._mapping(stage)) for stage in self.region.stages]
        for state in self.states:
            own = _strides(self.region.buffers[state.made], self.dims)
            if dict(self.at_hand[state.made]) != dict(own):
                raise Unsupported("a loop whose steps take over from other lanes")
        stages = tuple(self._stage(stage, change) for stage, change in mapped)
        lanes = tuple(d for d in self.lanes if d[0] not in self.reduced)
        return lanes, tuple(d for d in self.lanes if d[0] in self.reduced), stages

    def _mapping(self, stage: Stage) -> dict[sympy.Symbol, sympy.Symbol]:
        """The steps and lanes that a stage's loops are; notes what it makes as at hand."""
        loops = (*stage.outer, *stage.inner)
        change: dict[sympy.Symbol, sympy.Symbol] = {}
        for i in stage.body.accesses():
            if i.buffer in self.at_hand:
                if i.op != "load" or i.index is None:
                    raise Unsupported("a loop that reads a state at a place that depends on data")
                for loop, symbol in self._places(i.buffer, simplify(i.index, loops), loops):
                    if change.setdefault(loop, symbol) != symbol:
                        raise Unsupported("a loop that reads a state at several places")
        if len(set(change.values())) != len(loops) or len(change) != len(loops):
            raise Unsupported("a loop whose steps do something beside the states")
        self._reduces(stage, change)
        for store in stage.stores:
            index = simplify(store.index, loops)
            places = [(change[loop], coefficient(index, loop)) for loop, _ in stage.outer]
            if any(step is None for _, step in places) or index.subs(dict.fromkeys(change, 0)) != 0:
                raise Unsupported("a loop that writes out of order")
            self.at_hand[store.buffer] = tuple((symbol, int(step or 0)) for symbol, step in places)
        return change

    def _places(
        self, buffer: str, index: sympy.Expr, loops: Sequence[Dim]
    ) -> Iterator[tuple[sympy.Symbol, sympy.Symbol]]:
        """The loops by which a buffer that is at hand is read, with what each stands for."""
        sizes = dict(self.dims)
        for symbol, stride in self.at_hand[buffer]:
            own = [s for s, n in loops if n == sizes[symbol] and coefficient(index, s) == stride]
            if len(own) != 1:
                raise Unsupported("a loop that reads what is made at another lane or step")
            index = sympy.expand(index - stride * own[0])
            yield own[0], symbol
        if index != 0:
            raise Unsupported("a loop that reads what is made at another lane or step")

    def _reduces(self, stage: Stage, change: Mapping[sympy.Symbol, sympy.Symbol]) -> None:
        """Note which lanes are reduced; all reductions must join the same ones."""
        if stage.kind == "map":
            return
        if stage.kind != "reduce" or stage.combine not in REDUCTIONS:
            raise Unsupported(f"a loop with {stage.combine or stage.kind} in its steps")
        reduced = frozenset(change[s] for s, _ in stage.inner)
        if STEP in reduced or len(change) != len(self.dims):
            raise Unsupported("a loop with a reduction over steps, or over a part of the lanes")
        if self.reduced and reduced != self.reduced:
            raise Unsupported("a loop with reductions over several dimensions")
        self.reduced = reduced

    def _stage(self, stage: Stage, change: Mapping[sympy.Symbol, sympy.Symbol]) -> LaneStage:
        lanes = set(change.values()) - {STEP}
        wide = lanes >= self.reduced
        every = {s for s, _ in self.lanes}
        if STEP not in change.values() or lanes != (every if wide else every - self.reduced):
            raise Unsupported("a loop with work for a part of the lanes")
        body = with_indices(stage.body, dict(change), self.dims)
        body = _at_hand(body, self.at_hand)
        stores = tuple(
            replace(s, index=sympy.expand(s.index.xreplace(dict(change)))) for s in stage.stores
        )
        return LaneStage(stage.kind, stage.combine, stage.dtype, body, stores, wide)


def _strides(buffer: Buffer, dims: Sequence[Dim]) -> tuple[tuple[sympy.Symbol, int], ...]:
    strides = [s for n, s in zip(buffer.shape, buffer.stride, strict=True) if n != 1]
    return tuple((symbol, s) for (symbol, _), s in zip(dims, strides, strict=True))


def _at_hand(body: Body, names: Mapping[str, object]) -> Body:
    """The body with what is at hand in the place of loads."""

    def one(b: Body) -> Body:
        made = []
        for i in b.instructions:
            inner = one(i.body) if i.body is not None else None
            op = "local" if i.op == "load" and i.buffer in names else i.op
            made.append(replace(i, op=op, body=inner))
        return Body(made, b.results)

    return one(body)
