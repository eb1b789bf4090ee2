"""The entry point: `torch.compile(model, backend="cuda_agent", mode=..., options=...)`.

Inductor compiles; our pass puts verified kernels in. What fails on our side is said once, and Inductor goes on alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.exc import RestartAnalysis
from torch.fx import GraphModule

from cuda_agent_backend import log
from cuda_agent_backend.frontend.decompose import decompose
from cuda_agent_backend.frontend.prepack import with_prepacking
from cuda_agent_backend.frontend.recurrent_modules import mark_as_ours, trace_through, use_operators
from cuda_agent_backend.graph.layouts import unchosen
from cuda_agent_backend.hook.restart import Restart
from cuda_agent_backend.options import Options, parse
from cuda_agent_backend.registration import allow_registering_again
from cuda_agent_backend.runtime.cuda_graph import CudaGraphCall
from cuda_agent_backend.runtime.inductor_failures import no_compiler, removed_cut_library
from cuda_agent_backend.runtime.replayable import (
    dynamo_graph_name,
    dynamo_static_inputs,
    replay_is_wanted,
)
from cuda_agent_backend.search.process_budget import PROCESS
from cuda_agent_backend.settings import Settings, SettingsError

if TYPE_CHECKING:
    from cuda_agent_backend.hook.kernel_pass import KernelPass
    from cuda_agent_backend.search.client import SearchClient


def cuda_agent(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile a Dynamo graph. Raises `options.OptionError` on a wrong option; other faults of ours are only logged."""
    compiler: Callable[[GraphModule, Sequence[Any], Options], Any]
    try:
        settings = Settings.from_environment()
    except SettingsError as error:
        log.once("all", f"{error}; running on Inductor alone")
        settings, compiler = _fallback_settings(), compile_plain
    else:
        log.configure(settings.logs)
        compiler = compile_with
    wishes = parse(settings, mode, options)
    if reason := use_operators(gm):
        log.once("all", f"a graph with {reason} runs as it is, uncompiled")
        return gm.forward
    return compiler(gm, example_inputs, wishes)


def reset() -> None:
    """Called by `torch._dynamo.reset()`: faults are reported anew, and the process has all its seconds for searches
    again. Kernels stay loaded; living code uses them."""
    log.forget()
    PROCESS.forget()


cuda_agent.reset = reset  # type: ignore[attr-defined]
allow_registering_again()
mark_as_ours(cuda_agent)
trace_through()


def compile_with(
    gm: GraphModule, example_inputs: Sequence[Any], options: Options, hook: KernelPass | None = None
) -> Any:
    """Compile with a given pass (default: the one that the options describe), or plainly where that cannot be made."""
    if options.disable:
        return compile_plain(gm, example_inputs, options)
    hook = hook if hook is not None else make_pass(options)
    if hook is None:
        return compile_plain(gm, example_inputs, options)
    if options.search != "background":
        return _compile_hooked(gm, example_inputs, options, hook)
    from cuda_agent_backend.hook.background import hot_swap

    spare = copy_of(gm)
    first = _compile_hooked(gm, example_inputs, options, hook)
    return hot_swap(first, spare, example_inputs, options, hook, compile_with)


