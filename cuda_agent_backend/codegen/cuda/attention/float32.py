"""Attention -> CUDA on tensor cores, with the softmax corrected from one tile of keys to the next."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent_backend.codegen.analysis.attention import Attention, word
from cuda_agent_backend.codegen.cuda.attention.common import (
    Block,
    bias_steps,
    check_output,
    constants,
    kernel,
    operand_steps,
    plan_of,
    prelude,
    vector_of,
    wide_product,
)
from cuda_agent_backend.codegen.ir.device import (
    MAX_THREADS,
    CpuFacts,
    DeviceFacts,
    ceildiv,
    gpu_facts,
)
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.parameters import integer, read, switch
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.plan.plan import Plan
from sandbox.task.task import Task

PRELUDE = ("cuda/common/prelude.cuh", "cuda/gemm/gemm.cuh")
WIDE_PRELUDE = ("cuda/gemm/gemm_wide.cuh", "cuda/gemm/gemm_relay.cuh")
RELAY_TILES = ("cuda/common/relay_tiles.cuh",)
WIDE_SUMS = (16, 32, 64, 68, 80, 96)
"""Sums of a thread for which ``gemm_wide.cuh`` has the product of a warp group."""
MOST_KEYS = 192
"""Of a tile of warp groups: a thread has half as many scores, and of registers, where two blocks share them, 128."""
GROUP = 128
BY_TURNS, FREELY = 1, 2
"""How warp groups multiply."""
GROUP_ROWS = 64
MAX_GROUPS = 2
"""Warp groups that multiply; there are neither registers nor barriers for more."""
MAX_BARRIERS = 15
SWIZZLE_BYTES = 1024
"""What the tensor core's tiles are aligned to."""
STACKED, HALVED = 16, 128
"""Columns of values up to which warp groups multiply all three parts at once, and those of which they multiply half."""


@dataclass(frozen=True)
class Blocks:
    """The schedule's parameters."""

    rows: int = integer("queries of a block")
    warp: int = integer("queries of a warp, 16 or 32", among=(16, 32))
    keys: int = integer("keys of a tile")
    stages: int = integer("tiles under way")
    kept: int = switch(
        "1 where queries stay in registers, split as the products want them, and 0 where in shared memory"
    )
    split: int = switch(
        "1 where a block splits each tile of keys and values once, and 0 where each warp does"
    )
    relay: int = integer(
        "above 0 one warp group splits tiles while others multiply (sm_90a only), each 64 of the queries: 1 where by "
        "turns, 2 where whenever they can",
        among=(0, BY_TURNS, FREELY),
        default=0,
    )

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

    def shared_bytes(self, size: int, width: int = 0) -> int:
        """Of a block, as `ca::attention_tiles` or `ca::relay_attention` in the CUDA source counts it.

        size: of a row of queries and keys; width: of values, 0 where it is the same.
        """
        depth, width = ceildiv(size, 16) * 16, width or size
        if self.relay:
            keys = 3 * ceildiv(depth, 32) * 32 * self.keys
            values = (
                ceildiv(3 * width, 16) * 16 if width <= STACKED else 3 * ceildiv(width, 16) * 16
            )
            tiles = 2 * self.stages * (keys + values * self.keys)
            return SWIZZLE_BYTES + tiles + 6 * self.rows * depth
        stages = 4 * self.stages * self.keys * self._of_key(size, width)
        apart = 6 * self.keys * (depth + width) * self.split
        return stages + apart + 6 * self.rows * depth * (1 - self.kept)

    def _of_key(self, size: int, width: int) -> int:
        """Elements that a key and a value take, padding included."""
        return ceildiv(size, 16) * 16 + 8 + width + 4

    def check(self, size: int, device: DeviceFacts, width: int = 0) -> None:
        """Raises Unsupported where the parameters do not fit each other or the device."""
        if self.relay:
            self._check_relay(device)
        else:
            self._check_warps(size, width or size)
        shared = self.shared_bytes(size, width)
        if self.threads > MAX_THREADS or shared > device.shared_per_block_bytes:
            raise Unsupported(f"{self.threads} threads, {shared} bytes of shared memory")

    def _check_relay(self, device: DeviceFacts) -> None:
        if device.arch != "sm_90a":
            raise Unsupported(f"warp groups on {device.arch}")
        if (self.warp, self.kept, self.split) != (16, 0, 1) or not 1 <= self.relay <= self.groups:
            raise Unsupported("parameters that mean nothing to warp groups")
        if self.rows % GROUP_ROWS or not 1 <= self.groups <= MAX_GROUPS:
            raise Unsupported(f"{self.rows} queries for warp groups")
        barriers = 2 * self.stages * (self.groups + 1) + self.groups
        if (
            self.keys not in range(32, MOST_KEYS + 1, 32)
            or self.stages < 1
            or barriers > MAX_BARRIERS
        ):
            raise Unsupported(f"tiles of {self.keys} keys, {self.stages} at a time")

    def _check_warps(self, size: int, width: int) -> None:
        if self.warp not in (16, 32) or self.rows <= 0 or self.rows % 64:
            raise Unsupported(f"{self.rows} queries for warps of {self.warp}")
        if (
            self.keys <= 0
            or self.keys % 16
            or self.stages < 2
            or not {self.kept, self.split} <= {0, 1}
        ):
            raise Unsupported(f"tiles of {self.keys} keys, {self.stages} at a time")
        passing = self.stages * self.keys * self._of_key(size, width)
        if self.rows * (ceildiv(size, 16) * 16 + 8) > passing:
            raise Unsupported("queries that do not fit where keys and values pass through")


