"""Rows mixed by weights that are scores -> CUDA on tensor cores, as attention without its softmax."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cuda_agent_backend.codegen.analysis.attention import Matrices, offset, word
from cuda_agent_backend.codegen.cuda.attention.common import ENTRY, MAX_BLOCKS, prelude, vector_of
from cuda_agent_backend.codegen.cuda.attention.float32.schedules import BY_TURNS, AttentionBlocks
from cuda_agent_backend.codegen.cuda.attention.float32.writer import (
    PRELUDE,
    RELAY_TILES,
    relay_prelude,
)
from cuda_agent_backend.codegen.cuda.attention.linear.match import (
    MIXED,
    SCORE,
    TOTAL,
    LinearAttention,
)
from cuda_agent_backend.codegen.cuda.attention.linear.place_functions import PlaceFunction
from cuda_agent_backend.codegen.cuda.attention.linear.schedules import (
    LinearBlocks,
    blocks_of_a_part,
    guesses,
    is_wide,
    part_counts,
)
from cuda_agent_backend.codegen.cuda.common.parts import temporary
from cuda_agent_backend.codegen.cuda.common.text import kernel_lines
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts, ceildiv, gpu_facts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.parameters import require
from cuda_agent_backend.codegen.ir.printer import STORAGE_TYPES, half_types
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.ir.value_types import WIDE
from sandbox.plan.plan import Buffer, Launch, Plan
from sandbox.task.specs import TensorSpec
from sandbox.task.task import Task

JOIN = "k1"
OWN = ("cuda/attention/attention_tiles.cuh", "cuda/attention/linear/linear.cuh")
JOINING = 256
"""Threads of a block of the second kernel."""


@dataclass(frozen=True)
class CudaLinearAttention:
    """A task that mixes rows by scores, as one kernel (see ``api.Analysis``)."""

    task: Task
    form: LinearAttention
    family = "mixing by scores"

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        facts, form = gpu_facts(device), self.form
        found = []
        for blocks in guesses(form):
            for parts in part_counts(form, blocks, facts):
                split = LinearBlocks(**blocks.__dict__, parts=parts)
                try:
                    split.check_mixing(form, facts)
                except Unsupported:
                    continue
                found.append(Schedule.of(dict(split.__dict__)))
        return found

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        """Source and plan.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """
        blocks = require(LinearBlocks, schedule.only())
        blocks.check_mixing(self.form, gpu_facts(device))
        text = [
            *half_types(getattr(torch, spec.dtype) for spec in self.task.inputs),
            *_prelude(self.form, blocks),
            *_sizes(self.task, self.form, blocks),
            *_kernel(self.task, self.form, blocks),
            *(_joining(self.task, self.form, blocks) if blocks.parts > 1 else ()),
        ]
        return "\n".join(text), _plan(self.task, self.form, blocks)


def _prelude(form: LinearAttention, blocks: AttentionBlocks) -> list[str]:
    if not blocks.relay:
        return prelude((*PRELUDE, *OWN))
    return [
        *relay_prelude(form.width, blocks),
        *prelude((*OWN, *RELAY_TILES, "cuda/attention/linear/linear_relay.cuh")),
    ]


def _results(form: LinearAttention) -> int:
    return form.batches * form.heads * form.queries * form.width


def _plan(task: Task, form: LinearAttention, blocks: LinearBlocks) -> Plan:
    count = blocks_of_a_part(form, blocks) * blocks.parts
    if max(count, _results(form)) > MAX_BLOCKS:
        raise Unsupported(f"{count} blocks")
    inputs = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(task.inputs)]
    outside = (*inputs, Buffer("out", "output", task.output_specs[0]))
    between = _between(form, blocks) if blocks.parts > 1 else ()
    names = tuple(b.name for b in (*outside, *between))
    shared = blocks.shared_bytes(form.size, form.width)
    steps = [Launch(ENTRY, (count, 1, 1), (blocks.threads, 1, 1), shared, names)]
    if between:
        joining = ceildiv(_results(form), JOINING)
        steps.append(Launch(JOIN, (joining, 1, 1), (JOINING, 1, 1), 0, names))
    return Plan("cuda", (*outside, *between), tuple(steps))


def _between(form: LinearAttention, blocks: LinearBlocks) -> tuple[Buffer, ...]:
    """What the parts made: sums of what is mixed, and of weights."""
    results = _results(form)
    return (
        temporary("sums", torch.float32, blocks.parts * results),
        temporary("totals", torch.float32, blocks.parts * results // form.width),
    )


def _sizes(task: Task, form: LinearAttention, blocks: LinearBlocks) -> list[str]:
    steps = [s for m in (form.query, form.key, form.value) for s in m.steps[:3]]
    pairs = all(step % 2 == 0 for step in form.output_steps[:3])
    index = "int64_t" if _reach(task) >= WIDE else "int"
    weigh = PlaceFunction.of("weigh", f"float {SCORE}", form.weigh, SCORE, index)
    end = PlaceFunction.of("end", f"float {MIXED}, float {TOTAL}", form.end, MIXED, index)
    numbers = [f"float {name};" for name in (*weigh.numbers, *end.numbers)]
    given = [*(f"{_pointer(task.inputs[i])} in{i};" for i in form.inputs), *numbers]
    return [
        "struct sizes {",
        f"  typedef {index} index;",
        f"  struct operands {{ {' '.join(given)} }};",
        f"  static constexpr int size = {form.size}, width = {form.width};",
        f"  static constexpr int queries = {form.queries}, keys = {form.keys};",
        f"  static constexpr index q_row = {form.query.steps[2]}, k_row = {form.key.steps[2]};",
        f"  static constexpr index v_row = {form.value.steps[2]}, o_row = {form.output_steps[2]};",
        f"  static constexpr int rows = {blocks.rows}, block = {blocks.keys}, stages = {blocks.stages};",
        f"  static constexpr int fragments = {blocks.warp // 16}, vector = {vector_of(steps, 4)};",
        f"  static constexpr bool kept = {word(bool(blocks.kept))}, apart = {word(bool(blocks.split))};",
        f"  static constexpr bool turns = {word(blocks.relay == BY_TURNS)};",
        f"  static constexpr int parts = {blocks.parts};",
        f"  static constexpr bool out_pairs = {word(pairs)}, summed = {word(form.summed)};",
        "  static CA_INLINE void prepare(operands& given, int matrix) {",
        *weigh.preparing,
        *end.preparing,
        "  }",
        *weigh.lines,
        *end.lines,
        "};",
    ]


def _reach(task: Task) -> int:
    """Elements that an index steps over, at most."""
    return max(spec.extent for spec in (*task.inputs, *task.output_specs))


def _pointer(spec: TensorSpec) -> str:
    return f"const {STORAGE_TYPES[getattr(torch, spec.dtype)]}* __restrict__"


def _parameters(task: Task, blocks: LinearBlocks) -> list[str]:
    inputs = [f"{_pointer(spec)} in{i}" for i, spec in enumerate(task.inputs)]
    between = ["float* __restrict__ sums", "float* __restrict__ totals"] if blocks.parts > 1 else []
    return [*inputs, "float* __restrict__ out", *between]


def _kernel(task: Task, form: LinearAttention, blocks: LinearBlocks) -> list[str]:
    pieces, count = ceildiv(form.queries, blocks.rows), blocks_of_a_part(form, blocks)
    operands = {"q": form.query, "k": form.key, "v": form.value}
    limited = blocks.relay or is_wide(form)
    bounds = f"{blocks.threads}, {blocks.resident}" if limited else f"{blocks.threads}"
    scheme = "relay_mixing" if blocks.relay else "mixing"
    body = [
        "  extern __shared__ __align__(16) unsigned char shared[];",
        "  const auto find = [&](int block) {",
        f"    const int part = block / {count}, number = block % {count} / {pieces};",
        f"    const int64_t batch = number / {form.heads}, head = number % {form.heads};",
        f"    const int64_t shared_head = head / {form.heads // form.shared_heads};",
        "    ca::mixing_head<sizes> found = {};",
        *(_operand(name, m) for name, m in operands.items()),
        f"    found.out = out + {offset(form.output_steps, 'head')};",
        *(f"    found.given.in{i} = in{i};" for i in form.inputs),
        "    found.matrix = number;",
        "    sizes::prepare(found.given, number);",
        *(_part_of(form, blocks) if blocks.parts > 1 else [f"    found.begin = 0, found.end = {form.keys};"]),
        "    return found;",
        "  };",
        f"  ca::{scheme}<sizes> one;",
        f"  one.first = blockIdx.x % {pieces} * {blocks.rows};",
        "  one.run(reinterpret_cast<float*>(shared), find);",
    ]  # fmt: skip
    return [*kernel_lines(ENTRY, bounds, _parameters(task, blocks), body), ""]


def _part_of(form: LinearAttention, blocks: LinearBlocks) -> list[str]:
    keys, matrices = blocks.part_keys(form), form.batches * form.heads
    line = f"(int64_t(part) * {matrices} + number) * {form.queries}"
    return [
        f"    found.begin = part * {keys};",
        f"    found.end = part == {blocks.parts - 1} ? {form.keys} : found.begin + {keys};",
        f"    found.sums = sums + {line} * {form.width}, found.totals = totals + {line};",
    ]


def _joining(task: Task, form: LinearAttention, blocks: LinearBlocks) -> list[str]:
    """The kernel that adds up what parts made."""
    results, width = _results(form), form.width
    body = [
        f"  const int at = blockIdx.x * {JOINING} + threadIdx.x;",
        f"  if (at >= {results}) return;",
        f"  const int line = at / {width}, column = at % {width};",
        f"  const int number = line / {form.queries}, row = line % {form.queries};",
        f"  const int64_t batch = number / {form.heads}, head = number % {form.heads};",
        "  sizes::operands given = {};",
        *(f"  given.in{i} = in{i};" for i in form.inputs),
        "  sizes::prepare(given, number);",
        f"  const float mixed = ca::joined<sizes>(sums + at, {results});",
        f"  const float total = ca::joined<sizes>(totals + line, {results // width});",
        f"  out[{offset(form.output_steps, 'head')} + int64_t(row) * {form.output_steps[2]} + column] =",
        "      sizes::end(given, number, row, column, mixed, total);",
    ]
    return [*kernel_lines(JOIN, JOINING, _parameters(task, blocks), body), ""]


def _operand(name: str, operand: Matrices) -> str:
    at = offset(operand.steps, "head" if name == "q" else "shared_head")
    return f"    found.{name} = in{operand.input} + {at};"
