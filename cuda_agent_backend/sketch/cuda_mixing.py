"""Rows mixed by weights that are scores -> CUDA on tensor cores, as attention without its softmax.

Schedule parameters are those of `cuda_attention` for warps (``relay`` is 0).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy
import torch

from cuda_agent_backend.sketch.attention import Matrices, offset, word
from cuda_agent_backend.sketch.cuda_attention import KEPT, PRELUDE, Blocks
from cuda_agent_backend.sketch.cuda_attention_text import ENTRY, MAX_BLOCKS, prelude, vector_of
from cuda_agent_backend.sketch.cuda_layout import DeviceFacts, ceildiv
from cuda_agent_backend.sketch.cuda_narrow import narrowed_body
from cuda_agent_backend.sketch.cuda_parts import WIDE
from cuda_agent_backend.sketch.device import CpuFacts, gpu_facts
from cuda_agent_backend.sketch.mixing import MIXED, SCORE, TOTAL, Mixing, Pointwise
from cuda_agent_backend.sketch.printer import STORAGE_TYPES, Printer
from cuda_agent_backend.sketch.schedule import Schedule
from cuda_agent_backend.sketch.ssa import Body, Instruction, Unsupported
from sandbox.plan import Buffer, Launch, Plan
from sandbox.specs import TensorSpec
from sandbox.task import Task

OWN = ("attention_tiles.cuh", "mixing.cuh")
SMALL = (
    Blocks(64, 16, 64, 2, 1, 1), Blocks(64, 16, 32, 2, 0, 1), Blocks(128, 16, 64, 2, 0, 1),
    Blocks(64, 16, 32, 2, 1, 0),
)  # fmt: skip
"""For rows of Q up to ``KEPT``, better guesses first."""
LARGE = (
    Blocks(64, 16, 32, 2, 0, 1), Blocks(128, 16, 64, 2, 0, 1), Blocks(64, 16, 64, 2, 0, 1),
    Blocks(64, 16, 32, 2, 0, 0),
)  # fmt: skip
"""For those that would leave too few registers if they stayed there."""
ROOMY, WIDEST = 96, (Blocks(64, 16, 32, 2, 0, 0),)
"""For the widest rows there are registers in no other way, and fewer blocks to each multiprocessor."""


@dataclass(frozen=True)
class CudaMixing:
    """A task that mixes rows by scores, as one kernel (see ``api.Analysis``)."""

    task: Task
    form: Mixing
    family = "mixing by scores"

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        facts, form = gpu_facts(device), self.form
        found = []
        for blocks in _guesses(form):
            try:
                blocks.check(form.size, facts, form.width)
            except Unsupported:
                continue
            found.append(Schedule.of(dict(blocks.__dict__)))
        return found

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        """Source and plan.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """
        try:
            blocks = Blocks(**{name: int(value) for name, value in schedule.only().items()})
        except (TypeError, ValueError) as error:
            raise Unsupported(f"parameters of mixing by scores: {error}") from error
        if blocks.relay:
            raise Unsupported("warp groups that mix by scores")
        blocks.check(self.form.size, gpu_facts(device), self.form.width)
        text = [
            *prelude((*PRELUDE, *OWN)),
            *_sizes(self.task, self.form, blocks),
            *_kernel(self.task, self.form, blocks),
        ]
        return "\n".join(text), _plan(self.task, self.form, blocks)


def _guesses(form: Mixing) -> tuple[Blocks, ...]:
    if _is_wide(form):
        return WIDEST
    return SMALL if form.size <= KEPT else LARGE


def _is_wide(form: Mixing) -> bool:
    return max(form.size, form.width) > ROOMY


def _count(form: Mixing, blocks: Blocks) -> int:
    return form.batches * form.heads * ceildiv(form.queries, blocks.rows)


def _plan(task: Task, form: Mixing, blocks: Blocks) -> Plan:
    count = _count(form, blocks)
    if count > MAX_BLOCKS:
        raise Unsupported(f"{count} blocks")
    inputs = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(task.inputs)]
    buffers = (*inputs, Buffer("out", "output", task.output_specs[0]))
    shared = blocks.shared_bytes(form.size, form.width)
    names = tuple(b.name for b in buffers)
    return Plan(
        "cuda", buffers, (Launch(ENTRY, (count, 1, 1), (blocks.threads, 1, 1), shared, names),)
    )


def _sizes(task: Task, form: Mixing, blocks: Blocks) -> list[str]:
    steps = [s for m in (form.query, form.key, form.value) for s in m.steps[:3]]
    pairs = all(step % 2 == 0 for step in form.output_steps[:3])
    index = "int64_t" if _reach(task) >= WIDE else "int"
    given = [f"{_pointer(task.inputs[i])} in{i};" for i in form.inputs]
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
        f"  static constexpr bool out_pairs = {word(pairs)}, summed = {word(form.summed)};",
        *_function("weigh", f"float {SCORE}", form.weigh, SCORE, index),
        *_function("end", f"float {MIXED}, float {TOTAL}", form.end, MIXED, index),
        "};",
    ]


def _reach(task: Task) -> int:
    """Elements that an index steps over, at most."""
    return max(spec.extent for spec in (*task.inputs, *task.output_specs))


def _pointer(spec: TensorSpec) -> str:
    return f"const {STORAGE_TYPES[getattr(torch, spec.dtype)]}* __restrict__"


def _function(
    name: str, values: str, what: Pointwise | None, otherwise: str, index: str
) -> list[str]:
    """A function of a place and the values there."""
    body = [f"    return {otherwise};"] if what is None else _statements(what, index)
    head = f"  static CA_INLINE float {name}(const operands& given, int matrix, int row, int column, {values}) {{"
    return [head, *body, "  }"]


def _statements(what: Pointwise, index: str) -> list[str]:
    (stage,) = what.region.stages
    names = dict(zip(what.region.inputs, what.inputs, strict=True))
    at_hand = {b: name for b, name in names.items() if isinstance(name, str)}
    body = narrowed_body(_at_hand(stage.body, at_hand), dict(stage.outer), index != "int")
    printer = Printer(
        None,
        lambda b: f"given.in{names[b]}",
        lambda i: f"ca::splat<float, L>({i.buffer})",
        lambda b: what.region.buffers[b].dtype,
    )
    return [
        "    constexpr int L = 1;",
        *_loops(stage.outer, index),
        *printer.lines(body),
        f"    return v{body.results[0].number}.v[0];",
    ]


def _at_hand(body: Body, names: Mapping[str, str]) -> Body:
    """The body with values that are at hand in the place of loads."""

    def one(i: Instruction) -> Instruction:
        if i.op == "load" and i.buffer is not None and i.buffer in names:
            return replace(i, op="local", buffer=names[i.buffer])
        return i if i.body is None else replace(i, body=_at_hand(i.body, names))

    return Body([one(i) for i in body.instructions], body.results)


def _loops(loops: tuple[tuple[sympy.Symbol, int], ...], index: str) -> list[str]:
    """The loops' variables of the number of the matrix and a place in it."""
    found, outer = list[str](), loops[:-2]
    for number, (symbol, size) in enumerate(outer):
        inner = math.prod(n for _, n in outer[number + 1 :])
        found.append(f"    const {index} {symbol} = ca::imod(ca::idiv(matrix, {inner}), {size});")
    for (symbol, _), place in zip(loops[-2:], ("row", "column"), strict=True):
        found.append(f"    const {index} {symbol} = {place};")
    return found


