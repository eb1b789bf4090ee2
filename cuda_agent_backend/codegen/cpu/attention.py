"""Attention -> C++ for the cpu target.

Threads take blocks of queries of one head. The scores of a panel of queries against a block of keys stay in the first
cache from their product over the softmax to the product with V; K is read in place, V is copied into groups of columns
as it is needed. Where the keys are more than one block, the softmax is corrected from block to block.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent_backend.codegen.analysis.attention import Attention, Matrices, offset, word
from cuda_agent_backend.codegen.cpu import gemm as cpu_product
from cuda_agent_backend.codegen.cpu.params import AttentionParams
from cuda_agent_backend.codegen.cpu.writer import ENTRY, MAX_STACK_BYTES
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts, cpu_facts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.headers import header
from cuda_agent_backend.codegen.ir.parameters import require
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.plan.plan import Buffer, Launch, Plan
from sandbox.task.task import Task

CHOICES = ((128, 256), (256, 512), (64, 256), (64, 512), (128, 128), (32, 128))
"""Queries and keys at a time, better guesses first."""
ALIGNMENT = 512
"""Queries of a task lie in one such block, so that the keys which torch's kernel leaves out are the same for all."""


@dataclass(frozen=True)
class CpuAttention:
    """A task that is an attention, as one kernel (see `covered_task.Analysis`)."""

    task: Task
    form: Attention
    family = "attention"

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        width = (device if isinstance(device, CpuFacts) else cpu_facts()).width
        found: dict[tuple[int, int], Schedule] = {}
        for rows, keys in CHOICES:
            if _stack_bytes(self.form, rows, keys, width) <= MAX_STACK_BYTES:
                # more than there is of queries or keys is as good as all
                effect = min(rows, -(-self.form.queries // 32) * 32), min(keys, self.form.keys)
                made = Schedule.of({"rows": rows, "keys": keys, "width": width})
                found.setdefault(effect, made)
        return list(found.values())

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        """Source and plan.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """
        chosen = require(AttentionParams, schedule.only())
        rows, keys, width = chosen.rows, chosen.keys, chosen.width
        if width not in (8, 16) or ALIGNMENT % rows or rows % (2 * width):
            raise Unsupported(f"{rows} queries and {keys} keys at a time, {width} lanes")
        if _stack_bytes(self.form, rows, keys, width) > MAX_STACK_BYTES:
            raise Unsupported(f"{rows} queries and {keys} keys do not stay on the core")
        return "\n".join(_source(self.task, self.form, rows, keys, width)), self._plan()

    def _plan(self) -> Plan:
        inputs = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(self.task.inputs)]
        return Plan(
            "cpu", (*inputs, Buffer("out", "output", self.task.output_specs[0])), (Launch(ENTRY),)
        )


def _stack_bytes(form: Attention, rows: int, keys: int, width: int) -> int:
    """Of one thread, as `ca::attention` in the C++ source holds it."""
    high, panel = cpu_product.tile_rows(width), 2 * width
    block, kept = min(keys, form.keys), 1 if keys >= form.keys else rows // panel
    columns = -(-form.size // high) * high
    own = kept * (2 * form.size + 4) + form.size + block * (2 if form.mask else 1)
    return 4 * (own * panel + columns * block + form.size)


def _source(task: Task, form: Attention, rows: int, keys: int, width: int) -> list[str]:
    mask = form.mask.steps if form.mask else (0, 0, 0, 0)
    pieces = -(-form.queries // rows)
    heads = form.heads // form.shared_heads
    operands = {"q": form.query, "k": form.key, "v": form.value, "mask": form.mask}
    return [
        *(header(name) for name in ("cpu/prelude.h", "cpu/gemm.h", "cpu/attention.h")),
        "struct sizes {",
        f"  static constexpr int width = {width}, tile = {cpu_product.tile_rows(width)};",
        f"  static constexpr int64_t size = {form.size}, queries = {form.queries}, keys = {form.keys};",
        f"  static constexpr int64_t rows = {rows}, block = {keys};",
        f"  static constexpr int64_t q_row = {form.query.steps[2]}, k_row = {form.key.steps[2]};",
        f"  static constexpr int64_t v_row = {form.value.steps[2]}, o_row = {form.output_steps[2]};",
        f"  static constexpr int64_t mask_query = {mask[2]}, mask_key = {mask[3]};",
        f"  static constexpr bool causal = {word(form.causal)}, masked = {word(form.mask is not None)};",
        f"  static constexpr float scale = float({form.scale!r});",
        "};",
        f'extern "C" void {ENTRY}(void* const* buffers) {{',
        "  #pragma omp parallel",
        "  {",
        "    ca::attention<sizes> one;",
        "    #pragma omp for schedule(dynamic)",
        f"    for (int64_t task = 0; task < {form.batches * form.heads * pieces}; ++task) {{",
        f"      const int64_t head = task / {pieces} % {form.heads}, batch = task / {pieces * form.heads};",
        f"      const int64_t shared = head / {heads};",
        *(_operand(name, m) for name, m in operands.items() if m is not None),
        f"      one.out = static_cast<float*>(buffers[{len(task.inputs)}]) + {offset(form.output_steps, 'head')};",
        # the last queries of a causal head are the most work
        f"      one.run(({pieces - 1} - task % {pieces}) * {rows});",
        "    }",
        "  }",
        "}",
        "",
    ]


def _operand(name: str, operand: Matrices) -> str:
    at = offset(operand.steps, "shared" if name in ("k", "v") else "head")
    return f"      one.{name} = static_cast<const float*>(buffers[{operand.input}]) + {at};"
