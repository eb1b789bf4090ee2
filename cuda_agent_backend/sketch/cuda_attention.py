"""Attention -> CUDA on tensor cores, with the softmax corrected from one tile of keys to the next.

Schedule parameters: ``rows``, the queries of a block; ``warp``, those of a warp (16 or 32); ``keys``, the keys of a
tile; ``stages``, the tiles under way; ``kept``, 1 where queries stay in registers, split as the products want them, and
0 where in shared memory; ``split``, 1 where a block splits each tile of keys and values once, and 0 where each warp
does; ``relay``, above 0 where one warp group splits them while others multiply (sm_90a only), each 64 of the queries: 1
where by turns, 2 where whenever they can.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cuda_agent_backend.sketch.attention import Attention, Matrices, offset, word
from cuda_agent_backend.sketch.cuda_layout import MAX_THREADS, DeviceFacts, ceildiv
from cuda_agent_backend.sketch.cuda_parts import WIDE
from cuda_agent_backend.sketch.device import CpuFacts, gpu_facts
from cuda_agent_backend.sketch.schedule import Schedule
from cuda_agent_backend.sketch.ssa import Unsupported
from sandbox.plan import Buffer, Launch, Plan
from sandbox.task import Task

MAX_BLOCKS = 2**31 - 1
ENTRY = "k0"
PRELUDE = ("cuda.cuh", "contract.cuh")
WIDE_PRELUDE = ("contract_wide.cuh", "contract_relay.cuh")
WIDE_SUMS = (16, 32, 64)
"""Sums of a thread for which ``contract_wide.cuh`` has the product of a warp group."""
GROUP = 128
BY_TURNS, FREELY = 1, 2
"""How warp groups multiply."""
GROUP_ROWS = 64
MAX_GROUPS = 2
"""Warp groups that multiply; there are neither registers nor barriers for more."""
MAX_BARRIERS = 15
SWIZZLE_BYTES = 1024
"""What the tensor core's tiles are aligned to."""


@dataclass(frozen=True)
class Blocks:
    """The schedule's parameters; see the module's description."""

    rows: int
    warp: int
    keys: int
    stages: int
    kept: int
    split: int
    relay: int = 0

    @property
    def groups(self) -> int:
        """Warp groups that multiply, where there are any."""
        return self.rows // GROUP_ROWS

    @property
    def threads(self) -> int:
        return (self.groups + 1) * GROUP if self.relay else self.rows // self.warp * 32

    @property
    def resident(self) -> int:
        """Blocks for each multiprocessor that registers are limited to."""
        return 2 if self.relay and self.groups == 1 else 1

    def shared_bytes(self, size: int) -> int:
        """Of a block, as `ca::attention` or `ca::relay_attention` in the CUDA source counts it."""
        depth = ceildiv(size, 16) * 16
        if self.relay:
            keys = ceildiv(depth, 32) * 32 * self.keys
            tiles = 6 * self.stages * (keys + depth * self.keys)
            return SWIZZLE_BYTES + tiles + 6 * self.rows * depth
        stages = 4 * self.stages * self.keys * self._of_key(size)
        apart = 6 * self.keys * (depth + size) * self.split
        return stages + apart + 6 * self.rows * depth * (1 - self.kept)

    def _of_key(self, size: int) -> int:
        """Elements that a key and a value take, padding included."""
        return ceildiv(size, 16) * 16 + 8 + size + 4

    def check(self, size: int, device: DeviceFacts) -> None:
        """Raises Unsupported where the parameters do not fit each other or the device."""
        if self.relay:
            self._check_relay(device)
        else:
            self._check_warps(size)
        if self.threads > MAX_THREADS or self.shared_bytes(size) > device.shared_per_block_bytes:
            raise Unsupported(
                f"{self.threads} threads, {self.shared_bytes(size)} bytes of shared memory"
            )

    def _check_relay(self, device: DeviceFacts) -> None:
        if device.arch != "sm_90a":
            raise Unsupported(f"warp groups on {device.arch}")
        if (self.warp, self.kept, self.split) != (16, 0, 1) or not 1 <= self.relay <= self.groups:
            raise Unsupported("parameters that mean nothing to warp groups")
        if self.rows % GROUP_ROWS or not 1 <= self.groups <= MAX_GROUPS:
            raise Unsupported(f"{self.rows} queries for warp groups")
        barriers = 2 * self.stages * (self.groups + 1) + self.groups
        if self.keys not in range(32, 257, 32) or self.stages < 1 or barriers > MAX_BARRIERS:
            raise Unsupported(f"tiles of {self.keys} keys, {self.stages} at a time")

    def _check_warps(self, size: int) -> None:
        if self.warp not in (16, 32) or self.rows <= 0 or self.rows % 64:
            raise Unsupported(f"{self.rows} queries for warps of {self.warp}")
        if (
            self.keys <= 0
            or self.keys % 16
            or self.stages < 2
            or not {self.kept, self.split} <= {0, 1}
        ):
            raise Unsupported(f"tiles of {self.keys} keys, {self.stages} at a time")
        if self.rows * (ceildiv(size, 16) * 16 + 8) > self.stages * self.keys * self._of_key(size):
            raise Unsupported("queries that do not fit where keys and values pass through")


