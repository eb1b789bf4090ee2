"""Scatters -> CUDA.

Either a block joins values in shared memory and writes each result once ("shared"), or all blocks join them in memory
by atomic operations ("global").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from cuda_agent_backend.codegen.cuda.common.text import indented, kernel_lines
from cuda_agent_backend.codegen.cuda.scatter.match import Operand, Produced, Scatter
from cuda_agent_backend.codegen.cuda.scatter.producers import Producer
from cuda_agent_backend.codegen.cuda.scatter.schedules import (
    ScatterParams,
    neighbours_at_once,
    scatter_schedules,
)
from cuda_agent_backend.codegen.ir.device import (
    WARP,
    CpuFacts,
    DeviceFacts,
    ceildiv,
    gpu_facts,
)
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.headers import header
from cuda_agent_backend.codegen.ir.kernel import Nests
from cuda_agent_backend.codegen.ir.parameters import require
from cuda_agent_backend.codegen.ir.printer import STORAGE_TYPES, half_types
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.plan.plan import Buffer, Launch, Plan
from sandbox.task.task import Task

MAX_BLOCKS = 2**31 - 1
HOW = {"sum": "ca::Sum", "amax": "ca::Largest", "amin": "ca::Smallest"}
EXACT_COUNTS = 1 << 24
"""Up to which float32 holds every whole number."""
GIVEN = "[&](int64_t o, int64_t k, int64_t f)"


@dataclass(frozen=True)
class CudaScatter:
    """A task that is a scatter (see ``api.Analysis``)."""

    task: Task
    form: Scatter
    values: Producer | None = None
    """What makes the values where they are not in memory."""
    family = "scatter"

    @staticmethod
    def of(task: Task, form: Scatter, cover: Callable[[Task], Nests]) -> CudaScatter:
        """Raises Unsupported where the values are not made each by itself, with the reason."""
        if not isinstance(form.source, Produced):
            return CudaScatter(task, form)
        return CudaScatter(task, form, Producer.of(form.source, *cover(form.source.task)))

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        facts = gpu_facts(device)
        found = map(Schedule.of, scatter_schedules(self.form, self._vector, facts))
        return [schedule for schedule in found if self._fits(schedule, facts)]

    @property
    def _vector(self) -> int:
        return neighbours_at_once(self.form, None if self.values is None else self.values.line)

    def _fits(self, schedule: Schedule, device: DeviceFacts) -> bool:
        try:
            self.emit(schedule, device)
        except Unsupported:
            return False
        return True

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        """Source and plan.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """
        given = schedule.only()
        params = require(ScatterParams, given)
        names = {"shared": ("tile",), "global": ("vector", "test")}[params.scatter]
        if set(given) != {"scatter", "threads", "flight", *names}:
            raise Unsupported(f"parameters {sorted(given)} of a scatter")
        if params.threads % WARP:
            raise Unsupported(f"{params.threads} threads")
        numbers = {name: value for name, value in given.items() if isinstance(value, int)}
        facts = gpu_facts(device)
        made = self._emit_shared if params.scatter == "shared" else self._emit_global
        return made(numbers, facts)

    def _emit_shared(self, given: dict[str, int], device: DeviceFacts) -> tuple[str, Plan]:
        form, tile = self.form, given["tile"]
        if not 1 <= tile <= form.inner or 4 * form.size * tile > device.shared_per_block_bytes:
            raise Unsupported(f"{form.size} places of {tile} do not fit shared memory")
        if form.count * tile + given["threads"] * given["flight"] >= 2**31:
            raise Unsupported("rows too long for a block")
        alike = isinstance(form.source, Operand) and form.source.input is None
        counts = form.how == "sum" and alike and form.count <= EXACT_COUNTS
        constants = {**given, "vector": 1, "counts": int(counts)}
        body = [
            "extern __shared__ __align__(16) unsigned char shared[];",
            self._self(),
            *self._readers(1),
            "ca::scatter_shared<sizes>(reinterpret_cast<unsigned*>(shared), out, index, self, source, kept);",
        ]
        blocks = form.outer * ceildiv(form.inner, tile)
        kernels = [("k0", body, blocks, 4 * form.size * tile)]
        return self._program(constants, kernels)

    def _emit_global(self, given: dict[str, int], device: DeviceFacts) -> tuple[str, Plan]:
        form = self.form
        if given["vector"] not in {1, self._vector} or given["test"] not in (0, 1):
            raise Unsupported(f"vectors of {given['vector']}")
        values = form.outer * form.count * form.inner
        results = form.outer * form.size * form.inner
        apart = form.index.steps[2] != 0 and form.inner != 1
        constants = {**given, "values": values, "results": results, "apart": int(apart)}
        begin = [self._self(), "ca::scatter_begin<sizes>(out, self);"]
        readers = self._readers(given["vector"])
        join = [*readers, "ca::scatter_global<sizes>(out, index, source, kept);"]
        each = given["threads"] * given["flight"] * given["vector"]
        kernels = [
            ("k0", begin, ceildiv(results, given["threads"]), 0),
            ("k1", join, ceildiv(values, each), 0),
        ]
        return self._program(constants, kernels)

    def _program(
        self, constants: dict[str, int], kernels: list[tuple[str, list[str], int, int]]
    ) -> tuple[str, Plan]:
        inputs = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(self.task.inputs)]
        buffers = (*inputs, Buffer("out", "output", self.task.output_specs[0]))
        given = [f"const {_storage(b)}* __restrict__ {b.name}" for b in inputs]
        lines, launches = self._sizes(constants), []
        threads = constants["threads"]
        for name, body, blocks, shared in kernels:
            if blocks > MAX_BLOCKS:
                raise Unsupported(f"{blocks} blocks")
            parameters = [*given, "float* __restrict__ out"]
            lines += kernel_lines(name, threads, parameters, indented(body))
            names = tuple(b.name for b in buffers)
            launches.append(Launch(name, (blocks, 1, 1), (threads, 1, 1), shared, names))
        prelude = [header(name) for name in ("cuda/common/prelude.cuh", "cuda/scatter/scatter.cuh")]
        halves = half_types(getattr(torch, b.spec.dtype) for b in inputs)
        return "\n".join([*halves, *prelude, *lines, ""]), Plan("cuda", buffers, tuple(launches))

    def _sizes(self, constants: dict[str, int]) -> list[str]:
        form = self.form
        own = {
            "count": form.count,
            "size": form.size,
            "inner": form.inner,
            "wraps": int(form.wraps),
        }
        own |= constants
        steps = {"index": form.index.steps, "out": form.out}
        return [
            "struct sizes {",
            f"  static constexpr int how = {HOW[form.how]};",
            *(f"  static constexpr {_type(n)} {name} = {n};" for name, n in own.items()),
            *(
                f"  static constexpr int64_t {name}_{part} = {n};"
                for name, three in steps.items()
                for part, n in zip(("outer", "step", "inner"), three, strict=True)
            ),
            "};",
        ]

    def _readers(self, vector: int) -> list[str]:
        """What values are read by: the index, vectors of them, and whether a value is kept."""
        form = self.form
        return [
            f"constexpr int L = {vector};",
            f"const auto* index = in{form.index.input};",
            f"const auto source = {GIVEN} {{",
            *(f"  {line}" for line in self._source(vector)),
            "};",
            f"const auto kept = {GIVEN} -> bool {{ return {_read(form.mask) if form.mask else 'true'}; }};",
        ]

    def _self(self) -> str:
        """What is there before."""
        return f"const auto self = {GIVEN} {{ return {_read(self.form.into)}; }};"

    def _source(self, vector: int) -> list[str]:
        source = self.form.source
        if self.values is not None:
            return self.values.lines(vector, f"(o * {self.form.count} + k) * {self.form.inner} + f")
        assert isinstance(source, Operand)
        if source.input is None:
            return [f"return ca::splat<float, L>({_read(source)});"]
        return [f"return ca::load<L>(in{source.input} + {_at(source)});"]


def _storage(buffer: Buffer) -> str:
    found = STORAGE_TYPES.get(getattr(torch, buffer.spec.dtype))
    if found is None:
        raise Unsupported(f"a scatter of {buffer.spec.dtype}")
    return found


def _type(number: int) -> str:
    return "int64_t" if number >= 2**31 else "int"


def _at(operand: Operand) -> str:
    return " + ".join(f"{n} * {s}" for n, s in zip("okf", operand.steps, strict=True))


def _read(operand: Operand) -> str:
    if operand.input is None:
        return f"float({operand.constant!r})"
    return f"in{operand.input}[{_at(operand)}]"