def _relay(rows: int, keys: int, stages: int, relay: int = BY_TURNS) -> Blocks:
    return Blocks(rows, 16, keys, stages, 0, 1, relay)


RELAYS = (
    (_relay(128, 64, 2), 80), (_relay(128, 64, 2, FREELY), 80), (_relay(64, 64, 1), 64), (_relay(128, 32, 2), 128),
    (_relay(64, 32, 2), 64),
)  # fmt: skip
"""Better guesses first, and before those of warps; with the longest row of Q, K and V that each is for."""
SMALL = (Blocks(64, 16, 32, 2, 0, 1), Blocks(64, 16, 64, 2, 1, 1), Blocks(64, 16, 32, 2, 1, 0))  # fmt: skip
"""For small heads, better guesses first."""
LARGE = (Blocks(64, 16, 32, 2, 0, 1), Blocks(64, 16, 32, 2, 0, 0), Blocks(64, 16, 64, 2, 0, 0))  # fmt: skip
"""For those that would leave too few registers if their queries stayed there."""
LARGEST = (Blocks(64, 16, 16, 3, 0, 1), Blocks(64, 16, 16, 3, 0, 0))
"""For those of whose sums a thread has so many that more keys at a time leave too few."""
KEPT, HELD = 64, 192
"""The largest heads for the first and for the second of these."""


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
        by_warps = SMALL if size <= KEPT else LARGE if size <= HELD else LARGEST
        for blocks in (*relays, *by_warps):
            made = Schedule.of(dict(blocks.__dict__))
            if self._reason(blocks, facts) is None:
                found.append(made)
        return found

    def _reason(self, blocks: Blocks, device: DeviceFacts) -> str | None:
        try:
            blocks.check(self.form.size, device)
            check_output(self.form)
        except Unsupported as error:
            return str(error)
        return None

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
        blocks.check(self.form.size, gpu_facts(device))
        check_output(self.form)
        bounds = f"{blocks.threads}, {blocks.resident}" if blocks.relay else f"{blocks.threads}"
        block = Block(blocks.rows, blocks.threads, blocks.shared_bytes(self.form.size), bounds)
        scheme = "relay_attention" if blocks.relay else "attention"
        text = "\n".join(
            [
                *_prelude(self.form, blocks),
                *_sizes(self.form, blocks),
                *kernel(self.task, self.form, block, scheme),
            ]
        )
        return text, plan_of(self.task, self.form, block)


def _prelude(form: Attention, blocks: Blocks) -> list[str]:
    own = (
        "cuda/attention/attention_head.cuh",
        "cuda/attention/attention_tiles.cuh",
        "cuda/attention/attention.cuh",
    )
    if not blocks.relay:
        return prelude((*PRELUDE, *own))
    return [
        *relay_prelude(form.size, blocks),
        *prelude((*own, *RELAY_TILES, "cuda/attention/attention_relay.cuh")),
    ]


def relay_prelude(width: int, blocks: Blocks) -> list[str]:
    """What ``relay_tiles.cuh`` stands on, with the products of its tiles; width: columns of values."""
    head = "template <int Products> CA_INLINE void multiply_wide"
    columns = 3 * width if width <= STACKED else width // (2 if width == HALVED else 1)
    sums = sorted({columns // 2, blocks.keys // 2} - set(WIDE_SUMS))
    products = [line for count in sums for line in wide_product(head, "bf16", count, False)]
    return [
        *prelude((*PRELUDE, *WIDE_PRELUDE)),
        *("namespace ca {", *products, "}  // namespace ca"),
    ]


def _biases_by_pairs(form: Attention) -> bool:
    """Whether the alignment of a bias allows to load those of two neighbouring keys at once."""
    steps = bias_steps(form)
    return steps[3] == 1 and form.keys % 2 == 0 and all(step % 2 == 0 for step in steps[:3])


def _sizes(form: Attention, blocks: Blocks) -> list[str]:
    vector = vector_of(operand_steps(form), 4)
    return [
        "struct sizes {",
        *constants(form),
        f"  static constexpr int rows = {blocks.rows}, block = {blocks.keys}, stages = {blocks.stages};",
        f"  static constexpr int fragments = {blocks.warp // 16}, vector = {vector};",
        f"  static constexpr bool kept = {word(bool(blocks.kept))}, apart = {word(bool(blocks.split))};",
        f"  static constexpr bool turns = {word(blocks.relay == BY_TURNS)};",
        f"  static constexpr bool bias_pairs = {word(_biases_by_pairs(form))};",
        "};",
    ]