def _relay(rows: int, keys: int, stages: int, relay: int = BY_TURNS) -> Blocks:
    return Blocks(rows, 16, keys, stages, 0, 1, relay)


RELAYS = (
    # the largest head for which there are enough registers
    (_relay(128, 64, 2), 80), (_relay(128, 64, 2, FREELY), 80), (_relay(64, 64, 1), 64), (_relay(128, 32, 2), 128),
    (_relay(64, 32, 2), 64),
)  # fmt: skip
"""Better guesses first, and before those of warps."""
SMALL = (Blocks(64, 16, 32, 2, 0, 1), Blocks(64, 16, 64, 2, 1, 1), Blocks(64, 16, 32, 2, 1, 0))  # fmt: skip
"""For heads up to ``KEPT``, better guesses first."""
LARGE = (Blocks(64, 16, 32, 2, 0, 1), Blocks(64, 16, 32, 2, 0, 0), Blocks(64, 16, 64, 2, 0, 0))  # fmt: skip
"""For those that would leave too few registers if their queries stayed there."""
KEPT = 64


@dataclass(frozen=True)
class CudaAttention:
    """A task that is an attention, as one kernel (see ``api.Analysis``)."""

    task: Task
    form: Attention
    family = "attention"

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        facts = gpu_facts(device)
        found = []
        size = self.form.size
        relays = (blocks for blocks, largest in RELAYS if size <= largest)
        for blocks in (*relays, *(SMALL if size <= KEPT else LARGE)):
            made = Schedule.of(dict(blocks.__dict__))
            if self._reason(blocks, facts) is None:
                found.append(made)
        return found

    def _reason(self, blocks: Blocks, device: DeviceFacts) -> str | None:
        try:
            blocks.check(self.form.size, device)
            self._check()
        except Unsupported as error:
            return str(error)
        return None

    def _check(self) -> None:
        if any(step % 2 for step in self.form.output_steps[:3]):
            raise Unsupported("an output whose rows are not aligned")

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        """Source and plan.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """
        given = schedule.only()
        try:
            blocks = Blocks(**{name: int(value) for name, value in given.items()})
        except (TypeError, ValueError) as error:
            raise Unsupported(f"parameters of an attention: {error}") from error
        facts = gpu_facts(device)
        blocks.check(self.form.size, facts)
        self._check()
        count = self.form.batches * self.form.heads * ceildiv(self.form.queries, blocks.rows)
        if count > MAX_BLOCKS:
            raise Unsupported(f"{count} blocks")
        inputs = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(self.task.inputs)]
        buffers = (*inputs, Buffer("out", "output", self.task.output_specs[0]))
        launch = Launch(
            ENTRY,
            (count, 1, 1),
            (blocks.threads, 1, 1),
            blocks.shared_bytes(self.form.size),
            tuple(b.name for b in buffers),
        )
        lines = _source(self.task, self.form, blocks, _vector(self.form))
        text = "\n".join([*_prelude(self.form, blocks), *lines])
        return text, Plan("cuda", buffers, (launch,))