def _kernel(task: Task, form: Mixing, blocks: Blocks) -> list[str]:
    pieces = ceildiv(form.queries, blocks.rows)
    operands = {"q": form.query, "k": form.key, "v": form.value}
    bounds = f"{blocks.threads}, 1" if _is_wide(form) else f"{blocks.threads}"
    inputs = [f"{_pointer(spec)} in{i}" for i, spec in enumerate(task.inputs)]
    return [
        f'extern "C" __global__ void __launch_bounds__({bounds})',
        f"{ENTRY}({', '.join(inputs)}, float* __restrict__ out) {{",
        "  extern __shared__ __align__(16) unsigned char shared[];",
        "  const auto find = [&](int block) {",
        f"    const int number = block / {pieces};",
        f"    const int64_t batch = number / {form.heads}, head = number % {form.heads};",
        f"    const int64_t shared_head = head / {form.heads // form.shared_heads};",
        "    ca::mixing_head<sizes> found = {};",
        *(_operand(name, m) for name, m in operands.items()),
        f"    found.out = out + {offset(form.output_steps, 'head')};",
        *(f"    found.given.in{i} = in{i};" for i in form.inputs),
        "    found.matrix = number;",
        "    return found;",
        "  };",
        "  ca::mixing<sizes> one;",
        f"  one.first = blockIdx.x % {pieces} * {blocks.rows};",
        "  one.run(reinterpret_cast<float*>(shared), find);",
        "}",
        "",
    ]


def _operand(name: str, operand: Matrices) -> str:
    at = offset(operand.steps, "head" if name == "q" else "shared_head")
    return f"    found.{name} = in{operand.input} + {at};"
