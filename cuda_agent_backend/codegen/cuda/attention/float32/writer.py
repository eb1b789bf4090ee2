"""Attention -> CUDA on tensor cores, with the softmax corrected from one tile of keys to the next."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cuda_agent_backend.codegen.analysis.attention import Attention, word
from cuda_agent_backend.codegen.cuda.attention.common import (
    HeadBlock,
    bias_steps,
    check_output,
    head_constants,
    head_kernel,
    operand_steps,
    plan_of,
    prelude,
    vector_of,
    wide_product,
)
from cuda_agent_backend.codegen.cuda.attention.float32.schedules import (
    BY_TURNS,
    HALVED,
    STACKED,
    AttentionBlocks,
    attention_schedules,
)
from cuda_agent_backend.codegen.ir.device import (
    CpuFacts,
    DeviceFacts,
    gpu_facts,
)
from cuda_agent_backend.codegen.ir.parameters import require
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.plan.plan import Plan
from sandbox.task.task import Task

PRELUDE = ("cuda/common/prelude.cuh", "cuda/gemm/gemm.cuh")
WIDE_PRELUDE = ("cuda/gemm/gemm_wide.cuh", "cuda/gemm/gemm_relay.cuh")
RELAY_TILES = ("cuda/common/relay_tiles.cuh",)
WIDE_SUMS = (16, 32, 64, 68, 80, 96)
"""Sums of a thread for which ``gemm_wide.cuh`` has the product of a warp group."""


@dataclass(frozen=True)
class CudaAttention:
    """A task that is an attention, as one kernel (see ``api.Analysis``)."""

    task: Task
    form: Attention
    family = "attention"

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        found = attention_schedules(self.form, gpu_facts(device))
        return [Schedule.of(asdict(blocks)) for blocks in found]

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        """Source and plan.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """
        blocks = require(AttentionBlocks, schedule.only())
        blocks.check(self.form.size, gpu_facts(device))
        check_output(self.form)
        bounds = f"{blocks.threads}, {blocks.resident}" if blocks.relay else f"{blocks.threads}"
        block = HeadBlock(blocks.rows, blocks.threads, blocks.shared_bytes(self.form.size), bounds)
        scheme = "relay_attention" if blocks.relay else "attention"
        text = "\n".join(
            [
                *_prelude(self.form, blocks),
                *_sizes(self.form, blocks),
                *head_kernel(self.task, self.form, block, scheme),
            ]
        )
        return text, plan_of(self.task, self.form, block)


def _prelude(form: Attention, blocks: AttentionBlocks) -> list[str]:
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


def relay_prelude(width: int, blocks: AttentionBlocks) -> list[str]:
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


def _sizes(form: Attention, blocks: AttentionBlocks) -> list[str]:
    vector = vector_of(operand_steps(form), 4)
    return [
        "struct sizes {",
        *head_constants(form),
        f"  static constexpr int rows = {blocks.rows}, block = {blocks.keys}, stages = {blocks.stages};",
        f"  static constexpr int fragments = {blocks.warp // 16}, vector = {vector};",
        f"  static constexpr bool kept = {word(bool(blocks.kept))}, apart = {word(bool(blocks.split))};",
        f"  static constexpr bool turns = {word(blocks.relay == BY_TURNS)};",
        f"  static constexpr bool bias_pairs = {word(_biases_by_pairs(form))};",
        "};",
    ]
