"""A plan for Triton: what Triton is asked to compile for each of its steps, and the launches that come of it.

What is promised to the compiler is what holds at every launch. The sizes of a plan are numbers, so what an integer
argument can be divided by is known, and one that is 1 becomes a constant and is no argument any more, as in Triton's
own launches. Pointers can be divided by 16 because the launcher sees to it (`pointers_are_aligned`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sandbox.plan.alignment import INPUT_ALIGNMENT, TEMPORARY_ALIGNMENT
from sandbox.plan.library_calls import LibraryCall
from sandbox.plan.plan import Buffer, Launch, Plan, PlanError, Scalar, TritonLaunch
from sandbox.plan.steps import Argument, require, resolve_arguments, resolve_triple
from sandbox.task.specs import TensorSpec

DIVISOR = 16
"""The one number by which Triton wants to know whether something can be divided."""
WARP = 32
MAX_HIDDEN = 2
"""Pointers that Triton adds to a kernel's parameters: scratch memory, and memory for its profiler."""
MAX_SCRATCH = 1 << 30
POINTERS = {
    "float64": "*fp64",
    "float32": "*fp32",
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "int64": "*i64",
    "int32": "*i32",
    "int16": "*i16",
    "int8": "*i8",
    "uint8": "*u8",
    "bool": "*i1",
    "float8_e4m3fn": "*fp8e4nv",
    "float8_e5m2": "*fp8e5",
}
_SCALARS = {"i32": "i32", "i64": "i64", "f32": "fp32"}
_BYTES = {"i32": 4, "i64": 8, "f32": 4}


@dataclass(frozen=True)
class Built:
    """A kernel as it came out. Checked by `read_built`, but for what is said of it: the machine code decides that.

    threads: of a block. shared: dynamic shared memory in bytes. scratch: bytes for each block.
    """

    name: str
    threads: int
    shared: int
    scratch: int


def is_triton(plan: Plan) -> bool:
    """Whether all steps but library calls are Triton's."""
    return all(isinstance(step, TritonLaunch | LibraryCall) for step in plan.steps)


def has_triton(plan: Plan) -> bool:
    """Whether any step is Triton's."""
    return any(isinstance(step, TritonLaunch) for step in plan.steps)


def pointers_are_aligned() -> bool:
    """Whether all that a launch passes can be divided by `DIVISOR`: inputs are copied where they could not be,
    temporaries lie in one block, and an output begins one of torch's allocations."""
    return INPUT_ALIGNMENT["cuda"] % DIVISOR == 0 and TEMPORARY_ALIGNMENT % DIVISOR == 0


def request(step: TritonLaunch, plan: Plan, aligned: bool) -> dict[str, Any]:
    """What the child is to compile: see `triton_child`. aligned: see `pointers_are_aligned`."""
    dtypes = {buffer.name: buffer.spec.dtype for buffer in plan.buffers}
    return {
        "kernel": step.kernel,
        "args": [_described(a, dtypes, aligned) for a in resolve_arguments(step.args, plan.sizes)],
        "constexprs": dict(step.constexprs),
        "options": {
            "num_warps": step.num_warps,
            "num_stages": step.num_stages,
            "num_ctas": step.num_ctas,
        },
    }


def _described(argument: Argument, dtypes: Mapping[str, str], aligned: bool) -> dict[str, Any]:
    if isinstance(argument, str):
        return {"type": POINTERS[dtypes[argument]], "divisible": aligned}
    if is_constant(argument):
        return {"constant": 1}
    assert isinstance(argument, Scalar)  # see `check_plan`
    whole = argument.type != "f32" and isinstance(argument.value, int)
    return {
        "type": _SCALARS[argument.type],
        "divisible": whole and int(argument.value) % DIVISOR == 0,
    }


def is_constant(argument: Argument) -> bool:
    """Whether Triton makes a constant of it, so that it is no argument."""
    return isinstance(argument, Scalar) and argument.type != "f32" and argument.value == 1


