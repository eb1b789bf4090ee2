"""Tasks as post-grad graphs of a device that need not be there: tensors are fake and hold no memory.

A model goes the way of any other: Dynamo, our forms of recurrent modules, AOTAutograd, Inductor's passes. Where torch
without CUDA does not trace it on cuda, it is traced on the cpu and its graph moved.
"""

from __future__ import annotations

import functools
import importlib.util
import operator
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node
from torch.utils._pytree import tree_leaves

from cuda_agent_backend.frontend.decompose import decompose
from cuda_agent_backend.frontend.recurrent_modules import mark_as_ours, trace_through, use_operators
from cuda_agent_backend.options import Options
from cuda_agent_backend.tools.capture import post_grad_graph
from cuda_agent_backend.tools.model_state import without_torch_caches

PRACTICE = Path(__file__).parent / "practice"
Make = Callable[[], tuple[nn.Module, Sequence[Tensor]]]
"""What makes a model and its inputs on the cpu. It is called where tensors are fake."""
NO_BACKWARD = "torch without CUDA has no backward pass of that device"
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default
FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default


class TooLong(BaseException):
    """A task ran into its limit. Not an `Exception`: nothing on the way may take it for a fault of the task."""


@dataclass(frozen=True)
class Wishes:
    """What is traced: the device, the dtype of floating tensors (None: as they are), whether backward too."""

    device: str = "cuda"
    dtype: torch.dtype | None = None
    training: bool = False


@dataclass(frozen=True)
class Traced:
    """Graphs in the order in which they were compiled. why_moved: the first error on cuda, of graphs that were traced
    on the cpu and moved; "" of others."""

    graphs: tuple[Graph, ...]
    why_moved: str = ""

    @property
    def on_cpu(self) -> bool:
        """Whether the graphs were traced on the cpu and moved."""
        return bool(self.why_moved)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises `TooLong` after so many seconds of this process's own time: other processes do not count."""

    def stop(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def task_of(path: Path) -> Make:
    """What makes the model of a task's file, and its inputs."""

    def make() -> tuple[nn.Module, Sequence[Tensor]]:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.Model(*module.get_init_inputs()), module.get_inputs()

    return make


def trace(make: Make, options: Options, wishes: Wishes) -> Traced:
    """The task's graphs; raises whatever torch raises where it cannot be traced on the cpu either."""
    if wishes.device != "cuda":
        return Traced(tuple(_graphs(make, options, wishes, wishes.device)))
    why = NO_BACKWARD
    if not wishes.training or torch.version.cuda:
        try:
            return Traced(tuple(_graphs(make, options, wishes, "cuda")))
        except Exception as error:
            why = said(error)
    found = _graphs(make, options, wishes, "cpu")
    return Traced(tuple(map(_moved, found)), why)


def said(error: Exception) -> str:
    """A line about an error, of what was raised first rather than of what torch put around it. Dynamo's say only in
    later lines what went wrong."""
    while isinstance(inner := getattr(error, "inner_exception", None), Exception):
        error = inner
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def _graphs(make: Make, options: Options, wishes: Wishes, device: str) -> list[Graph]:
    found: list[Graph] = []
    compiler = _compiler(options, found)
    prepare_patterns()
    torch._dynamo.reset()
    trace_through()
    grad = torch.set_grad_enabled(wishes.training)
    with FakeTensorMode(allow_non_fake_inputs=True), grad, without_torch_caches():
        model, given = make()
        _place(model.train(wishes.training), device, wishes)
        inputs = [_like(x, device, wishes.dtype) for x in given]
        made = torch.compile(model, backend=compiler)(*inputs)
        for value in tree_leaves(made):
            if isinstance(value, Tensor) and value.requires_grad:
                value.sum().backward(retain_graph=True)
    return found


def _compiler(options: Options, found: list[Graph]) -> Callable[..., Any]:
    """A compiler of Dynamo graphs that keeps the post-grad graphs, and runs nothing."""

    def inner(gm: torch.fx.GraphModule, example_inputs: Any, **kwargs: Any) -> Any:
        found.append(post_grad_graph(gm, example_inputs, options, kwargs).module.graph)
        (results,) = gm.graph.output_node().args
        values = [n.meta["val"] if isinstance(n, Node) else n for n in results]  # type: ignore[union-attr]

        def run(arguments: Any) -> Any:
            return values

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def backend(gm: torch.fx.GraphModule, example_inputs: Any, **_: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        if use_operators(gm):
            return gm.forward
        decompose(gm)
        return compile_fx(gm, example_inputs, inner_compile=inner)

    return mark_as_ours(backend)


def _place(model: nn.Module, device: str, wishes: Wishes) -> None:
    """Give the model fake weights of the device."""
    for part in model.modules():
        for name, value in part._parameters.items():
            if value is not None:
                made = _like(value, device, wishes.dtype)
                part._parameters[name] = nn.Parameter(made, wishes.training)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = _like(buffer, device, wishes.dtype)


def _like(x: Tensor, device: str, dtype: torch.dtype | None = None) -> Tensor:
    chosen = dtype if dtype is not None and x.is_floating_point() else x.dtype
    return torch.empty_strided(x.shape, x.stride(), dtype=chosen, device=device)


def _moved(graph: Graph) -> Graph:
    """A graph of the cpu as one of cuda, in place."""

    def there(value: Any) -> Any:
        if isinstance(value, FakeTensor):
            with value.fake_mode:
                return _like(value, "cuda")
        if isinstance(value, list | tuple):
            return type(value)(map(there, value))
        return torch.device("cuda", 0) if isinstance(value, torch.device) else value

    for node in graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = there(node.meta["val"])
        node.args = tuple(map(there, node.args))
        node.kwargs = {name: there(value) for name, value in node.kwargs.items()}
    for node in graph.nodes:
        if node.target is ATTENTION:
            _as_cudas(node)
    return graph


def _as_cudas(node: Node) -> None:
    """Make an attention of the cpu the one that cuda has for its dtype. It stays where more than its result is used."""
    reads = [u.target is operator.getitem and u.args[1] == 0 for u in node.users]
    if not all(reads):
        return
    schema = [argument.name for argument in ATTENTION._schema.arguments]
    given: dict[str, Any] = dict(zip(schema, node.args, strict=False)) | node.kwargs
    operands = tuple(given[name] for name in ("query", "key", "value"))
    dropout, causal = given.get("dropout_p", 0.0), given.get("is_causal", False)
    mask, (query, *_) = given.get("attn_mask"), operands
    if mask is None and query.meta["val"].dtype != torch.float32:
        node.target, node.args = FLASH, (*operands, dropout, causal, False)
    else:
        node.target, node.args = EFFICIENT, (*operands, mask, False, dropout, causal)
    node.kwargs = {"scale": given["scale"]} if "scale" in given else {}


@functools.cache
def prepare_patterns() -> None:
    """Have Inductor make its patterns, on tensors of the cpu. Processes that are forked later have them too."""
    from torch._inductor.fx_passes import joint_graph, post_grad

    for place in (joint_graph, post_grad):
        made: Any = place.lazy_init
        made(torch.device("cpu"))
        vars(place)["lazy_init"] = functools.partial(lambda f, *_: f(torch.device("cpu")), made)
