"""The post-grad graphs of a model, exactly as our pass sees them, and the real inputs of their regions.

Dynamo, AOTAutograd and Inductor's own passes run as in a compilation, with torch's caches off; where code would be
generated the compilation is stopped, and the graph is interpreted instead.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._inductor import custom_graph_pass
from torch.fx import Graph, GraphModule, Interpreter, Node

from cuda_agent_backend.frontend.decompose import decompose
from cuda_agent_backend.frontend.prepack import with_prepacking
from cuda_agent_backend.frontend.recurrent_modules import mark_as_ours, trace_through, use_operators
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.graph.layouts import channels_last, choosing, inductor_layouts
from cuda_agent_backend.graph.unsigned import count_in_signed
from cuda_agent_backend.options import Options
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.runtime.inductor_timing import compiling
from cuda_agent_backend.runtime.replayable import aot_static_inputs, dynamo_static_inputs
from cuda_agent_backend.runtime.tensor_files import RECORD_LIMIT, record, save
from cuda_agent_backend.tools.model_oracle import device_of
from sandbox.accuracy.perturb_inputs import flat_storage
from sandbox.timing.device_lock import DeviceLock

Stride = tuple[int, ...]


@dataclass
class Captured:
    """A post-grad graph. `recorded`: folders with the real inputs of its tasks, by task digest. `inputs`: that with its
    own, in the order of its placeholders; empty if they were not recorded. `static_inputs`: see `replayable`."""

    module: GraphModule
    recorded: dict[str, str] = field(default_factory=dict)
    inputs: str = ""
    static_inputs: tuple[int, ...] | None = None


class _Stop(BaseException):
    """Ends a compilation once the graph is known. Not an `Exception`: nothing on the way may take it for a fault."""


class _Take(custom_graph_pass.CustomGraphPass):
    def __init__(self, before: Sequence[Any]) -> None:
        self.before = before
        self.module: GraphModule | None = None

    def uuid(self) -> None:
        return None

    def __call__(self, graph: Graph) -> None:
        for other in self.before:
            other(graph)
        copied = Graph()
        copied.output(copied.graph_copy(graph, {}))
        count_in_signed(copied)
        assert graph.owning_module is not None
        self.module = GraphModule(graph.owning_module, copied)
        raise _Stop


def capture(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    options: Options,
    *,
    training: bool = False,
    record_in: Path | None = None,
    lock: DeviceLock | None = None,
) -> list[Captured]:
    """Run the model once and return its graphs in the order in which they were compiled.

    training: with gradients and a backward pass from the sum of the outputs; gradients and buffers are put back
    afterwards. record_in: an empty folder for the real inputs of tasks; None records none. lock: graphs take turns on
    the device with other processes. Code that torch compiled before is forgotten (`torch._dynamo.reset`), so that
    nothing of this run stays behind.
    """
    graphs: list[Captured] = []
    turns = lock or DeviceLock(None)

    def inner(gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        found = _post_grad(gm, example_inputs, options, kwargs)
        graphs.append(found)
        folder = record_in / str(len(graphs)) if record_in else None
        return _boxed(lambda given: _interpret(found, given, folder, turns, options))

    def backend(gm: GraphModule, example_inputs: Sequence[Any], **_: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        if use_operators(gm):
            return gm.forward
        decompose(gm)
        before = len(graphs)
        replayable = dynamo_static_inputs(gm) is not None and not options.prepack
        own = with_prepacking(inner) if options.prepack else inner
        made = compile_fx(gm, example_inputs, inner_compile=own)
        for found in graphs[before:]:
            found.static_inputs = found.static_inputs if replayable else None
        return made

    torch._dynamo.reset()
    trace_through()
    compiled = torch.compile(getattr(model, "_orig_mod", model), backend=mark_as_ours(backend))
    try:
        with _no_caches(), _unchanged(model), compiling(turns, device_of(inputs)):
            if training:
                _backward(compiled(*inputs))
            else:
                with torch.no_grad():
                    compiled(*inputs)
    finally:
        torch._dynamo.reset()
    return graphs


def _post_grad(
    gm: GraphModule, example_inputs: Sequence[Any], options: Options, kwargs: Mapping[str, Any]
) -> Captured:
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner

    own = options.inductor.get("post_grad_custom_post_pass")
    before = own if isinstance(own, list | tuple) else (own,) if own is not None else ()
    take = _Take(before)
    patches = {**options.inductor, "post_grad_custom_post_pass": take}
    with contextlib.suppress(_Stop), config.patch(patches):
        compile_fx_inner(gm, example_inputs, **kwargs)
    if take.module is None:
        raise RuntimeError("Inductor did not run its post-grad passes")
    return Captured(take.module, static_inputs=aot_static_inputs())


def _interpret(
    found: Captured,
    arguments: Sequence[Any],
    folder: Path | None,
    lock: DeviceLock,
    options: Options,
) -> Any:
    """Run a graph on real tensors, and the first time write down the inputs of its tasks."""
    if folder is None or found.recorded or found.inputs:
        with lock.shared():
            return _Recorder(found.module, {}).run(*arguments)
    with choosing(options.plain_inductor):
        forms = list(_forms_in_both_layouts(found.module.graph))
    wanted: dict[Node, set[Stride]] = defaultdict(set)
    for form in forms:
        for node, stride in _reads(form):
            wanted[node].add(stride)
    recorder = _Recorder(found.module, wanted)
    if forms:  # before the graph changes them
        found.inputs = record(folder / "graph", arguments)
    with lock.shared():
        result = recorder.run(*arguments)
    for form in forms:
        place = folder / form.task.digest[:16]
        if not place.exists() and all(read in recorder.kept for read in _reads(form)):
            save(place, [recorder.kept[read] for read in _reads(form)])
            found.recorded[form.task.digest] = str(place.absolute())
    return result


def _forms_in_both_layouts(graph: Graph) -> Iterator[Canonical]:
    """In those that Inductor chooses and in eager's: which of them the graph will have is measured later."""
    with inductor_layouts(graph):
        found = list(_forms(graph))
    yield from found
    if channels_last(graph):
        yield from _forms(graph)


