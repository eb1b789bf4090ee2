"""The post-grad graphs of a model, exactly as our pass sees them, and the real inputs of their regions.

Dynamo, AOTAutograd and Inductor's own passes run as in a compilation, with torch's caches off; where code would be
generated the compilation is stopped, and the graph is interpreted instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor import custom_graph_pass
from torch.fx import Graph, GraphModule

from cuda_agent_backend.frontend.decompose import decompose
from cuda_agent_backend.frontend.prepack import with_prepacking
from cuda_agent_backend.frontend.recurrent_modules import mark_as_ours, trace_through, use_operators
from cuda_agent_backend.graph.unsigned import count_in_signed
from cuda_agent_backend.options import Options
from cuda_agent_backend.runtime.inductor_timing import compiling
from cuda_agent_backend.runtime.replayable import aot_static_inputs, dynamo_static_inputs
from cuda_agent_backend.tools.captured_graph import CapturedGraph
from cuda_agent_backend.tools.model_oracle import device_of
from cuda_agent_backend.tools.model_state import run_backward, state_restored, without_torch_caches
from cuda_agent_backend.tools.record_inputs import interpret
from sandbox.timing.device_lock import DeviceLock


class _Stop(BaseException):
    """Ends a compilation once the graph is known. Not an `Exception`: nothing on the way may take it for a fault."""


class _StoppingPass(custom_graph_pass.CustomGraphPass):
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
) -> list[CapturedGraph]:
    """Run the model once and return its graphs in the order in which they were compiled.

    training: with gradients and a backward pass from the sum of the outputs; gradients and buffers are put back
    afterwards. record_in: an empty folder for the real inputs of tasks; None records none. lock: graphs take turns on
    the device with other processes. Code that torch compiled before is forgotten (`torch._dynamo.reset`), so that
    nothing of this run stays behind.
    """
    graphs: list[CapturedGraph] = []
    turns = lock or DeviceLock(None)

    def inner(gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        found = post_grad_graph(gm, example_inputs, options, kwargs)
        graphs.append(found)
        folder = record_in / str(len(graphs)) if record_in else None
        return _boxed(lambda given: interpret(found, given, folder, turns, options))

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
        with without_torch_caches(), state_restored(model), compiling(turns, device_of(inputs)):
            if training:
                run_backward(compiled(*inputs))
            else:
                with torch.no_grad():
                    compiled(*inputs)
    finally:
        torch._dynamo.reset()
    return graphs


def post_grad_graph(
    gm: GraphModule, example_inputs: Sequence[Any], options: Options, kwargs: Mapping[str, Any]
) -> CapturedGraph:
    """The graph after Inductor's passes. One without a call, such as the backward pass of a gradient that is zero
    everywhere, is as it was given: Inductor runs no pass on it.

    Raises what Inductor raises, and RuntimeError where its passes were left out.
    """
    from torch._dynamo.utils import count_calls
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner

    if not count_calls(gm.graph):
        return CapturedGraph(gm, static_inputs=aot_static_inputs())
    own = options.inductor.get("post_grad_custom_post_pass")
    before = own if isinstance(own, list | tuple) else (own,) if own is not None else ()
    take = _StoppingPass(before)
    patches = {**options.inductor, "post_grad_custom_post_pass": take}
    with contextlib.suppress(_Stop), config.patch(patches):
        compile_fx_inner(gm, example_inputs, **kwargs)
    if take.module is None:
        raise RuntimeError("Inductor did not run its post-grad passes")
    return CapturedGraph(take.module, static_inputs=aot_static_inputs())


def _boxed(run: Callable[[Sequence[Any]], Any]) -> Any:
    def call(arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        with torch.no_grad():
            return run(given)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
