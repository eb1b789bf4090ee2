"""Attention of float16 and bfloat16 -> CUDA on tensor cores (see ``attention_half.cuh``)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from cuda_agent_backend.codegen.analysis.attention import Attention, word
from cuda_agent_backend.codegen.cuda.attention.common import (
    HeadBlock,
    check_output,
    head_constants,
    head_kernel,
    plan_of,
    prelude,
    wide_product,
)
from cuda_agent_backend.codegen.cuda.attention.half.schedules import (
    HalfBlocks,
    bias_vector,
    half_attention_schedules,
    operand_vector,
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

PRELUDE = (
    "cuda/common/prelude.cuh",
    "cuda/gemm/gemm.cuh",
    "cuda/gemm/gemm_half.cuh",
    "cuda/attention/attention_head.cuh",
    "cuda/attention/attention_half.cuh",
)
WIDE_PRELUDE = (
    "cuda/common/prelude.cuh",
    "cuda/gemm/gemm.cuh",
    "cuda/gemm/gemm_wide.cuh",
    "cuda/gemm/gemm_half.cuh",
    "cuda/gemm/gemm_wide_half.cuh",
    "cuda/attention/attention_head.cuh",
    "cuda/attention/attention_half.cuh",
)
COMMON_SCORES = (32, 64)
"""Of a thread, for which ``gemm_wide_half.cuh`` has the product of a warp group."""


@dataclass(frozen=True)
class CudaHalfAttention:
    """A task that is an attention in half precision, as one kernel (see ``api.Analysis``)."""

    task: Task
    form: Attention
    family = "attention"

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        found = half_attention_schedules(self.form, gpu_facts(device))
        return [Schedule.of(asdict(blocks)) for blocks in found]

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        """Source and plan.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """
        blocks = require(HalfBlocks, schedule.only())
        blocks.check(self.form, gpu_facts(device))
        check_output(self.form)
        threads = blocks.threads
        block = HeadBlock(blocks.rows, threads, blocks.shared_bytes(self.form), str(threads))
        lines = [
            "#define CA_HALF",
            *_prelude(self.form, blocks),
            *_sizes(self.form, blocks),
            *head_kernel(self.task, self.form, block, f"{'wide_' * blocks.wide}half_attention"),
        ]
        return "\n".join(lines), plan_of(self.task, self.form, block)


def _prelude(form: Attention, blocks: HalfBlocks) -> list[str]:
    if not blocks.wide:
        return prelude(PRELUDE)
    kind = "f16" if form.dtype == torch.float16 else "bf16"
    head = "template <class T> CA_INLINE void multiply_rows"
    products = wide_product(head, kind, form.size // 2, True)
    if (scores := blocks.keys // 2) not in COMMON_SCORES:
        head = "template <class T, int, int> CA_INLINE void multiply_both"
        products += wide_product(head, kind, scores, False, left=0)
    return [
        *prelude(WIDE_PRELUDE),
        *("namespace ca {", *products, "}  // namespace ca"),
        *prelude(("cuda/attention/attention_half_wide.cuh",)),
    ]


def _sizes(form: Attention, blocks: HalfBlocks) -> list[str]:
    return [
        "struct sizes {",
        *head_constants(form),
        f"  static constexpr int rows = {blocks.rows}, block = {blocks.keys}, stages = {blocks.stages};",
        f"  static constexpr int fragments = {blocks.warp // 16}, vector = {operand_vector(form)};",
        f"  static constexpr int bias_vector = {bias_vector(form)};",
        f"  static constexpr bool kept = {word(bool(blocks.kept))};",
        "};",
    ]
