"""Recurrent layers -> CUDA: for each layer one product, and one kernel that goes through all steps.

The steps follow one another, so what counts is how long one takes. The recurrent weights never move: a cluster of
blocks holds them in its registers, and in shared memory where those do not suffice, for a few sequences of the batch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cuda_agent_backend.codegen.cuda.common.text import kernel_lines
from cuda_agent_backend.codegen.cuda.recurrent.match import (
    LAST_CELL,
    LAST_HIDDEN,
    OUTPUT,
    Recurrent,
    Weights,
)
from cuda_agent_backend.codegen.cuda.recurrent.schedules import (
    PRODUCT_THREADS,
    RecurrentBlocks,
    recurrent_schedules,
)
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts, ceildiv, gpu_facts
from cuda_agent_backend.codegen.ir.headers import header
from cuda_agent_backend.codegen.ir.parameters import require
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.ir.value_types import WIDE
from sandbox.plan.plan import Buffer, Launch, Plan, Scalar
from sandbox.plan.steps import Argument
from sandbox.task.task import Task, TensorSpec

PRELUDE = ("cuda/common/prelude.cuh", "cuda/common/barrier.cuh", "cuda/recurrent/recurrent.cuh")
UNITS = {"lstm": "lstm_unit", "gru": "gru_unit", "rnn_tanh": "tanh_unit", "rnn_relu": "relu_unit"}
RESULTS = {OUTPUT: "out", LAST_HIDDEN: "last_h", LAST_CELL: "last_c"}


@dataclass(frozen=True)
class CudaRecurrent:
    """A task that is recurrent layers, as two kernels for each (see ``api.Analysis``)."""

    task: Task
    form: Recurrent
    family = "recurrent layers"

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        found = recurrent_schedules(self.form, gpu_facts(device))
        return [Schedule.of(asdict(blocks)) for blocks in found]

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        """Source and plan.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """
        blocks = require(RecurrentBlocks, schedule.only())
        blocks.check(self.form, gpu_facts(device))
        return _Writer(self.task, self.form, blocks).written()


@dataclass(frozen=True)
class _Writer:
    """Source and plan: kernels ``first`` and ``next`` are the products, ``last`` and ``inner`` go through the steps."""

    task: Task
    form: Recurrent
    blocks: RecurrentBlocks

    def written(self) -> tuple[str, Plan]:
        source = [*_prelude(), *self._product("first"), *self._scan("last")]
        if self.form.layers > 1:
            source += [*self._product("next"), *self._scan("inner")]
        steps = [launch for layer in range(self.form.layers) for launch in self._layer(layer)]
        return "\n".join([*source, ""]), Plan("cuda", self._buffers(), tuple(steps))

    def _buffers(self) -> tuple[Buffer, ...]:
        form = self.form
        inputs = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(self.task.inputs)]
        outputs = [Buffer(f"out{i}", "output", s) for i, s in enumerate(self.task.output_specs)]
        hidden = form.length * form.batch * form.directions * form.units
        temporaries = [_temporary("added", hidden * form.gates)]
        if form.layers > 1:
            temporaries.append(_temporary("between", hidden))
        return (*inputs, *outputs, *temporaries)

    def _layer(self, layer: int) -> tuple[Launch, Launch]:
        first, last = layer == 0, layer == self.form.layers - 1
        product = self._launch_product("first" if first else "next", layer)
        return product, self._launch_scan("last" if last else "inner", layer)

    # -- what the input adds ----------------------------------------------------------------------------------------

    def _launch_product(self, name: str, layer: int) -> Launch:
        form, tile = self.form, self.blocks.tile
        grid = (
            ceildiv(form.length * form.batch, tile),
            ceildiv(form.gates * form.units, tile),
            form.directions,
        )
        source = f"in{form.source.input}" if layer == 0 else "between"
        weights = [f"in{i}" for of in form.weights[layer] for i in _of_product(of)]
        arguments = (source, *weights, "added")
        shared = self.blocks.product_bytes
        return Launch(name, grid, (PRODUCT_THREADS, 1, 1), shared, arguments)

    def _product(self, name: str) -> list[str]:
        """The product's sizes and its kernel."""
        form, directions = self.form, range(self.form.directions)
        members = ["weights", *(["inner_bias", "hidden_bias"] if form.biased else [])]
        given = ["x", *(f"{member}{d}" for d in directions for member in members)]
        sums = form.length * form.batch * form.gates * form.units
        body = [
            "  extern __shared__ __align__(16) unsigned char shared[];",
            f"  ca::project<{name}_sizes> one;",
            "  one.x = x;",
            *(f"  one.{member} = {_by('blockIdx.z', member, directions)};" for member in members),
            f"  one.sums = sums + int64_t(blockIdx.z) * {sums};",
            "  one.run(reinterpret_cast<float*>(shared));",
        ]
        parameters = [*_pointers(given), "float* __restrict__ sums"]
        return [
            *self._product_sizes(name),
            *kernel_lines(name, f"{PRODUCT_THREADS}, 2", parameters, body),
        ]

    def _product_sizes(self, name: str) -> list[str]:
        form, first = self.form, name == "first"
        width = form.directions * form.units
        depth = form.features if first else width
        time, batch, feature = form.source.steps if first else (form.batch * width, width, 1)
        rows, columns = form.length * form.batch, form.gates * form.units
        spanned = form.length * time + form.batch * batch + depth * feature
        reach = max(spanned, rows * columns, columns * depth)
        return [
            f"struct {name}_sizes {{",
            f"  typedef {'int64_t' if reach >= WIDE else 'int'} index;",
            f"  static constexpr int each = {self.blocks.tile // 16}, batch = {form.batch}, columns = {columns};",
            f"  static constexpr int depth = {depth};",
            f"  static constexpr int folded = {2 * form.units if form.kind == 'gru' else columns};",
            f"  static constexpr int rows = {rows};",
            f"  static constexpr index x_time = {time}, x_batch = {batch}, x_feature = {feature};",
            f"  static constexpr bool biased = {_word(form.biased)};",
            "};",
        ]

    # -- the steps --------------------------------------------------------------------------------------------------

    def _members(self, name: str) -> list[tuple[str, list[str]]]:
        """What kernel ``name`` reads, and for each of it the parameters, one or one for each direction."""
        form, directions = self.form, range(self.form.directions)
        members = [("added", ["added"]), ("weights", [f"weights{d}" for d in directions])]
        if self._has_bias:
            members.append(("hidden_bias", [f"hidden_bias{d}" for d in directions]))
        members.append(("h", ["h"]))
        return [*members, ("c", ["c"])] if form.cell else members

    @property
    def _has_bias(self) -> bool:
        """Whether a bias is left for the steps: within the reset gate's product."""
        return self.form.kind == "gru" and self.form.biased

    def _written(self, name: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        """What kernel ``name`` writes: buffers and steps by member."""
        form = self.form
        found = {RESULTS[n]: (f"out{place}", steps) for n, (place, steps) in form.results}
        if name == "inner":
            width = form.directions * form.units
            found["out"] = ("between", (form.batch * width, width, 1))
        return found

    def _launch_scan(self, name: str, layer: int) -> Launch:
        form, blocks, written = self.form, self.blocks, self._written(name)
        weights = [f"in{of.hidden}" for of in form.weights[layer]]
        biases = [f"in{of.hidden_bias}" for of in form.weights[layer]] if self._has_bias else []
        states = [f"in{operand.input}" for operand in (form.hidden, form.cell) if operand]
        outputs = [buffer for buffer, _ in written.values()]
        arguments: list[Argument] = ["added", *weights, *biases, *states, *outputs]
        ranks = blocks.ranks
        return Launch(
            name,
            (blocks.clusters(form) // form.directions * ranks, form.directions, 1),
            (blocks.threads, 1, 1),
            blocks.shared_bytes(form),
            (*arguments, Scalar("i32", layer)),
            (ranks, 1, 1) if ranks > 1 else None,
        )

    def _scan(self, name: str) -> list[str]:
        """The sizes of the kernel that goes through the steps, and the kernel."""
        members, written = self._members(name), self._written(name)
        given = [parameter for _, parameters in members for parameter in parameters]
        body = [
            "  extern __shared__ __align__(16) unsigned char shared[];",
            f"  ca::recurrent_scan<{name}_sizes> one;",
            "  one.layer = layer;",
            *(
                f"  one.{member} = {_by('blockIdx.y', member, range(len(names))) if names[0] != member else member};"
                for member, names in members
            ),
            *(f"  one.{member} = {member};" for member in written),
            "  one.run(reinterpret_cast<float*>(shared));",
        ]
        parameters = [
            *_pointers(given),
            *(f"float* __restrict__ {m}" for m in written),
            "int layer",
        ]
        return [
            *self._scan_sizes(name),
            *kernel_lines(name, f"{self.blocks.threads}, 1", parameters, body),
        ]

    def _scan_sizes(self, name: str) -> list[str]:
        form, blocks, written = self.form, self.blocks, self._written(name)
        cell = form.cell.steps if form.cell else (0, 0, 0)
        return [
            f"struct {name}_sizes {{",
            f"  typedef ca::{UNITS[form.kind]} unit;",
            f"  static constexpr int steps = {form.length}, batch = {form.batch}, units = {form.units};",
            f"  static constexpr int directions = {form.directions}, ranks = {blocks.ranks}, rows = {blocks.rows};",
            f"  static constexpr int own = {blocks.own(form)}, threads = {blocks.threads};",
            f"  static constexpr int splits = {blocks.splits}, kept = {blocks.kept};",
            f"  static constexpr bool has_cell = {_word(form.cell is not None)};",
            f"  static constexpr bool has_bias = {_word(self._has_bias)};",
            *(
                f"  static constexpr bool has_{m} = {_word(m in written)};"
                for m in RESULTS.values()
            ),
            *_steps("h", ("layer", "batch", "unit"), form.hidden.steps),
            *_steps("c", ("layer", "batch", "unit"), cell),
            *(
                line
                for member in RESULTS.values()
                for line in _steps(
                    member,
                    ("time" if member == "out" else "layer", "batch", "unit"),
                    written[member][1] if member in written else (0, 0, 0),
                )
            ),
            "};",
        ]


def _prelude() -> list[str]:
    return [header(name) for name in PRELUDE]


def _temporary(name: str, size: int) -> Buffer:
    return Buffer(name, "temporary", TensorSpec("float32", (size,), (1,)))


def _of_product(weights: Weights) -> list[int]:
    found = (weights.inner, weights.inner_bias, weights.hidden_bias)
    return [number for number in found if number is not None]


def _word(value: bool) -> str:
    """In C."""
    return "true" if value else "false"


def _pointers(names: list[str]) -> list[str]:
    return [f"const float* __restrict__ {name}" for name in names]


def _by(place: str, member: str, directions: range) -> str:
    """In C: the parameter of the direction ``place``."""
    return f"{place} ? {member}1 : {member}0" if len(directions) > 1 else f"{member}0"


def _steps(member: str, dims: tuple[str, str, str], steps: tuple[int, ...]) -> list[str]:
    named = (f"{member}_{dim} = {step}" for dim, step in zip(dims, steps, strict=True))
    return [f"  static constexpr int64_t {', '.join(named)};"]
