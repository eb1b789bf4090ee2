"""From a task to the FX graph it stands for."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sandbox.graph.operators import device_of, resolve_operator
from sandbox.task.arguments import (
    Arg,
    Device,
    DType,
    InputRef,
    Layout,
    MemoryFormat,
    NodeRef,
    TaskError,
)
from sandbox.task.node import Node, Ref
from sandbox.task.specs import TensorSpec
from sandbox.task.task import Task

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload


def build_graph(task: Task) -> torch.fx.GraphModule:
    """A fresh post-grad ATen graph: placeholders in the order of inputs, output a tuple, fake
    values on every node.

    Raises `TaskError` when an operator or an argument is unknown to this torch, or when the
    shapes or dtypes that come out differ from the task's `output_specs`.
    """
    return _Builder(task).build()


def value_specs(task: Task) -> dict[Ref, TensorSpec]:
    """Metadata of every input and every result of the task, in the layout that eager mode gives it on the task's
    target. Raises `TaskError` like `build_graph`.
    """
    import torch

    builder = _Builder(task)
    builder.build()
    found: dict[Ref, TensorSpec] = {InputRef(i): spec for i, spec in enumerate(task.inputs)}
    for position, node in enumerate(builder.results):
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            found[NodeRef(position)] = _spec(value)
            continue
        for number, item in enumerate(value):
            if isinstance(item, torch.Tensor):
                found[NodeRef(position, number)] = _spec(item)
    return found


def _spec(value: torch.Tensor) -> TensorSpec:
    dtype = str(value.dtype).removeprefix("torch.")
    return TensorSpec(dtype, tuple(value.shape), tuple(value.stride()))


def value_shapes(task: Task) -> dict[Ref, tuple[int, ...]]:
    """The shape of every input and every result of the task. Raises `TaskError` like `build_graph`."""
    return {reference: spec.shape for reference, spec in value_specs(task).items()}


class _Builder:
    """Makes FX nodes for a task, each with its fake value, in the task's order."""

    def __init__(self, task: Task) -> None:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.task = task
        self.device = device_of(task.target)
        self.graph = torch.fx.Graph()
        self.fake = FakeTensorMode()
        self.inputs: list[torch.fx.Node] = []
        self.results: list[torch.fx.Node] = []
        self.picked: dict[tuple[int, int], torch.fx.Node] = {}

    def build(self) -> torch.fx.GraphModule:
        import torch

        for index, spec in enumerate(self.task.inputs):
            node = self.graph.placeholder(f"arg{index}_1")
            with self.fake:
                node.meta["val"] = torch.empty_strided(
                    spec.shape, spec.stride, dtype=getattr(torch, spec.dtype), device=self.device
                )
            self.inputs.append(node)
        for position, task_node in enumerate(self.task.nodes):
            self.results.append(self._call(task_node, f"node {position} ({task_node.op})"))
        outputs = tuple(
            self._result(output, f"output {i}") for i, output in enumerate(self.task.outputs)
        )
        last = self.graph.output(outputs)
        last.meta["val"] = tuple(output.meta["val"] for output in outputs)
        self._check_outputs(outputs)
        module = torch.fx.GraphModule(torch.nn.Module(), self.graph)
        module.graph.lint()
        return module

    def _call(self, node: Node, where: str) -> torch.fx.Node:
        op = resolve_operator(node.op)
        args, kwargs = self._arguments(op, node.args, where)
        made = self.graph.call_function(op, args, kwargs)
        real_args, real_kwargs = _values((args, kwargs))
        try:
            with self.fake:
                made.meta["val"] = op(*real_args, **real_kwargs)
        except (
            Exception
        ) as error:  # whatever a fake kernel raises says that the task is wrong, not we
            raise TaskError(f"{where} does not accept its arguments: {error}") from error
        if node.op.startswith("cuda_agent."):
            # Without it Inductor ignores the stride requirements of an operator it has no lowering
            # for.
            made.meta["eager_input_vals"] = (tuple(real_args), dict(real_kwargs))
        return made

    def _arguments(
        self, op: OpOverload, args: Mapping[str, Arg], where: str
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        schema = op._schema.arguments
        unknown = set(args) - {argument.name for argument in schema}
        if unknown:
            raise TaskError(f"{where} has no argument named {', '.join(sorted(unknown))}")
        positional = [argument for argument in schema if not argument.kwarg_only]
        given = max(
            (i + 1 for i, argument in enumerate(positional) if argument.name in args), default=0
        )
        made: list[Any] = []
        kwargs: dict[str, Any] = {}
        for i, argument in enumerate(schema):
            present = argument.name in args
            if not present and not argument.has_default_value():
                raise TaskError(f"{where} lacks the argument {argument.name}")
            value = self._value(args[argument.name], where) if present else argument.default_value
            if argument.kwarg_only:
                if present:
                    kwargs[argument.name] = value
            elif i < given:
                made.append(value)
        return tuple(made), kwargs

    def _value(self, arg: Arg, where: str) -> Any:
        import torch

        match arg:
            case NodeRef() | InputRef():
                return self._result(arg, where)
            case tuple():
                return [self._value(item, where) for item in arg]
            case Device():
                return self.device
            case DType(name) | MemoryFormat(name) | Layout(name):
                return getattr(torch, name)
            case _:
                return arg

    def _result(self, reference: Ref, where: str) -> torch.fx.Node:
        if isinstance(reference, InputRef):
            return self.inputs[reference.index]
        whole = self.results[reference.node]
        if reference.output is None:
            if isinstance(whole.meta["val"], tuple):
                raise TaskError(
                    f"{where} does not say which result of node {reference.node} it means"
                )
            return whole
        return self._pick(whole, reference.node, reference.output, where)

    def _pick(self, whole: torch.fx.Node, position: int, output: int, where: str) -> torch.fx.Node:
        key = (position, output)
        if key not in self.picked:
            results = whole.meta["val"]
            if not isinstance(results, list | tuple) or output >= len(results):
                raise TaskError(f"{where}: node {position} has no result {output}")
            node = self.graph.call_function(operator.getitem, (whole, output))
            node.meta["val"] = results[output]
            self.picked[key] = node
        return self.picked[key]

    def _check_outputs(self, outputs: tuple[torch.fx.Node, ...]) -> None:
        for number, (node, spec) in enumerate(zip(outputs, self.task.output_specs, strict=True)):
            value = node.meta["val"]
            dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
            shape = tuple(getattr(value, "shape", ()))
            if (dtype, shape) != (spec.dtype, spec.shape):
                wanted = f"{spec.dtype}{list(spec.shape)}"
                raise TaskError(f"output {number} is {dtype}{list(shape)}, its spec says {wanted}")


def _values(tree: Any) -> Any:
    import torch

    return torch.fx.node.map_arg(tree, lambda node: node.meta["val"])
