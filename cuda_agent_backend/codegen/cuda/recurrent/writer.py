"""Recurrent layers -> CUDA: for each layer one product, and one kernel that goes through all steps.

The steps follow one another, so what counts is how long one takes. The recurrent weights never move: a cluster of
blocks holds them in its registers, and in shared memory where those do not suffice, for a few sequences of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cuda_agent_backend.codegen.cuda.recurrent.match import (
    LAST_CELL,
    LAST_HIDDEN,
    OUTPUT,
    Recurrent,
    Weights,
)
from cuda_agent_backend.codegen.ir.device import WARP, CpuFacts, DeviceFacts, ceildiv, gpu_facts
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.headers import header
from cuda_agent_backend.codegen.ir.parameters import integer, read
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.ir.value_types import WIDE
from sandbox.plan.plan import Buffer, Launch, Plan, Scalar
from sandbox.plan.steps import Argument
from sandbox.task.task import Task, TensorSpec

PRELUDE = ("cuda/common/prelude.cuh", "cuda/common/barrier.cuh", "cuda/recurrent/recurrent.cuh")
UNITS = {"lstm": "lstm_unit", "gru": "gru_unit", "rnn_tanh": "tanh_unit", "rnn_relu": "relu_unit"}
RESULTS = {OUTPUT: "out", LAST_HIDDEN: "last_h", LAST_CELL: "last_c"}
RANKS = (16, 8, 4, 2, 1)
MAX_ROWS = 8
THREADS = (128, 256, 384, 512)
SPLITS = (4, 8, 16, 32)
TILES = (64, 128)
PRODUCT_THREADS, PRODUCT_DEPTH = 256, 16
REGISTERS, MOST_REGISTERS, OTHER_REGISTERS = 1 << 16, 255, 58
"""Of a multiprocessor; those that a thread can name; those of it beside weights and sums."""
NEIGHBOURS = 16
"""Multiprocessors of the smallest group that a cluster does not leave."""
PROPOSALS = 12
EXCHANGE, MEETING, POINTWISE, SHUFFLE = 600, 40, 250, 30
"""Cycles: h on its way to a cluster, a barrier of a block, what a unit's gates take, an exchange between threads."""