def read_built(found: Any, name: str) -> Built:
    """What the child says of a kernel that is now called `name`. Raises PlanError on anything that cannot be launched.

    It is not trusted: numbers that are too small are the kernel's own loss, as in any plan.
    """
    numbers = ("num_warps", "shared", "global_scratch_size", "profile_scratch_size")
    require(isinstance(found, dict), "what came out is no object")
    for key in numbers:
        value = found.get(key)
        require(type(value) is int and 0 <= value <= MAX_SCRATCH, f"{key} is {value!r}")
    require(found["profile_scratch_size"] == 0, "kernels that write profiles are not launched")
    for key in ("launch_cooperative_grid", "launch_pdl", "tmem_size", "tensordesc_meta"):
        require(not found.get(key), f"{key} is not supported")
    warps, shared, scratch = (found[key] for key in numbers[:3])
    return Built(name, WARP * warps, shared, scratch)


def lower(plan: Plan, built: Sequence[Built], parameters: Mapping[str, Sequence[int]]) -> Plan:
    """The launch plan of the compiled kernels, one for each step that is no library call.

    parameters: of each kernel in the machine code, in bytes. Raises PlanError where the two do not fit.
    """
    steps: list[Launch | LibraryCall] = []
    made = iter(built)
    scratch: list[Buffer] = []
    own = sum(isinstance(step, TritonLaunch) for step in plan.steps)
    require(own == len(built), f"{len(built)} kernels for {own} steps")
    for index, step in enumerate(plan.steps):
        if isinstance(step, LibraryCall):
            steps.append(step)
            continue
        assert isinstance(step, TritonLaunch)
        kernel = next(made)
        launch = _launch(step, plan, kernel)
        space = None
        if kernel.scratch:
            blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]  # type: ignore[operator]
            space = f"triton_scratch_{index}"
            spec = TensorSpec("uint8", (int(blocks) * kernel.scratch,), (1,))
            scratch.append(Buffer(space, "temporary", spec))
        hidden = _hidden(launch.args, parameters[kernel.name], kernel.name)
        require(hidden or space is None, f"{kernel.name} has no parameter for its scratch memory")
        extra = [space or Scalar("i64", 0), *[Scalar("i64", 0)] * (MAX_HIDDEN - 1)]
        steps.append(replace(launch, args=(*launch.args, *extra[:hidden])))
    last = [buffer for buffer in plan.buffers if buffer.kind == "prepacked"]
    first = [buffer for buffer in plan.buffers if buffer.kind != "prepacked"]
    return Plan(plan.target, (*first, *scratch, *last), tuple(steps), plan.sizes)


def _launch(step: TritonLaunch, plan: Plan, kernel: Built) -> Launch:
    """Without the hidden parameters. A block of Triton's grid is a cluster of `num_ctas` blocks."""
    x, y, z = resolve_triple(step.grid, plan.sizes)
    args = resolve_arguments(step.args, plan.sizes)
    return Launch(
        kernel=kernel.name,
        grid=(x * step.num_ctas, y, z),
        block=(kernel.threads, 1, 1),
        shared=kernel.shared,
        args=tuple(argument for argument in args if not is_constant(argument)),
        cluster=(step.num_ctas, 1, 1) if step.num_ctas > 1 else None,
    )


def _hidden(args: Sequence[Argument], sizes: Sequence[int], name: str) -> int:
    """How many parameters the machine code has beyond the arguments."""
    given = [_BYTES[item.type] if isinstance(item, Scalar) else 8 for item in args]
    found = list(sizes)
    more = len(found) - len(given)
    fits = 0 <= more <= MAX_HIDDEN and found[: len(given)] == given
    fits = fits and all(size == 8 for size in found[len(given) :])
    if not fits:
        raise PlanError(f"{name} takes parameters of {found} bytes; the plan gives {given}")
    return more
