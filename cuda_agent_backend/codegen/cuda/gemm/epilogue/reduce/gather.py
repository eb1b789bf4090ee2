"""Gathers from a GEMM that is reduced in its tiles: one result of each line, at a place that data says.

A target's logit is such a result. The tile that has it stores it, and what gathered it loads it from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.stages import closure
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, RowStage
from cuda_agent_backend.codegen.ir.region import Store
from cuda_agent_backend.codegen.ir.ssa import GATHER, PLACE, Body, Instruction, Value, place_symbol

GATHERED = place_symbol(0)
KIND = "pick"
"""Of a stage whose body says where in its line the result is that it stores."""


@dataclass(frozen=True)
class Pick:
    """Stage ``stage`` of kernel ``kernel`` gathers results at places, `GATHERED`, within a line of ``size``."""

    kernel: int
    stage: RowStage
    gather: Instruction
    size: int

    def access(self, kernel: Kernel) -> tuple[sympy.Expr, tuple[Dim, ...]]:
        """The index, and the loops that it is over: the stage's, and that of the place."""
        assert self.gather.index is not None
        return self.gather.index, (*kernel.outer, *self.stage.inner, (GATHERED, self.size))

    def in_tile(
        self, names: Mapping[sympy.Symbol, sympy.Symbol], buffer: str, index: sympy.Expr
    ) -> RowStage:
        """The stage that stores the result in ``buffer`` at ``index``, in the product's symbols."""
        (place,) = self.gather.operands
        made = {i.result: i for i in self.stage.body.instructions}
        needed = closure(place, made)
        kept = [i for i in self.stage.body.instructions if i.result in needed]
        body = Body(kept, (place,)).substitute(dict(names))
        store = Store(buffer, index)
        return RowStage(buffer, KIND, "", self.stage.dtype, (), body, (store,), ())

    def loaded(self, kernel: Kernel, buffer: str, index: sympy.Expr) -> Kernel:
        """``kernel`` with the gather as a load of ``buffer`` at ``index``, in its own symbols."""

        def one(i: Instruction) -> Instruction:
            if i.result != self.gather.result:
                return i
            return Instruction(i.result, "load", buffer=buffer, index=index)

        stages = (
            replace(s, body=Body([one(i) for i in s.body.instructions], s.body.results))
            if s.name == self.stage.name
            else s
            for s in kernel.stages
        )
        return replace(kernel, stages=tuple(stages))


def picks_in(number: int, kernel: Kernel, buffer: str) -> list[Pick]:
    """What stages of kernel ``number`` gather of ``buffer``. Raises Unsupported where it is not one of a line."""
    gathers = [
        (s, i)
        for s in kernel.stages
        for i in s.body.walk()
        if i.buffer == buffer and i.op == GATHER
    ]
    if len({s.name for s, _ in gathers}) < len(gathers):
        raise Unsupported("several results that are picked at a time")
    return [_pick(number, stage, gather) for stage, gather in gathers]


def _pick(number: int, stage: RowStage, gather: Instruction) -> Pick:
    made = {i.result: i for i in stage.body.instructions}
    if gather.result not in made or len(gather.operands) != 1:
        raise Unsupported("a result that is picked under a mask, or of several loops")
    place = made[gather.operands[0]]
    if place.op != PLACE or any(i.op == "local" for i in _of(place.result, made)):
        raise Unsupported("a result at a place that is made in the kernel")
    return Pick(number, stage, gather, int(place.operands[1]))


def places_read(pick: Pick) -> set[str]:
    """Buffers that say where the result is."""
    made = {i.result: i for i in pick.stage.body.instructions}
    found = _of(pick.gather.operands[0], made)
    return {i.buffer for i in found if i.buffer is not None}


def _of(value: Value, made: dict[Value, Instruction]) -> list[Instruction]:
    return [j for v in closure(value, made) for j in Body([made[v]]).walk()]
