"""Rows mixed by weights that are scores -> CUDA on tensor cores, as attention without its softmax.

Schedule parameters are those of `cuda_attention`, and ``parts``: the blocks that share the keys of a row, where rows
are too few to keep the device busy. A second kernel adds up what they made, always in one
order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy
import torch

from cuda_agent_backend.codegen.analysis.attention import Matrices, offset, word
from cuda_agent_backend.codegen.cuda.attention.common import ENTRY, MAX_BLOCKS, prelude, vector_of
from cuda_agent_backend.codegen.cuda.attention.float32 import (
    BY_TURNS,
    KEPT,
    PRELUDE,
    RELAY_TILES,
    RELAYS,
    Blocks,
    relay_prelude,
)
from cuda_agent_backend.codegen.cuda.attention.linear.hoist import shared_by_places
from cuda_agent_backend.codegen.cuda.attention.linear.match import (
    MIXED,
    SCORE,
    TOTAL,
    Mixing,
    Pointwise,
)
from cuda_agent_backend.codegen.cuda.common.access import LanePrinter, share_divisors
from cuda_agent_backend.codegen.cuda.common.narrow_integers import narrowed_body
from cuda_agent_backend.codegen.cuda.common.parts import temporary
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts, ceildiv, gpu_facts
from cuda_agent_backend.codegen.ir.printer import STORAGE_TYPES, half_types
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Unsupported
from cuda_agent_backend.codegen.ir.value_types import WIDE
from sandbox.plan.plan import Buffer, Launch, Plan
from sandbox.task.specs import TensorSpec
from sandbox.task.task import Task

JOIN = "k1"
OWN = ("cuda/attention/attention_tiles.cuh", "cuda/attention/linear/linear.cuh")
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


BUSY = 4
"""Blocks for each multiprocessor that parts are made for."""
MOST_PARTS, FEWEST_TILES, FEWEST_WIDE_TILES = 8, 16, 8
"""Of a row's keys, and of a part: of warps, and of warp groups."""
BLOCK_TILES, JOIN_TILES = 2, 2
"""Tiles in whose time a block begins and ends, and the second kernel runs."""
JOINING = 256
"""Threads of a block of the second kernel."""


@dataclass(frozen=True)
class Split(Blocks):
    """The schedule's parameters; see the module's description."""

    parts: int = 1

    def part_keys(self, form: Mixing) -> int:
        """Keys of each part but the last, which may have fewer."""
        return ceildiv(ceildiv(form.keys, self.keys), self.parts) * self.keys

    def check_mixing(self, form: Mixing, device: DeviceFacts) -> None:
        """Raises Unsupported where the parameters do not fit each other, the form or the device."""
        self.check(form.size, device, form.width)
        if self.parts < 1 or (self.parts - 1) * self.part_keys(form) >= form.keys:
            raise Unsupported(f"{self.parts} parts of {form.keys} keys")


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
            for parts in _parts(form, blocks, facts):
                split = Split(**blocks.__dict__, parts=parts)
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
        try:
            blocks = Split(**{name: int(value) for name, value in schedule.only().items()})
        except (TypeError, ValueError) as error:
            raise Unsupported(f"parameters of mixing by scores: {error}") from error
        blocks.check_mixing(self.form, gpu_facts(device))
        text = [
            *half_types(getattr(torch, spec.dtype) for spec in self.task.inputs),
            *_prelude(self.form, blocks),
            *_sizes(self.task, self.form, blocks),
            *_kernel(self.task, self.form, blocks),
            *(_joining(self.task, self.form, blocks) if blocks.parts > 1 else ()),
        ]
        return "\n".join(text), _plan(self.task, self.form, blocks)


def _prelude(form: Mixing, blocks: Blocks) -> list[str]:
    if not blocks.relay:
        return prelude((*PRELUDE, *OWN))
    return [
        *relay_prelude(form.width, blocks),
        *prelude((*OWN, *RELAY_TILES, "cuda/attention/linear/linear_relay.cuh")),
    ]


def _guesses(form: Mixing) -> tuple[Blocks, ...]:
    relays = [blocks for blocks, largest in RELAYS if max(form.size, form.width) <= largest]
    warps = WIDEST if _is_wide(form) else SMALL if form.size <= KEPT else LARGE
    return (*relays, *warps)


def _is_wide(form: Mixing) -> bool:
    return max(form.size, form.width) > ROOMY