@dataclass(frozen=True)
class Blocks:
    """The schedule's parameters."""

    ranks: int = integer("blocks of a cluster", among=RANKS)
    rows: int = integer("sequences of a cluster", most=MAX_ROWS)
    threads: int = integer("threads of a block", among=THREADS)
    splits: int = integer("neighbouring threads that share a dot product", among=SPLITS)
    kept: int = integer(
        "of each thread's part of a dot product the groups of four weights in registers", least=0
    )
    tile: int = integer(
        "rows and columns of a block of the product, 64 or 128", among=TILES, default=64
    )

    def own(self, form: Recurrent) -> int:
        """Units of a block."""
        return ceildiv(form.units, self.ranks)

    def slice(self, form: Recurrent) -> int:
        """Places of a block's units in h: whole vectors."""
        return ceildiv(self.own(form), 4) * 4

    def each(self, form: Recurrent) -> int:
        """Dot products of a thread."""
        return ceildiv(form.gates * self.own(form), self.threads // self.splits)

    def deep(self, form: Recurrent) -> int:
        """Groups of four weights that a thread has of a dot product."""
        return ceildiv(self.ranks * self.slice(form), 4 * self.splits)

    def registers(self, form: Recurrent) -> int:
        """Of a thread, about."""
        each = self.each(form)
        passing = 4 * each if self.kept < self.deep(form) else 0
        rounds = ceildiv(self.rows * self.slice(form), self.threads) - 1
        state = rounds * (2 * form.gates + 5)
        return 4 * each * self.kept + each * self.rows + passing + state + OTHER_REGISTERS

    def shared_bytes(self, form: Recurrent) -> int:
        """Of a block, as ``ca::recurrent_scan`` in the CUDA source counts it."""
        line = 4 * self.splits * self.deep(form)
        sums = ceildiv(self.rows * form.gates * self.own(form), 4) * 4
        rest = 4 * max(self.deep(form) - self.kept, 0) * self.each(form) * self.threads
        return 4 * (2 * self.rows * line + (2 if self.ranks > 1 else 1) * sums + rest) + 16

    @property
    def product_bytes(self) -> int:
        """Shared memory of a block of the product, as ``ca::project`` counts it."""
        return 4 * 4 * PRODUCT_DEPTH * (self.tile + 4)

    def clusters(self, form: Recurrent) -> int:
        return ceildiv(form.batch, self.rows) * form.directions

    def cost(self, form: Recurrent, device: DeviceFacts) -> float:
        """Cycles of a step, times how often clusters must take turns, to compare schedules by."""
        each, deep, warps = self.each(form), self.deep(form), self.threads // WARP
        sums, shuffles = each * self.rows, _exchanges(each * self.rows, self.splits)
        # the fewer warps, the less hides what each instruction waits for
        slots = warps / 4 + 0.8
        issued = slots * (4 * deep * sums + 4 * shuffles + 2 * deep * self.rows)
        rest = max(deep - self.kept, 0)
        memory = warps * (4 * deep * self.rows + 4 * rest * each + shuffles)
        exchange = EXCHANGE + self.rows * self.ranks * self.slice(form) / 8
        alone = MEETING + SHUFFLE * self.splits.bit_length() + POINTWISE
        turns = ceildiv(self.clusters(form), _at_once(self.ranks, device))
        hidden = min(issued, memory) / 4
        between = exchange if self.ranks > 1 else MEETING
        return turns * (max(issued, memory) + hidden + alone + between)

    def check(self, form: Recurrent, device: DeviceFacts) -> None:
        """Raises Unsupported where the parameters do not fit each other, the layers or the device."""
        if self.ranks not in RANKS or (self.ranks > 1 and not device.has_clusters):
            raise Unsupported(f"a cluster of {self.ranks} blocks on {device.arch}")
        if (self.ranks - 1) * self.own(form) >= form.units:
            raise Unsupported(f"{self.ranks} blocks for {form.units} units")
        if not 1 <= self.rows <= MAX_ROWS or self.tile not in TILES:
            raise Unsupported(f"{self.rows} sequences of a cluster, tiles of {self.tile}")
        if self.threads not in THREADS or self.splits not in SPLITS:
            raise Unsupported(f"{self.threads} threads, {self.splits} for a dot product")
        if not 0 <= self.kept <= self.deep(form):
            raise Unsupported(f"{self.kept} of {self.deep(form)} groups of weights in registers")
        if self.registers(form) > min(REGISTERS // self.threads, MOST_REGISTERS):
            raise Unsupported(f"{self.registers(form)} registers of {self.threads} threads")
        if self.shared_bytes(form) > device.shared_per_block_bytes:
            raise Unsupported(f"weights that take {self.shared_bytes(form)} bytes of shared memory")


def _at_once(ranks: int, device: DeviceFacts) -> int:
    """Clusters that run together: a cluster's blocks are on neighbouring multiprocessors."""
    if ranks == 1:
        return device.sm_count
    return max(device.sm_count // NEIGHBOURS * (NEIGHBOURS // ranks), 1)


def _exchanges(sums: int, threads: int) -> int:
    """Shuffles of a thread where ``threads`` add up so many sums."""
    count = 0
    while threads > 1:
        sums, threads = ceildiv(sums, 2), threads // 2
        count += sums
    return count


@dataclass(frozen=True)
class CudaRecurrent:
    """A task that is recurrent layers, as two kernels for each (see ``api.Analysis``)."""

    task: Task
    form: Recurrent
    family = "recurrent layers"

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        facts = gpu_facts(device)
        found = sorted(self._best(facts), key=lambda blocks: blocks.cost(self.form, facts))
        return [Schedule.of(dict(blocks.__dict__)) for blocks in found[:PROPOSALS]]

    def _best(self, device: DeviceFacts) -> Iterator[Blocks]:
        """For each size of a cluster and number of its sequences, the best ways with more and with fewer threads."""
        for ranks in RANKS:
            for rows in self._rows(ranks, device):
                ways = list(self._ways(ranks, rows, device))
                best = [[w for w in ways if w.threads == threads] for threads in THREADS]
                firsts = [min(b, key=lambda w: w.cost(self.form, device)) for b in best if b]
                yield from sorted(firsts, key=lambda w: w.cost(self.form, device))[:2]

    def _rows(self, ranks: int, device: DeviceFacts) -> list[int]:
        """As few as let all clusters run at once, and twice as many."""
        at_once = max(_at_once(ranks, device) // self.form.directions, 1)
        fewest = min(ceildiv(self.form.batch, at_once), MAX_ROWS)
        most = min(self.form.batch, MAX_ROWS)
        return sorted({fewest, min(2 * fewest, most)})

    def _ways(self, ranks: int, rows: int, device: DeviceFacts) -> Iterator[Blocks]:
        """With as many weights in registers as fit there."""
        for threads in THREADS:
            for splits in SPLITS:
                blocks = Blocks(ranks, rows, threads, splits, 0, self._tile(device))
                deep = blocks.deep(self.form)
                ways = (replace(blocks, kept=kept) for kept in range(deep, -1, -1))
                fitting = (way for way in ways if self._fits(way, device))
                yield from [way for way in [next(fitting, None)] if way is not None]

    def _tile(self, device: DeviceFacts) -> int:
        """The larger one where there are enough of them."""
        form = self.form
        rows, columns = form.length * form.batch, form.gates * form.units
        blocks = ceildiv(rows, 128) * ceildiv(columns, 128) * form.directions
        return 128 if blocks >= device.sm_count else 64

    def _fits(self, blocks: Blocks, device: DeviceFacts) -> bool:
        try:
            blocks.check(self.form, device)
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
        blocks = read(Blocks, schedule.only())
        if isinstance(blocks, NotCovered):
            raise Unsupported(blocks.reason)
        blocks.check(self.form, gpu_facts(device))
        return _Writer(self.task, self.form, blocks).written()


@dataclass(frozen=True)
class _Writer:
    """Source and plan: kernels ``first`` and ``next`` are the products, ``last`` and ``inner`` go through the steps."""

    task: Task
    form: Recurrent
    blocks: Blocks

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
        form, first = self.form, name == "first"
        width = form.directions * form.units
        depth = form.features if first else width
        steps = form.source.steps if first else (form.batch * width, width, 1)
        time, batch, feature = steps
        rows, columns = form.length * form.batch, form.gates * form.units
        members = ["weights", *(["inner_bias", "hidden_bias"] if form.biased else [])]
        directions = range(form.directions)
        spanned = form.length * time + form.batch * batch + depth * feature
        reach = max(spanned, rows * columns, columns * depth)
        given = ["x", *(f"{member}{d}" for d in directions for member in members)]
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
            f'extern "C" __global__ void __launch_bounds__({PRODUCT_THREADS}, 2)',
            f"{name}({_pointers(given)}, float* __restrict__ sums) {{",
            "  extern __shared__ __align__(16) unsigned char shared[];",
            f"  ca::project<{name}_sizes> one;",
            "  one.x = x;",
            *(f"  one.{member} = {_by('blockIdx.z', member, directions)};" for member in members),
            f"  one.sums = sums + int64_t(blockIdx.z) * {rows * columns};",
            "  one.run(reinterpret_cast<float*>(shared));",
            "}",
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
        form, blocks, written = self.form, self.blocks, self._written(name)
        members = self._members(name)
        given = [parameter for _, parameters in members for parameter in parameters]
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
            *_steps("c", ("layer", "batch", "unit"), form.cell.steps if form.cell else (0, 0, 0)),
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
            f'extern "C" __global__ void __launch_bounds__({blocks.threads}, 1)',
            f"{name}({_pointers(given)}, {', '.join(f'float* __restrict__ {m}' for m in written)}, int layer) {{",
            "  extern __shared__ __align__(16) unsigned char shared[];",
            f"  ca::recurrent_scan<{name}_sizes> one;",
            "  one.layer = layer;",
            *(
                f"  one.{member} = {_by('blockIdx.y', member, range(len(names))) if names[0] != member else member};"
                for member, names in members
            ),
            *(f"  one.{member} = {member};" for member in written),
            "  one.run(reinterpret_cast<float*>(shared));",
            "}",
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


def _pointers(names: list[str]) -> str:
    return ", ".join(f"const float* __restrict__ {name}" for name in names)


def _by(place: str, member: str, directions: range) -> str:
    """In C: the parameter of the direction ``place``."""
    return f"{place} ? {member}1 : {member}0" if len(directions) > 1 else f"{member}0"


def _steps(member: str, dims: tuple[str, str, str], steps: tuple[int, ...]) -> list[str]:
    named = (f"{member}_{dim} = {step}" for dim, step in zip(dims, steps, strict=True))
    return [f"  static constexpr int64_t {', '.join(named)};"]
