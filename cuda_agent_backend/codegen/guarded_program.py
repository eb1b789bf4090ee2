"""Two programs for one task as one: the second is carried out only where a guard says that the first does not hold.

The first makes, beside the task's outputs, guards: one number each, 0 where its results hold (`rewrite.rule`). Nothing
waits for them on the host: on cuda each kernel of the second program reads them and ends at once, on the cpu its
function is not called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import torch

from cuda_agent_backend.codegen.cpu.writer import ENTRY
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.printer import STORAGE_TYPES
from cuda_agent_backend.codegen.ir.program import Program
from sandbox.plan.plan import Launch, Plan
from sandbox.plan.steps import Argument, Buffer, TensorMap
from sandbox.task.specs import TensorSpec

KERNEL = re.compile(r'(extern "C" __global__ void[^{;]*?\bk\d+\w*\()([^{;]*\)\s*\{)')
FIRST, SECOND = f"{ENTRY}_first", f"{ENTRY}_second"
"""Functions of the cpu."""


def guarded(first: Program, second: Program, guards: int) -> tuple[str, Plan]:
    """Source and plan of both. guards: how many of the first one's outputs, the last ones, are no outputs of the task.

    Kernels of cuda have other names in one than in the other, functions of the cpu are called `FIRST` and `SECOND`.

    Raises:
        Unsupported: a kernel of the second has no beginning that is known, or they need other definitions.
    """
    if first.preludes[:1] != second.preludes[:1]:
        raise Unsupported("the task as it stands needs other definitions than its rewritten form")
    if first.plan.calls or second.plan.calls:
        raise Unsupported("a library call, which cannot look at a guard")
    names, buffers = _buffers(first.plan, second.plan, guards)
    outputs = [b for b in first.plan.buffers if b.kind == "output"]
    tests = [b for b in buffers if b.name in {guard.name for guard in outputs[-guards:]}]
    preludes = tuple(dict.fromkeys((*first.preludes, *second.preludes)))
    if first.plan.target == "cpu":
        entry = _entry(first.plan, second.plan, names, buffers, tests)
        functions: tuple[str, ...] = (*first.functions, *second.functions, entry)
        plan = Plan("cpu", buffers, (Launch(ENTRY),))
    else:
        functions = (*first.functions, *_tested(second.functions, tests))
        mine = [s for s in first.plan.steps if isinstance(s, Launch)]
        again = [_again(s, names, tests) for s in second.plan.steps if isinstance(s, Launch)]
        plan = Plan("cuda", buffers, (*mine, *again))
    return Program(preludes, functions, plan).source, plan


def _buffers(first: Plan, second: Plan, guards: int) -> tuple[dict[str, str], tuple[Buffer, ...]]:
    """What the second's buffers are called among those of both, and these: guards are temporaries."""
    shared = [b for b in first.buffers if b.kind in ("input", "output")]
    named = zip((b for b in second.buffers if b.kind in ("input", "output")), shared, strict=False)
    names = {own.name: there.name for own, there in named}
    names |= {b.name: f"{b.name}_again" for b in second.buffers if b.name not in names}
    taken = [_as_temporary(b) for b in shared[-guards:]]
    others = [replace(b, name=names[b.name]) for b in second.buffers if b.kind == "temporary"]
    own = [b for b in first.buffers if b.kind == "temporary"]
    return names, (*shared[:-guards], *taken, *own, *others)


def _as_temporary(buffer: Buffer) -> Buffer:
    return Buffer(buffer.name, "temporary", TensorSpec(buffer.spec.dtype, (1,), (1,)))


def _ctype(buffer: Buffer) -> str:
    return STORAGE_TYPES[getattr(torch, buffer.spec.dtype)]


def _tested(functions: tuple[str, ...], tests: list[Buffer]) -> list[str]:
    """The functions with kernels that end at once where the guards are 0."""
    parameters = "".join(f"const {_ctype(b)}* guard{n}, " for n, b in enumerate(tests))
    hold = " && ".join(f"*guard{n} == 0" for n in range(len(tests)))
    made = [KERNEL.subn(rf"\g<1>{parameters}\g<2>\n  if ({hold}) return;", f) for f in functions]
    if sum(count for _, count in made) != sum(f.count("__global__") for f in functions):
        raise Unsupported(
            "a kernel whose beginning was not found, where it would have to look at a guard"
        )
    return [text for text, _ in made]


def _again(step: Launch, names: Mapping[str, str], tests: list[Buffer]) -> Launch:
    def named(argument: Argument) -> Argument:
        if isinstance(argument, TensorMap):
            return replace(argument, buffer=names[argument.buffer])
        return names[argument] if isinstance(argument, str) else argument

    return replace(step, args=(*(b.name for b in tests), *map(named, step.args)))


def _entry(
    first: Plan,
    second: Plan,
    names: Mapping[str, str],
    buffers: tuple[Buffer, ...],
    tests: list[Buffer],
) -> str:
    """The function of the cpu that calls one, and the other where it has to."""
    number = {b.name: n for n, b in enumerate(buffers)}

    def pointer(name: str) -> str:
        return f"buffers[{number[name]}]"

    mine = ", ".join(pointer(b.name) for b in first.buffers)
    again = ", ".join(pointer(names[b.name]) for b in second.buffers)
    hold = " && ".join(f"*static_cast<const {_ctype(b)}*>({pointer(b.name)}) == 0" for b in tests)
    return "\n".join(
        (
            f'extern "C" void {ENTRY}(void* const* buffers) {{',
            f"  void* const mine[] = {{{mine}}};",
            f"  {FIRST}(mine);",
            f"  if ({hold}) return;",
            f"  void* const again[] = {{{again}}};",
            f"  {SECOND}(again);",
            "}",
        )
    )