def _parts(form: Mixing, blocks: Blocks, device: DeviceFacts) -> list[int]:
    """Worth trying, better guesses first."""
    tiles = ceildiv(form.keys, blocks.keys)
    if blocks.relay:
        return [_parts_in_waves(tiles, _count(form, blocks), device.sm_count * blocks.resident)]
    wanted = BUSY * device.sm_count // _count(form, blocks)
    parts = min(wanted, MOST_PARTS, tiles // FEWEST_TILES)
    return [parts, 1] if parts > 1 else [1]


def _parts_in_waves(tiles: int, blocks: int, together: int) -> int:
    """Parts of rows of so many tiles with which ``blocks`` for each take the least time, ``together`` at a time: one or
    two have all of a multiprocessor's registers, so that what does not fill a wave is idle."""

    def time(parts: int) -> int:
        return ceildiv(blocks * parts, together) * (ceildiv(tiles, parts) + BLOCK_TILES)

    most = min(MOST_PARTS, tiles // FEWEST_WIDE_TILES)
    whole = (p for p in range(2, most + 1) if (p - 1) * ceildiv(tiles, p) < tiles)
    best = min(whole, key=time, default=1)
    return best if time(best) + JOIN_TILES < time(1) else 1


def _count(form: Mixing, blocks: Blocks) -> int:
    """Blocks of a part."""
    return form.batches * form.heads * ceildiv(form.queries, blocks.rows)


def _results(form: Mixing) -> int:
    return form.batches * form.heads * form.queries * form.width


def _plan(task: Task, form: Mixing, blocks: Split) -> Plan:
    count = _count(form, blocks) * blocks.parts
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


def _between(form: Mixing, blocks: Split) -> tuple[Buffer, ...]:
    """What the parts made: sums of what is mixed, and of weights."""
    results = _results(form)
    return (
        temporary("sums", torch.float32, blocks.parts * results),
        temporary("totals", torch.float32, blocks.parts * results // form.width),
    )


def _sizes(task: Task, form: Mixing, blocks: Split) -> list[str]:
    steps = [s for m in (form.query, form.key, form.value) for s in m.steps[:3]]
    pairs = all(step % 2 == 0 for step in form.output_steps[:3])
    index = "int64_t" if _reach(task) >= WIDE else "int"
    weigh = _Function.of("weigh", f"float {SCORE}", form.weigh, SCORE, index)
    end = _Function.of("end", f"float {MIXED}, float {TOTAL}", form.end, MIXED, index)
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


@dataclass(frozen=True)
class _Function:
    """A function of a place and the values there.

    numbers: what it reads that is worked out before, once for a matrix, by ``preparing``.
    """

    lines: list[str]
    numbers: list[str]
    preparing: list[str]

    @staticmethod
    def of(name: str, values: str, what: Pointwise | None, otherwise: str, index: str) -> _Function:
        head = f"  static CA_INLINE float {name}(const operands& given, int matrix, int row, int column, {values}) {{"
        if what is None:
            return _Function([head, f"    return {otherwise};", "  }"], [], [])
        (stage,) = what.region.stages
        names = dict(zip(what.region.inputs, what.inputs, strict=True))
        at_hand = {b: name for b, name in names.items() if isinstance(name, str)}
        body = narrowed_body(_at_hand(stage.body, at_hand), dict(stage.outer), index != "int")
        shared = shared_by_places(
            body,
            [symbol for symbol, _ in stage.outer[-2:]],
            lambda b: what.region.buffers[b].dtype,
            f"given.{name}",
        )
        loops = _loops(stage.outer, index)
        # no division's slow routine, behind whose branch the other elements of a tile would wait
        rows = [symbol for symbol, _ in stage.outer]
        body = share_divisors(shared.body, {TOTAL, *shared.made}, rows)
        preparing = [
            line
            for number, made in shared.made.items()
            for line in ("    {", *loops[:-2], *_statements(what, made, f"{number} ="), "    }")
        ]
        return _Function(
            [head, *loops, *_statements(what, body, "return"), "  }"],
            [number.removeprefix("given.") for number in shared.made],
            preparing,
        )


def _statements(what: Pointwise, body: Body, result: str) -> list[str]:
    names = dict(zip(what.region.inputs, what.inputs, strict=True))
    printer = LanePrinter(
        None,
        lambda b: f"given.in{names[b]}",
        lambda i: f"ca::splat<float, L>({i.buffer})",
        lambda b: what.region.buffers[b].dtype,
    )
    return [
        "    constexpr int L = 1;",
        *printer.lines(body),
        f"    {result} v{body.results[0].number}.v[0];",
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


def _arguments(task: Task, blocks: Split) -> str:
    inputs = [f"{_pointer(spec)} in{i}" for i, spec in enumerate(task.inputs)]
    between = ["float* __restrict__ sums", "float* __restrict__ totals"] if blocks.parts > 1 else []
    return ", ".join([*inputs, "float* __restrict__ out", *between])


def _kernel(task: Task, form: Mixing, blocks: Split) -> list[str]:
    pieces, count = ceildiv(form.queries, blocks.rows), _count(form, blocks)
    operands = {"q": form.query, "k": form.key, "v": form.value}
    limited = blocks.relay or _is_wide(form)
    bounds = f"{blocks.threads}, {blocks.resident}" if limited else f"{blocks.threads}"
    scheme = "relay_mixing" if blocks.relay else "mixing"
    return [
        f'extern "C" __global__ void __launch_bounds__({bounds})',
        f"{ENTRY}({_arguments(task, blocks)}) {{",
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
        "}",
        "",
    ]  # fmt: skip


def _part_of(form: Mixing, blocks: Split) -> list[str]:
    keys, matrices = blocks.part_keys(form), form.batches * form.heads
    line = f"(int64_t(part) * {matrices} + number) * {form.queries}"
    return [
        f"    found.begin = part * {keys};",
        f"    found.end = part == {blocks.parts - 1} ? {form.keys} : found.begin + {keys};",
        f"    found.sums = sums + {line} * {form.width}, found.totals = totals + {line};",
    ]


def _joining(task: Task, form: Mixing, blocks: Split) -> list[str]:
    """The kernel that adds up what parts made."""
    results, width = _results(form), form.width
    return [
        f'extern "C" __global__ void __launch_bounds__({JOINING})',
        f"{JOIN}({_arguments(task, blocks)}) {{",
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
        "}",
        "",
    ]


def _operand(name: str, operand: Matrices) -> str:
    at = offset(operand.steps, "head" if name == "q" else "shared_head")
    return f"    found.{name} = in{operand.input} + {at};"
