"""What both ways to lay vector lanes over a kernel share: bodies of stages, and local reads and stores.

`inner_lanes` and `outer_lanes` are the two ways.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import sympy
import torch

from cuda_agent_backend.codegen.analysis.cancellation import WIDE_SUM, mark_cancelling
from cuda_agent_backend.codegen.analysis.equal_terms import round_equal_terms
from cuda_agent_backend.codegen.analysis.passes import (
    Pass,
    expand_welford,
    mark_means,
    passes,
    scratch,
)
from cuda_agent_backend.codegen.analysis.variances import MEAN, mark_variances
from cuda_agent_backend.codegen.cpu.params import LoopNestParams
from cuda_agent_backend.codegen.ir.indices import stays_within
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, RowStage
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES, Printer, c_index
from cuda_agent_backend.codegen.ir.region import ARG_REDUCTIONS, LoweredRegion, Store
from cuda_agent_backend.codegen.ir.ssa import Instruction
from cuda_agent_backend.codegen.ir.value_types import value_type

TRUTH = "int32_t"
"""What truth values are compared as."""
MEAN_RUNS = 4
"""How many times shorter the runs of a sum are whose mean is subtracted from every term."""
FAR = "far"
"""The accumulator of a mean that is worked out again."""


@dataclass
class LoopNestWriter(ABC):
    """Writes one kernel, inside a parallel region. ``lines`` is the growing source."""

    kernel: Kernel
    region: LoweredRegion
    params: LoopNestParams
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        means = mark_variances(mark_means(expand_welford(self.kernel)))
        self.kernel = self._marked(round_equal_terms(mark_cancelling(means)))
        self.passes = passes(self.kernel)
        self.scratch = scratch(self.kernel, self.passes)
        self._types = {
            s.buffer: COMPUTE_TYPES[st.dtype] for st in self.kernel.stages for s in st.local_stores
        }
        self._lane: sympy.Symbol | None = None
        self._forwarded: dict[str, str] = {}
        # memory that this kernel reads back should stay in the caches
        self._read_back = {i.buffer for s in self.kernel.stages for i in s.body.accesses()}

    @abstractmethod
    def emit(self) -> list[str]:
        """The kernel's statements."""

    def _marked(self, kernel: Kernel) -> Kernel:
        """``kernel`` with the sums in double that this way to lay lanes wants so."""
        return kernel

    @abstractmethod
    def _gather_index(self, index: sympy.Expr) -> str:
        """The places in a local array of all lanes, as a vector."""

    @abstractmethod
    def _read(self, name: str, scalar: bool, index: sympy.Expr) -> str:
        """A local variable or array at ``index`` in its row, as a vector."""

    @abstractmethod
    def _write(self, name: str, ctype: str, scalar: bool, index: sympy.Expr, value: str) -> str:
        """The statement that stores a vector there."""

    def _printer(self, indent: str = "") -> Printer:
        return Printer(
            self._lane,
            lambda b: b,
            self._local_read,
            lambda b: self.region.buffers[b].dtype,
            indent,
            local_masked=self._local_read_masked,
        )

    def _local_read_masked(self, i: Instruction, mask: str) -> str:
        """As `_local_read`, for an index that may leave the array where ``mask`` does not hold."""
        assert i.buffer is not None and i.index is not None
        loops = [dim for stage in self.kernel.stages for dim in stage.inner]
        if i.buffer in self._forwarded or stays_within(
            i.index, self.kernel.locals[i.buffer].size, loops
        ):
            return self._local_read(i)
        return f"ca::gather_masked<L>(l_{i.buffer}, {self._gather_index(i.index)}, {mask})"

    def _local_read(self, i: Instruction) -> str:
        assert i.buffer is not None and i.index is not None
        if i.buffer in self._forwarded:
            return self._forwarded[i.buffer]
        return self._read(f"l_{i.buffer}", self.kernel.locals[i.buffer].size == 1, i.index)

    def _local_store(self, s: Store, value: str) -> str:
        scalar = self.kernel.locals[s.buffer].size == 1
        return self._write(f"l_{s.buffer}", self._types[s.buffer], scalar, s.index, value)

    def _memory_stores(self, stage: RowStage, value: str) -> list[str]:
        printer = self._printer()
        return [
            printer.store(
                s.buffer,
                s.index,
                value,
                stream=bool(self.params.stream) and s.buffer not in self._read_back,
            )
            for s in stage.stores
        ]

    def _all_stores(self, stage: RowStage, value: str) -> list[str]:
        kept = [s for s in stage.local_stores if s.buffer in self.scratch]
        return [*self._memory_stores(stage, value), *[self._local_store(s, value) for s in kept]]

    def _body(self, p: Pass, at_end: Callable[[int, RowStage, str], list[str]]) -> list[str]:
        """Bodies of all stages in order; ``at_end(number, stage, value)`` says what becomes of each value."""
        self._forwarded = {}
        out: list[str] = []
        for number, stage in enumerate(p.stages):
            prefix = f"s{number}v"
            out += self._printer().lines(stage.body, prefix)
            value = f"{prefix}{stage.body.results[0].number}"
            out += at_end(number, stage, value)
            if stage.kind == "map":
                cast = [s.buffer for s in stage.local_stores]
                for buffer in cast:
                    self._forwarded[buffer] = f"ca::to<{self._types[buffer]}>({value})"
        self._forwarded = {}
        return out

    def _result(
        self, p: Pass, number: int, total: str, loops: Callable[[Pass, list[str]], list[str]]
    ) -> list[str]:
        """The statement that makes ``r<number>`` of a reducing stage whose accumulators come to ``total``.

        A mean that is not finite is worked out again. loops: puts a body into the loops of a pass.
        """
        stage = p.stages[number]
        if stage.combine != MEAN:
            return [f"const auto r{number} = {total};"]
        again = loops(p, self._values_again(p, number))
        start = f"const auto r{number} = ca::mean_of({total}, {stage.points}, [&](auto& {FAR}) {{"
        return [start, *("  " + line for line in again), "});"]

    def _loops(self, dims: Sequence[Dim], pad: str) -> None:
        for symbol, size in dims:
            self.lines.append(f"{pad}for (int64_t {symbol} = 0; {symbol} < {size}; ++{symbol})")

    def _values_again(self, p: Pass, number: int) -> list[str]:
        """What makes the values of one stage of a pass and adds them to `FAR`. Nothing is stored."""

        def at_end(current: int, stage: RowStage, value: str) -> list[str]:
            return [f"{FAR}.update({value});"] if current == last else []

        before = tuple(stage for stage in p.stages[:number] if stage.kind == "map")
        last = len(before)
        return self._body(Pass((*before, p.stages[number])), at_end)

    def _accumulator(self, stage: RowStage) -> str:
        ctype = COMPUTE_TYPES[stage.dtype]
        if stage.combine in (*ARG_REDUCTIONS, "any"):
            ctype = TRUTH if self._places_truths(stage) else self._given_type(stage)
        return f"ca::{'mean_sum' if stage.combine == MEAN else stage.combine}_acc<{ctype}"

    def _kept(self, stage: RowStage, value: str) -> str:
        """A stage's value as its accumulator takes it."""
        return f"ca::to<{TRUTH}>({value})" if self._places_truths(stage) else value

    def _places_truths(self, stage: RowStage) -> bool:
        """Whether truth values are compared: their lanes are 0 and -1, the true one the smaller."""
        return stage.combine in ARG_REDUCTIONS and self._given_type(stage) == "bool"

    def _given_type(self, stage: RowStage) -> str:
        """The type of a stage's values, which is another than the result's where that is a place or a truth."""
        dtype_of = self.region.buffers.__getitem__
        return value_type(stage.body, lambda b: dtype_of(b).dtype, self._types.__getitem__)

    def _parallel_for(self, dims: Sequence[Dim]) -> None:
        if not dims:
            self.lines.append("  #pragma omp single")
            return
        self.lines.append(f"  #pragma omp for schedule(static) collapse({len(dims)})")
        self._loops(dims, "  ")


def with_wide_windows(kernel: Kernel, is_wide: Callable[[RowStage], bool]) -> Kernel:
    """``kernel`` with sums of float32 over several loops, those that ``is_wide``, in double.

    Of a sum in runs, one for each row of a window, a run may overflow where eager, which goes through the window in one
    run, has met an infinity before: the two then make a NaN that eager has not.
    """

    def one(stage: RowStage) -> RowStage:
        sums = stage.combine == "sum" and stage.dtype == torch.float32
        window = sums and len(stage.inner) > 1 and is_wide(stage)
        return replace(stage, combine=WIDE_SUM) if window else stage

    return replace(kernel, stages=tuple(map(one, kernel.stages)))


def shortened(p: Pass) -> int:
    """By how much the runs of a pass's sums are shorter than usual."""
    return MEAN_RUNS if any(stage.combine in ("mean_sum", MEAN) for stage in p.stages) else 1


def position(stage: RowStage) -> str:
    """Row-major number of a point within the row, in logical order."""
    total, stride = sympy.S.Zero, 1
    for symbol, size in reversed(stage.inner):
        total += symbol * stride
        stride *= size
    return c_index(total)