def _compile_hooked(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    hook: KernelPass,
    may_restart: bool = True,
) -> Any:
    spare = copy_of(gm)
    decomposed = decompose(gm)
    patches = {**unchosen(), **options.inductor, "post_grad_custom_post_pass": hook}
    static_inputs = dynamo_static_inputs(gm) if replay_is_wanted(options) else None
    name = dynamo_graph_name(gm, options.plain_inductor) if static_inputs is not None else ""
    hook.replayable = static_inputs is not None
    hook.examples = tuple(example_inputs)
    hook.nested = any(isinstance(module, GraphModule) for module in gm.children())
    hook.restartable_since = time.monotonic() if may_restart and not hook.nested else None
    reported = len(hook.reports)
    try:
        with ExitStack() as stack:
            inner = stack.enter_context(_prepacking(hook)) if options.prepack else None
            made = _compile_fx(gm, example_inputs, patches, inner)
        if static_inputs is not None and hook.is_replayed(name):
            return CudaGraphCall(made, static_inputs)
        if not decomposed or _changed(hook):
            return made
    except Restart:
        return _compile_hooked(spare, example_inputs, options, hook, may_restart=False)
    except Exception as error:
        if may_restart and removed_cut_library(error):
            del hook.reports[reported:]
            return _compile_hooked(spare, example_inputs, options, hook, may_restart=False)
        asked = isinstance(error, RestartAnalysis)  # Dynamo is to trace anew
        if asked or no_compiler(error) or not (decomposed or _changed(hook)):
            return _without_compiler(spare, error)
        log.once("hook", f"a graph is left to Inductor: {type(error).__name__}: {error}")
    finally:
        hook.examples = ()  # the user's tensors are not kept alive
    return compile_plain(spare, example_inputs, options)


def _changed(hook: KernelPass) -> bool:
    """Whether a pass did anything to the graphs it saw."""
    return any(report.count("hit") or report.eager_layouts for report in hook.reports)


def compile_plain(
    gm: GraphModule, example_inputs: Sequence[Any], options: Options, may_repeat: bool = True
) -> Any:
    """Inductor alone, eager where it has no compiler."""
    spare = copy_of(gm)
    try:
        return _compile_fx(gm, example_inputs, dict(options.inductor))
    except Exception as error:
        if may_repeat and removed_cut_library(error):
            return compile_plain(spare, example_inputs, options, may_repeat=False)
        return _without_compiler(spare, error)


def _without_compiler(gm: GraphModule, error: Exception) -> Any:
    if not no_compiler(error):
        raise error
    log.once("all", "no C++ compiler for Inductor: running eagerly; install g++ to compile")
    return gm.forward


def _compile_fx(
    gm: GraphModule, example_inputs: Sequence[Any], patches: dict[str, Any], inner: Any = None
) -> Any:
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    inner = inner or compile_fx_inner
    return compile_fx(gm, example_inputs, inner_compile=inner, config_patches=patches or None)


@contextmanager
def _prepacking(hook: KernelPass) -> Iterator[Any]:
    """What compiles graphs cut in two. AOTAutograd's own cache would bring the second part back without the first."""
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx_inner

    with config.patch(enable_autograd_cache=False):
        yield with_prepacking(compile_fx_inner, hook.note_split)


def copy_of(gm: GraphModule) -> GraphModule:
    """A second graph over the same parameters, for `compile_fx` changes the one it is given."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return GraphModule(gm, graph)


def make_pass(options: Options) -> KernelPass | None:
    """The pass for these options, or None (said once) where the kernel cache cannot be used."""
    from torch._inductor import config

    from cuda_agent_backend.hook.kernel_pass import KernelPass
    from cuda_agent_backend.runtime.kernels import open_kernels
    from kernel_cache import CacheUnavailable

    try:
        kernels = open_kernels(options.cache_dir, options.native_dir)
        if isinstance(kernels, CacheUnavailable):
            log.once("cache", f"kernel cache unavailable, running on Inductor alone: {kernels}")
            return None
        own = options.inductor.get(
            "post_grad_custom_post_pass", getattr(config, "post_grad_custom_post_pass", None)
        )
        before = own if isinstance(own, list | tuple) else (own,) if own is not None else ()
        searcher = _searcher(options)
        if searcher and options.search == "background" and kernels.cache.pending():
            searcher.enqueue([], None)  # what an earlier process left undone
        return KernelPass(options, kernels, searcher, before)
    except Exception as error:
        log.once("all", f"running on Inductor alone: {type(error).__name__}: {error}")
        return None


def _searcher(options: Options) -> SearchClient | None:
    if options.search == "cached":
        return None
    from cuda_agent_backend.search.client import SearchClient

    return SearchClient(options)


def _fallback_settings() -> Settings:
    return Settings.from_environment({"HOME": "/"})  # where there may be no home; nothing is kept