def _reads(form: Canonical) -> Iterator[tuple[Node, Stride]]:
    for node, spec in zip(form.inputs, form.task.inputs, strict=True):
        yield node, spec.stride


def _forms(graph: Graph) -> Iterator[Canonical]:
    every = (one for region in partition(graph) for one in (region, region.rest) if one)
    for region in every:
        form = None if region.reason else canonical(region.nodes, region.outputs, region.target)
        if isinstance(form, Canonical):
            size = sum(spec.extent * spec.itemsize for spec in form.task.inputs)
            if size <= RECORD_LIMIT:
                yield form


class _Recorder(Interpreter):
    """Interprets a graph and keeps copies of some values as they were when they were made."""

    def __init__(self, module: GraphModule, wanted: Mapping[Node, set[Stride]]) -> None:
        super().__init__(module)
        self.wanted = wanted
        self.kept: dict[tuple[Node, Stride], torch.Tensor] = {}

    def run_node(self, n: Node) -> Any:
        """Run a node and keep its value if it is wanted, with the strides that are wanted."""
        value = super().run_node(n)
        for stride in self.wanted.get(n, ()):
            # On the host: a network's values in both layouts may not fit beside the network.
            if tuple(value.stride()) == stride:
                line = flat_storage(value.detach()).to("cpu", copy=True)
                self.kept[n, stride] = line.as_strided(value.shape, stride)
            elif 0 not in stride:
                laid_out = torch.empty_strided(value.shape, stride, dtype=value.dtype)
                self.kept[n, stride] = laid_out.copy_(value.detach())
        return value


def _boxed(run: Callable[[Sequence[Any]], Any]) -> Any:
    def call(arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        with torch.no_grad():
            return run(given)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _backward(outputs: Any) -> None:
    from torch.utils import _pytree as pytree

    total = None
    for value in pytree.tree_leaves(outputs):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            total = value.sum() if total is None else total + value.sum()
    if total is not None:
        total.backward()


@contextlib.contextmanager
def _no_caches() -> Iterator[None]:
    from torch._functorch import config as functorch_config
    from torch._inductor import config

    with (
        warnings.catch_warnings(),
        config.patch(force_disable_caches=True),
        functorch_config.patch(enable_autograd_cache=False),
    ):
        warnings.filterwarnings("ignore", message=".*force disabled")
        yield


@contextlib.contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    """Put gradients and buffers back as they were."""
    if not isinstance(model, torch.nn.Module):
        yield
        return
    gradients = {p: p.grad for p in model.parameters()}
    buffers = {b: b.detach().clone() for b in model.buffers()}
    for parameter in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in buffers.items():
                buffer.copy_(value)