def _prelude(form: Attention, blocks: Blocks) -> list[str]:
    def read(names: tuple[str, ...]) -> list[str]:
        return [(Path(__file__).parent / "csrc" / n).read_text(encoding="utf-8") for n in names]

    if not blocks.relay:
        return read((*PRELUDE, "attention.cuh"))
    columns = form.size // (2 if form.size == 128 else 1)  # as the source has it
    sums = sorted({columns // 2, blocks.keys // 2} - set(WIDE_SUMS))
    products = [line for count in sums for line in _wide_product(count)]
    return [
        *read((*PRELUDE, *WIDE_PRELUDE)),
        *("namespace ca {", *products, "}  // namespace ca"),
        *read(("attention.cuh", "attention_relay.cuh")),
    ]


def _wide_product(count: int) -> list[str]:
    """As in ``contract_wide.cuh``, for ``count`` sums of a thread: the instruction names each of them."""
    names = ", ".join(f"%{i}" for i in range(count))
    left = ", ".join(f"%{count + i}" for i in range(4))
    shape = f"wgmma.mma_async.sync.aligned.m64n{2 * count}k16.f32.bf16.bf16"
    sums = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return [
        f"template <int Products> CA_INLINE void multiply_wide(float (&d)[{count}], "
        "const unsigned (&a)[4], uint64_t b, int more) {",
        f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 5}, 0; {shape} {{{names}}}, "',
        f'               "{{{left}}}, %{count + 4}, p, 1, 1, 0; }}"',
        f"               : {sums}",
        '               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));',
        "}",
    ]


def _vector(form: Attention) -> int:
    """Elements of a copy that every row's alignment allows."""
    steps = [s for m in (form.query, form.key, form.value) for s in m.steps[:3]]
    return next(v for v in (4, 2, 1) if all(s % v == 0 for s in steps))


def _biases_by_pairs(form: Attention) -> bool:
    """Whether the alignment of a bias allows to load those of two neighbouring keys at once."""
    steps = form.mask.steps if form.mask else (0, 0, 0, 0)
    return steps[3] == 1 and form.keys % 2 == 0 and all(step % 2 == 0 for step in steps[:3])


def _source(task: Task, form: Attention, blocks: Blocks, vector: int) -> list[str]:
    bias = form.mask.steps if form.mask else (0, 0, 0, 0)
    pieces, heads = ceildiv(form.queries, blocks.rows), form.batches * form.heads
    reach = max(abs(n * s) for n, s in _rows(form))
    operands = {"q": form.query, "k": form.key, "v": form.value, "bias": form.mask}
    # the last queries of a causal head are the most work, so they come first
    number, piece = (
        (f"block % {heads}", f"{pieces - 1} - blockIdx.x / {heads}")
        if form.causal
        else (f"block / {pieces}", f"blockIdx.x % {pieces}")
    )
    bounds = f"{blocks.threads}, {blocks.resident}" if blocks.relay else f"{blocks.threads}"
    inputs = [f"const float* __restrict__ in{i}" for i in range(len(task.inputs))]
    return [
        "struct sizes {",
        f"  typedef {'int64_t' if reach >= WIDE else 'int'} index;",
        f"  static constexpr int size = {form.size}, queries = {form.queries}, keys = {form.keys};",
        f"  static constexpr int rows = {blocks.rows}, block = {blocks.keys}, stages = {blocks.stages};",
        f"  static constexpr int fragments = {blocks.warp // 16}, vector = {vector};",
        f"  static constexpr index q_row = {form.query.steps[2]}, k_row = {form.key.steps[2]};",
        f"  static constexpr index v_row = {form.value.steps[2]}, o_row = {form.output_steps[2]};",
        f"  static constexpr index bias_row = {bias[2]}, bias_key = {bias[3]};",
        f"  static constexpr bool kept = {word(bool(blocks.kept))}, apart = {word(bool(blocks.split))};",
        f"  static constexpr bool turns = {word(blocks.relay == BY_TURNS)};",
        f"  static constexpr bool causal = {word(form.causal)};",
        f"  static constexpr bool biased = {word(form.mask is not None)};",
        f"  static constexpr bool bias_pairs = {word(_biases_by_pairs(form))};",
        f"  static constexpr float scale = float({form.scale!r});",
        "};",
        f'extern "C" __global__ void __launch_bounds__({bounds})',
        f"{ENTRY}({', '.join(inputs)}, float* __restrict__ out) {{",
        "  extern __shared__ __align__(16) unsigned char shared[];",
        "  const auto find = [&](int block) {",
        f"    const int number = {number};",
        f"    const int64_t batch = number / {form.heads}, head = number % {form.heads};",
        f"    const int64_t shared_head = head / {form.heads // form.shared_heads};",
        "    ca::attention_head<sizes> found;",
        *(_operand(name, m) for name, m in operands.items() if m is not None),
        f"    found.out = out + {offset(form.output_steps, 'head')};",
        "    return found;",
        "  };",
        f"  ca::{'relay_attention' if blocks.relay else 'attention'}<sizes> one;",
        f"  one.first = ({piece}) * {blocks.rows};",
        "  one.run(reinterpret_cast<float*>(shared), find);",
        "}",
        "",
    ]


def _rows(form: Attention) -> list[tuple[int, int]]:
    """Counts and strides of what is stepped through within a head."""
    bias = form.mask.steps if form.mask else (0, 0, 0, 0)
    return [
        (form.queries, form.query.steps[2]),
        (form.keys, form.key.steps[2]),
        (form.keys, form.value.steps[2]),
        (form.queries, form.output_steps[2]),
        (form.queries, bias[2] + form.keys * bias[3]),
    ]


def _operand(name: str, operand: Matrices) -> str:
    at = offset(operand.steps, "shared_head" if name in ("k", "v") else "head")
    return f"    found.{name} = in{operand.input} + {at};"
