"""What kernels of all kinds of attention on cuda have in common: constants, and how a block finds its head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cuda_agent_backend.codegen.analysis.attention import Attention, Matrices, offset, word
from cuda_agent_backend.codegen.cuda.common.text import kernel_lines
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.headers import header
from cuda_agent_backend.codegen.ir.printer import STORAGE_TYPES
from cuda_agent_backend.codegen.ir.value_types import WIDE
from sandbox.plan.plan import Buffer, Launch, Plan
from sandbox.task.task import Task

MAX_BLOCKS = 2**31 - 1
ENTRY = "k0"


@dataclass(frozen=True)
class HeadBlock:
    """A block of a head. rows: queries. bounds: what its registers are limited by, as ``__launch_bounds__`` has it."""

    rows: int
    threads: int
    shared_bytes: int
    bounds: str


def prelude(names: Sequence[str]) -> list[str]:
    return [header(name) for name in names]


def check_output(form: Attention) -> None:
    """Raises Unsupported where pairs of results cannot be stored at once."""
    if any(step % 2 for step in form.output_steps[:3]):
        raise Unsupported("an output whose rows are not aligned")


def plan_of(task: Task, form: Attention, block: HeadBlock) -> Plan:
    """Raises Unsupported where there are too many blocks."""
    count = form.batches * form.heads * ceildiv(form.queries, block.rows)
    if count > MAX_BLOCKS:
        raise Unsupported(f"{count} blocks")
    inputs = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(task.inputs)]
    buffers = (*inputs, Buffer("out", "output", task.output_specs[0]))
    names = tuple(b.name for b in buffers)
    launch = Launch(ENTRY, (count, 1, 1), (block.threads, 1, 1), block.shared_bytes, names)
    return Plan("cuda", buffers, (launch,))


def vector_of(steps: Sequence[int], largest: int) -> int:
    """Elements of a copy, ``largest`` at most, that these strides allow."""
    return next(v for v in (8, 4, 2, 1) if v <= largest and all(s % v == 0 for s in steps))


def operand_steps(form: Attention) -> list[int]:
    """Strides of what products read, between rows and above."""
    return [s for m in (form.query, form.key, form.value) for s in m.steps[:3]]


def bias_steps(form: Attention) -> tuple[int, ...]:
    return form.mask.steps if form.mask else (0, 0, 0, 0)


def head_constants(form: Attention) -> list[str]:
    """Of the struct ``sizes``: all that does not depend on the schedule."""
    bias = bias_steps(form)
    reach = max(abs(n * s) for n, s in _rows(form))
    return [
        f"  typedef {STORAGE_TYPES[form.dtype]} number;",
        f"  typedef {'int64_t' if reach >= WIDE else 'int'} index;",
        f"  static constexpr int size = {form.size}, width = {form.size};",
        f"  static constexpr int queries = {form.queries}, keys = {form.keys};",
        f"  static constexpr index q_row = {form.query.steps[2]}, k_row = {form.key.steps[2]};",
        f"  static constexpr index v_row = {form.value.steps[2]}, o_row = {form.output_steps[2]};",
        f"  static constexpr index bias_row = {bias[2]}, bias_key = {bias[3]};",
        f"  static constexpr bool causal = {word(form.causal)}, skips = {word(_skips(form))};",
        f"  static constexpr bool all_keys = {word(form.all_keys)}, guarded = {word(form.guarded)};",
        f"  static constexpr bool biased = {word(form.mask is not None)};",
        f"  typedef {_mask_type(form)} bias_number;",
        f"  static constexpr bool fills = {word(form.fill is not None)}, hides = {word(bool(form.hides))};",
        f"  static constexpr bool chooses = {word(form.hides is not None)};",
        f"  static constexpr bool capped = {word(form.cap is not None)};",
        f"  static constexpr float fill = {_number(form.fill)}, cap = float({form.cap or 1.0!r});",
        f"  static constexpr float scale = float({form.scale!r});",
        f"  static constexpr float early = float({form.early!r}), late = float({form.scale / form.early!r});",
    ]


def _mask_type(form: Attention) -> str:
    return "bool" if form.hides is not None else STORAGE_TYPES[form.dtype]


def _number(fill: float | None) -> str:
    if fill is None or math.isinf(fill):
        return "-INFINITY" if fill is None or fill < 0 else "INFINITY"
    if math.isnan(fill):
        return "NAN"
    return f"float({fill!r})"


def _skips(form: Attention) -> bool:
    """Whether tiles of keys that a block does not see are left out. Where they count unless products are numbers, the
    kernel looks at what is multiplied, so factors must not make it any larger; those that a finite score hides have
    their share of a row whose own scores are as low. In half precision to look takes as long as to multiply."""
    if not form.causal or not form.all_keys:
        return form.causal
    larger = max(form.scale, form.early, form.scale / form.early) > 1
    counts = form.fill is not None and form.fill != -math.inf
    return form.dtype == torch.float32 and not counts and not larger


def _rows(form: Attention) -> list[tuple[int, int]]:
    """Counts and strides of what is stepped through within a head."""
    bias = bias_steps(form)
    return [
        (form.queries, form.query.steps[2]),
        (form.keys, form.key.steps[2]),
        (form.keys, form.value.steps[2]),
        (form.queries, form.output_steps[2]),
        (form.queries, bias[2] + form.keys * bias[3]),
    ]


def head_kernel(task: Task, form: Attention, block: HeadBlock, scheme: str) -> list[str]:
    """scheme: what in C works on a block, given ``sizes``."""
    pieces, heads = ceildiv(form.queries, block.rows), form.batches * form.heads
    element = STORAGE_TYPES[form.dtype]
    operands = {"q": form.query, "k": form.key, "v": form.value, "bias": form.mask}
    # the last queries of a causal head are the most work, so they come first
    number, piece = (
        (f"block % {heads}", f"{pieces - 1} - blockIdx.x / {heads}")
        if form.causal
        else (f"block / {pieces}", f"blockIdx.x % {pieces}")
    )
    types = [element] * len(task.inputs)
    if form.mask is not None:
        types[form.mask.input] = _mask_type(form)
    inputs = [f"const {type_}* __restrict__ in{i}" for i, type_ in enumerate(types)]
    body = [
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
        f"  ca::{scheme}<sizes> one;",
        f"  one.first = ({piece}) * {block.rows};",
        "  one.run(reinterpret_cast<float*>(shared), find);",
    ]
    parameters = [*inputs, f"{element}* __restrict__ out"]
    return [*kernel_lines(ENTRY, block.bounds, parameters, body), ""]


def _operand(name: str, operand: Matrices) -> str:
    at = offset(operand.steps, "shared_head" if name in ("k", "v") else "head")
    return f"    found.{name} = in{operand.input} + {at};"


def wide_product(head: str, kind: str, count: int, by_rows: bool, left: int = 4) -> list[str]:
    """The function of a warp group's product, as ``gemm_wide.cuh`` has some, for ``count`` sums of a thread: the
    instruction names each of them. head: its beginning up to the name; kind: the operands' type, the second's by rows
    or by terms; left: registers of the first, 0 where it is in shared memory too, by terms."""
    names = ", ".join(f"%{i}" for i in range(count))
    sums = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    shape = f"wgmma.mma_async.sync.aligned.m64n{2 * count}k16.f32.{kind}.{kind}"
    parts = [f"%{count + i}" for i in range(left)]
    first = f"{{{', '.join(parts)}}}" if left else f"%{count}"
    given = [f'"r"(a[{i}])' for i in range(left)] or ['"l"(a)']
    second, more = count + len(given), count + len(given) + 1
    layouts = f"{'' if left else '0, '}{int(by_rows)}"
    type_ = f"const unsigned (&a)[{left}]" if left else "uint64_t a"
    return [
        f"{head}(float (&d)[{count}], {type_}, uint64_t b, int more) {{",
        f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{more}, 0; {shape} {{{names}}}, "',
        f'               "{first}, %{second}, p, 1, 1, {layouts}; }}"',
        f"               : {sums}",
        f'               : {", ".join(given)}, "l"(b), "r"(more));',
        "}",
    ]
