"""The kernel of a loop over steps, for one way to deal its lanes to threads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import sympy

from cuda_agent_backend.codegen.cuda.common.lane_printer import LanePrinter, memory_printer
from cuda_agent_backend.codegen.cuda.common.narrow_integers import narrow_body_integers
from cuda_agent_backend.codegen.cuda.common.text import block, decompose, indented, kernel_text
from cuda_agent_backend.codegen.cuda.reroll.form import STEP, LaneStage, Load, StepLoop, StepState
from cuda_agent_backend.codegen.ir.device import WARP, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.headers import header
from cuda_agent_backend.codegen.ir.kernel import Dim
from cuda_agent_backend.codegen.ir.parameters import integer
from cuda_agent_backend.codegen.ir.printer import (
    COMPUTE_TYPES,
    STORAGE_TYPES,
    c_place,
    half_types,
    literal,
)
from cuda_agent_backend.codegen.ir.ssa import Instruction
from sandbox.plan.plan import Launch

PRELUDE = "cuda/common/prelude.cuh"
THREADS = (256, 128, 64, 32)
AHEAD = (8, 4, 16, 2, 1)
MOST_EACH, MOST_WRITTEN_OUT = 32, 64
"""Lanes of a thread, and lanes times steps that its text has."""
MOST_UNDER_WAY = 128
"""Values that a thread has asked for and not used yet: they are in registers."""
JOINED = ("float", "double", "int32_t", "int64_t")
"""Types that threads exchange."""


@dataclass(frozen=True)
class Deal:
    """How lanes are dealt."""

    each: int = integer("lanes of a thread, of those that are reduced", most=MOST_EACH)
    threads: int = integer("threads of a block", among=THREADS)
    ahead: int = integer(
        "steps that are written out one after another, whose loads are asked for that many steps before",
        among=AHEAD,
    )

    def used(self, form: StepLoop) -> int:
        """Threads that have lanes which are reduced together."""
        return points(form.reduced) // self.each

    def team(self, form: StepLoop) -> int:
        """Those with others beside them, a power of two."""
        return 1 << (self.used(form) - 1).bit_length()

    def blocks(self, form: StepLoop) -> int:
        return ceildiv(points(form.lanes) * self.team(form), self.threads)

    def check(self, form: StepLoop) -> None:
        """Raises Unsupported where the parameters do not fit each other or the loop."""
        if self.threads not in THREADS or self.ahead not in AHEAD:
            raise Unsupported(f"{self.threads} threads, {self.ahead} steps written out")
        reduced = points(form.reduced)
        if not 1 <= self.each <= MOST_EACH or reduced % self.each:
            raise Unsupported(f"{self.each} of {reduced} lanes for a thread")
        if self.team(form) > WARP or self.each * self.ahead > MOST_WRITTEN_OUT:
            raise Unsupported(f"{self.each} lanes of a thread, {self.ahead} steps written out")
        loads = sum(self.each if form.is_wide(index) else 1 for _, index in form.early)
        if loads * self.ahead > MOST_UNDER_WAY:
            raise Unsupported(f"{loads * self.ahead} values of a thread under way")


def points(dims: tuple[Dim, ...]) -> int:
    """Points of loops; for lanes, those that are reduced together counted once."""
    return math.prod(n for _, n in dims)


@dataclass(frozen=True)
class LoopWriter:
    """Writes the kernel ``name``. Values at hand are ``w_<buffer>[e]`` for each lane of a thread, or ``g_<buffer>``."""

    form: StepLoop
    deal: Deal
    name: str

    def launch(self) -> Launch:
        names = (self.form.names[b] for b in (*self._reads(), *self._writes()))
        given = (s.initial for s in self.form.states if isinstance(s.initial, str))
        grid = (self.deal.blocks(self.form), 1, 1)
        return Launch(self.name, grid, (self.deal.threads, 1, 1), 0, (*names, *given))

    def preludes(self) -> tuple[str, ...]:
        halves = half_types(b.dtype for b in self.form.region.buffers.values())
        return ("".join(halves), header(PRELUDE))

    def function(self) -> str:
        deal, form = self.deal, self.form
        body = [line for n, stage in enumerate(form.stages) for line in self._stage(n, stage)]
        ends = [] if form.steps % deal.ahead == 0 else [f"if (step >= {form.steps}) break;"]
        lines = [
            "constexpr int L = 1;",
            *self._lanes(),
            *self._begin(),
            *(f"{declared};" for declared in self._declared()),
            *self._written_out(self._loads("a")),
            f"for (int first = 0; first < {form.steps}; first += {deal.ahead}) {{",
            *indented(
                self._written_out(
                    [
                        "const int step = first + a;",
                        *ends,
                        self._at("step"),
                        *body,
                        *self._hand_on(),
                        *block(self._loads(f"step + {deal.ahead}")),
                    ]
                )
            ),
            "}",
        ]
        return kernel_text(self.name, deal.threads, self._parameters(), lines)

    def _at(self, step: str) -> str:
        """The place of a step in the dimension of steps."""
        place = f"{self.form.steps - 1} - {step}" if self.form.backward else step
        return f"const int {STEP} = {place};"

    def _written_out(self, lines: list[str]) -> list[str]:
        """Statements for each of the steps whose loads are under way."""
        head = f"for (int a = 0; a < {self.deal.ahead}; ++a) {{"
        return ["#pragma unroll", head, *indented(lines), "}"]

    @cached_property
    def _early(self) -> dict[Load, str]:
        """What steps ask for some steps before, with the names that it has."""
        return {load: f"p{number}" for number, load in enumerate(self.form.early)}

    def _declared(self) -> Iterator[str]:
        for (buffer, index), name in self._early.items():
            ctype = COMPUTE_TYPES[self.form.region.buffers[buffer].dtype]
            each = f"[{self.deal.each}]" if self.form.is_wide(index) else ""
            yield f"ca::vec<{ctype}, L> {name}[{self.deal.ahead}]{each}"

    def _loads(self, step: str) -> list[str]:
        """What ``step`` reads, or the last one where there is none that late, in the place of step ``a``."""
        if not self._early:
            return []
        once, wide = list[str](), list[str]()
        for (buffer, index), name in self._early.items():
            each, lines = ("[e]", wide) if self.form.is_wide(index) else ("", once)
            lines.append(f"{name}[a]{each} = ca::broadcast<L>(m_{buffer} + {c_place(index)});")
        late = f"const int late = {step} < {self.form.steps} ? {step} : {self.form.steps - 1};"
        return [late, self._at("late"), *once, *(self._each(wide) if wide else [])]

    def _kept(self, i: Instruction) -> str | None:
        if i.buffer is None or i.index is None or (i.buffer, i.index) not in self._early:
            return None
        return f"{self._early[i.buffer, i.index]}[a]{'[e]' if self.form.is_wide(i.index) else ''}"

    def _parameters(self) -> list[str]:
        buffers = self.form.region.buffers
        found = [
            f"const {STORAGE_TYPES[buffers[b].dtype]}* __restrict__ m_{b}" for b in self._reads()
        ]
        found += [f"{STORAGE_TYPES[buffers[b].dtype]}* __restrict__ m_{b}" for b in self._writes()]
        for number, state in enumerate(self.form.states):
            if isinstance(state.initial, str):
                found.append(f"const {STORAGE_TYPES[state.dtype]}* __restrict__ m_initial{number}")
        return found

    def _reads(self) -> list[str]:
        bodies = (stage.body for stage in self.form.stages)
        read = {i.buffer for body in bodies for i in body.accesses() if i.buffer is not None}
        return sorted(read)

    def _writes(self) -> list[str]:
        stores = {s.buffer for stage in self.form.stages for s in stage.stores}
        return sorted(b for b in stores if b in self.form.names)

    def _lanes(self) -> list[str]:
        """Whose lanes these are: threads beyond the last ones do what those do, and write nothing."""
        deal, form = self.deal, self.form
        team, groups = deal.team(form), points(form.lanes)
        return [
            f"const int at = int(blockIdx.x) * {deal.threads} + int(threadIdx.x);",
            f"const int rank = at % {team}, wanted = at / {team};",
            f"const bool here = wanted < {groups};",
            f"const int group = here ? wanted : {groups - 1};",
            f"const int own = rank < {deal.used(form)} ? rank : 0;",
            *decompose("group", form.lanes, "int"),
        ]

    def _each(self, lines: list[str]) -> list[str]:
        """Statements for each of the thread's lanes."""
        place = f"const int place = e * {self.deal.used(self.form)} + own;"
        inner = [place, *decompose("place", self.form.reduced, "int"), *lines]
        return [
            "#pragma unroll",
            f"for (int e = 0; e < {self.deal.each}; ++e) {{",
            *indented(inner),
            "}",
        ]

    def _begin(self) -> list[str]:
        """States before the first step."""
        lines = []
        for number, state in enumerate(self.form.states):
            ctype = COMPUTE_TYPES[state.dtype]
            lines.append(f"{ctype} w_{state.given}[{self.deal.each}];")
            lines += self._each([f"w_{state.given}[e] = {self._initial(number, state)};"])
        return lines

    def _initial(self, number: int, state: StepState) -> str:
        if not isinstance(state.initial, str):
            return literal(repr(state.initial), state.dtype)
        strides = [s for n, s in zip(state.spec.shape, state.spec.stride, strict=True) if n != 1]
        index = sympy.Add(*(s * stride for s, stride in zip(self._every(), strides, strict=True)))
        return f"ca::broadcast<L>(m_initial{number} + {c_place(index)}).v[0]"

    def _every(self) -> list[sympy.Symbol]:
        """All lanes' variables in the order of the states' dimensions."""
        names = (s for s, _ in (*self.form.lanes, *self.form.reduced))
        return sorted(names, key=lambda s: int(s.name[1:]))

    def _stage(self, number: int, stage: LaneStage) -> list[str]:
        loops = dict(((STEP, self.form.steps), *self.form.lanes, *self.form.reduced))
        body = narrow_body_integers(stage.body, loops, False)
        printer = self._printer(stage)
        value = f"s{number}v{body.results[0].number}"
        lines = printer.lines(body, f"s{number}v")
        if stage.kind == "map":
            return self._map(stage, lines, value, printer)
        return self._reduction(stage, lines, value, printer)

    def _printer(self, stage: LaneStage) -> LanePrinter:
        buffers = self.form.region.buffers

        def local(i: Instruction) -> str:
            assert i.buffer is not None
            ctype, name = COMPUTE_TYPES[buffers[i.buffer].dtype], self._variable(i.buffer)
            if not stage.wide and name.startswith("w_"):
                raise Unsupported("a loop that reads single lanes of what is reduced")
            return f"ca::splat<{ctype}, L>({name})"

        return memory_printer(self.form.region, local, kept=self._kept)

    def _variable(self, buffer: str) -> str:
        return f"w_{buffer}[e]" if buffer in self._wide() else f"g_{buffer}"

    def _wide(self) -> set[str]:
        """Buffers of which each lane has an element."""
        maps = (stage for stage in self.form.stages if stage.kind == "map" and stage.wide)
        return {s.buffer for stage in maps for s in stage.stores} | {
            state.given for state in self.form.states
        }

    def _map(
        self, stage: LaneStage, lines: list[str], value: str, printer: LanePrinter
    ) -> list[str]:
        (store,) = stage.stores
        ctype = COMPUTE_TYPES[stage.dtype]
        name = self._variable(store.buffer)
        write = []
        if store.buffer in self.form.names:
            stored = printer.store(store.buffer, store.index, f"ca::splat<{ctype}, L>({name})")
            first = f"here && rank {f'< {self.deal.used(self.form)}' if stage.wide else '== 0'}"
            write = [f"if ({first}) {stored}"]
        made = f"{name} = ca::to<{ctype}>({value}).v[0];"
        if not stage.wide:
            return [f"{ctype} {name};", *block([*lines, made]), *write]
        declared = f"{ctype} w_{store.buffer}[{self.deal.each}];"
        return [declared, *self._each([*lines, made, *write])]

    def _reduction(
        self, stage: LaneStage, lines: list[str], value: str, printer: LanePrinter
    ) -> list[str]:
        (store,) = stage.stores
        name, ctype = f"g_{store.buffer}", COMPUTE_TYPES[stage.dtype]
        if ctype not in JOINED:
            raise Unsupported(f"a reduction of {ctype} between threads")
        team, join = self.deal.team(self.form), f"ca::scan_{stage.combine}"
        joined = f"{name} = {join}::join({name}, ca::to<{ctype}>({value}).v[0]);"
        if self.deal.used(self.form) < team:
            joined = f"if (rank < {self.deal.used(self.form)}) {joined}"
        out = [f"{ctype} {name} = {join}::identity<{ctype}>();", *self._each([*lines, joined])]
        if team > 1:
            other = f"__shfl_xor_sync(0xffffffffu, {name}, o, {team})"
            out += [
                "#pragma unroll",
                f"for (int o = {team // 2}; o > 0; o /= 2) {name} = {join}::join({name}, {other});",
            ]
        if store.buffer in self.form.names:
            stored = printer.store(store.buffer, store.index, f"ca::splat<{ctype}, L>({name})")
            out.append(f"if (here && rank == 0) {stored}")
        return out

    def _hand_on(self) -> list[str]:
        states = self.form.states
        return self._each([f"w_{s.given}[e] = {self._variable(s.made)};" for s in states])
