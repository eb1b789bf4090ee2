"""A task as PyTorch that a person or a model can read and run: a line for each operator, with what comes out of it."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sandbox.accuracy.input_bounds import input_bounds
from sandbox.graph.build import build_graph
from sandbox.task.specs import TensorSpec, contiguous_stride
from sandbox.task.task import Task
from sandbox.timing.roofline import floor_bytes

if TYPE_CHECKING:
    import torch

HEADER = '''"""{title}

`task` is what a kernel has to compute; `inputs` gives tensors with the right shapes, dtypes and strides.
Arguments: {arguments}.
Results: {results}.
Least traffic: {read:,} bytes read, {written:,} bytes written.
"""

import torch
{imports}
aten = torch.ops.aten
{device}

def task({parameters}):
'''

FOOTER = '''

# name: dtype, shape, strides in elements, bounds (of integers: low, high + 1; of roots: not negative)
INPUTS = {{
{specs}
}}


def inputs(seed: int = 0) -> list[torch.Tensor]:
    """Inputs with the layouts of `INPUTS`, drawn from a seed."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    made = []
    for dtype, shape, strides, bounds in INPUTS.values():
        size = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if all(shape) else 0
        if dtype == torch.bool:
            values = torch.rand(size, generator=generator, device=DEVICE) < 0.5
        elif dtype.is_floating_point:
            values = torch.randn(size, generator=generator, device=DEVICE)
            values = values.abs() if bounds else values
        else:
            values = torch.randint(*bounds, (size,), generator=generator, device=DEVICE)
        made.append(values.to(dtype).as_strided(shape, strides))
    return made


if __name__ == "__main__":
    for number, result in enumerate(task(*inputs())):
        print(number, result.dtype, list(result.shape), list(result.stride()))
'''


def task_source(task: Task) -> str:
    """Python source that defines ``task(x0, x1, ...) -> tuple``, ``INPUTS`` and ``inputs(seed)``.

    Running `task` runs the task's own operators in the task's order. Raises `TaskError` like `build_graph`.
    """
    module = build_graph(task)
    lines = list(_body(module, task))
    parameters = ", ".join(f"x{i}: torch.Tensor" for i in range(len(task.inputs)))
    read, written = floor_bytes(task)
    header = HEADER.format(
        title=f"A task for target {task.target}: {_count(len(task.nodes), 'operator')}.",
        arguments=", ".join(f"x{i} {described(s)}" for i, s in enumerate(task.inputs)),
        results=", ".join(described(s) for s in task.output_specs),
        read=read,
        written=written,
        imports=_imports(task),
        device=f'DEVICE = torch.device("{"cuda" if task.target == "cuda" else "cpu"}")\n',
        parameters=parameters,
    )
    return header + "\n".join(f"    {line}" for line in lines) + "\n" + FOOTER.format(specs=_specs(task))  # fmt: skip


def described(spec: TensorSpec) -> str:
    """dtype[shape], and the strides where they are not row-major."""
    plain = spec.stride == contiguous_stride(spec.shape)
    return f"{spec.dtype}{list(spec.shape)}" + ("" if plain else f" strides {list(spec.stride)}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")


def _imports(task: Task) -> str:
    """What has to be loaded before torch knows the operators."""
    spaces = {node.op.split(".")[0] for node in task.nodes}
    names = [node.op for node in task.nodes]
    said = []
    if spaces & {"inductor", "prims"} or any(
        n.split(".")[1].startswith("inductor_") for n in names
    ):
        said.append("import torch._inductor.inductor_prims\nimport torch._inductor.lowering\n")
    if "cuda_agent" in spaces:
        said.append("from sandbox.launcher import define_ops\n\ndefine_ops()\n")
    return "".join(said)


def _specs(task: Task) -> str:
    rows = []
    for i, (spec, bounds) in enumerate(zip(task.inputs, input_bounds(task), strict=True)):
        rows.append(
            f'    "x{i}": (torch.{spec.dtype}, {spec.shape!r}, {spec.stride!r}, {bounds!r}),'
        )
    return "\n".join(rows)


def _body(module: torch.fx.GraphModule, task: Task) -> Iterator[str]:
    names: dict[Any, str] = {}
    inputs = made = 0
    for node in module.graph.nodes:
        if node.op == "placeholder":
            names[node] = f"x{inputs}"
            inputs += 1
        elif node.op == "call_function" and node.target is operator.getitem:
            names[node] = f"{names[node.args[0]]}[{node.args[1]}]"
        elif node.op == "call_function":
            names[node] = f"t{made}"
            made += 1
            yield f"{names[node]} = {_call(node, names)}  # {_value(node.meta['val'])}"
        elif node.op == "output":
            yield f"return ({', '.join(names[n] for n in node.args[0])},)"


def _call(node: torch.fx.Node, names: Mapping[Any, str]) -> str:
    namespace, name, overload = _qualified(node)
    function = f"{name}.{overload}" if overload else name
    prefix = "aten" if namespace == "aten" else f"torch.ops.{namespace}"
    given = [_literal(value, names) for value in node.args]
    given += [f"{key}={_literal(value, names)}" for key, value in node.kwargs.items()]
    return f"{prefix}.{function}({', '.join(given)})"


def _qualified(node: torch.fx.Node) -> tuple[str, str, str]:
    target: Any = node.target
    namespace, _, name = target._schema.name.partition("::")
    return namespace, name, target._overloadname


def _literal(value: Any, names: Mapping[Any, str]) -> str:
    import torch

    if isinstance(value, torch.fx.Node):
        return names[value]
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(v, names) for v in value) + "]"
    if isinstance(value, torch.device):
        return "DEVICE"
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return f'float("{value}")'
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    return repr(value)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_value(v) for v in value)
    if not hasattr(value, "dtype"):
        return type(value).__name__
    spec = TensorSpec(
        str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride())
    )
    return described(spec)
