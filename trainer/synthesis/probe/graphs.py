"""What torch.compile sees of a task: the functions that its results come from, its regions and random operators."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor import custom_graph_pass
from torch.fx import Graph, GraphModule, Node

from cuda_agent_backend.graph.canonical import Canonical, canonical, graph_digest
from cuda_agent_backend.partition.regions import partition

SETTINGS = {"fx_graph_cache": False, "compile_threads": 1}
"""Of Inductor. Its cache of graphs would pass by what looks at them; a process for each compiler costs more than it
saves where all cores have tasks of their own."""


@dataclass
class Seen:
    """Facts of all graphs of a task.

    used: names of functions and module classes from which some result comes, and how often. random: operators that
    draw. regions: digests of the canonical tasks. left: why regions are left to Inductor. graphs: digests of the whole
    graphs after Inductor's passes; structures: of the same without sizes and other numbers.
    """

    used: Counter[str] = field(default_factory=Counter)
    random: list[str] = field(default_factory=list)
    regions: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    graphs: list[str] = field(default_factory=list)
    structures: list[str] = field(default_factory=list)


class _Looks(custom_graph_pass.CustomGraphPass):
    """A pass that changes nothing."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def uuid(self) -> None:
        return None

    def __call__(self, graph: Graph) -> None:
        self.seen.graphs.append(graph_digest(graph))
        self.seen.structures.append(structure(graph))
        self.seen.random += sorted({str(n.target) for n in graph.nodes if _draws(n)})
        for region in partition(graph):
            form = canonical(region.nodes, region.outputs, region.target)
            if isinstance(form, Canonical):
                self.seen.regions.append(form.task.digest)
            self.seen.left += [region.reason] if region.reason else []


@dataclass(frozen=True)
class MeanwhileAndAlone:
    """Turns on the device of a compilation. meanwhile: entered while the compiler works, for forward and backward
    alike, within itself too. alone: entered where it times kernels on a GPU, as to choose whether a product is padded.
    """

    meanwhile: Callable[[], AbstractContextManager[None]] = nullcontext
    alone: Callable[[], AbstractContextManager[None]] = nullcontext

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """The compiler works."""
        from torch._inductor.runtime.benchmarking import benchmarker

        time_kernel = benchmarker.benchmark_gpu
        timed = time_kernel if hasattr(time_kernel, "turn") else _InTurn(time_kernel, self.alone)
        with self.meanwhile():
            benchmarker.benchmark_gpu = timed  # type: ignore[method-assign]
            try:
                yield
            finally:
                benchmarker.benchmark_gpu = time_kernel  # type: ignore[method-assign]


class _InTurn:
    """Inductor's way to time a kernel, with the device alone. turn: for that."""

    def __init__(
        self, time_kernel: Callable[..., Any], turn: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self.turn, self._time_kernel = turn, time_kernel
        self._timing = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._timing:  # one way to time calls another
            return self._time_kernel(*args, **kwargs)
        with self.turn():
            self._timing = True
            try:
                return self._time_kernel(*args, **kwargs)
            finally:
                self._timing = False


def compiled(
    model: Any,
    seen: Seen,
    turns: MeanwhileAndAlone | None = None,
    headers: bool = False,
) -> Any:
    """The model compiled by Inductor; what is seen on the way is noted when it is first called.

    headers: whether to compile C++ headers ahead, which pays where this process compiles other models too.
    """
    compiling = (turns or MeanwhileAndAlone()).compiling

    def inner(*args: Any, **kwargs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx_inner

        with compiling():
            return compile_fx_inner(*args, **kwargs)

    def backend(gm: GraphModule, example_inputs: Sequence[Any], **_: Any) -> Any:
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx

        seen.used += used_in(gm)
        own = {"post_grad_custom_post_pass": _Looks(seen), "cpp_cache_precompile_headers": headers}
        with compiling(), config.patch({**SETTINGS, **own}):
            return compile_fx(gm, example_inputs, inner_compile=inner)

    torch._dynamo.reset()
    return torch.compile(model, backend=backend)


def used_in(gm: GraphModule) -> Counter[str]:
    """Names of the functions, methods and module classes that a result is computed from, with their numbers."""
    found: Counter[str] = Counter()
    calls: dict[str, set[str]] = {}
    for node in _alive(gm.graph):
        if node.op in ("call_function", "call_method"):
            found[name_of(node.target)] += 1
        for key, (_, kind) in (node.meta.get("nn_module_stack") or {}).items():
            name = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
            calls.setdefault(name.rpartition(".")[2], set()).add(str(key))
    return found + Counter({name: len(keys) for name, keys in calls.items()})


def name_of(target: Any) -> str:
    """The last part of an operator's name, however it is called: ``softplus`` of torch._C._nn.softplus."""
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return name.rpartition(".")[2].strip("_")


def _alive(graph: Graph) -> list[Node]:
    (output,) = (node for node in graph.nodes if node.op == "output")
    reached, waiting = {output}, [output]
    while waiting:
        for node in waiting.pop().all_input_nodes:
            if node not in reached:
                reached.add(node)
                waiting.append(node)
    return [node for node in graph.nodes if node in reached]


def structure(graph: Graph) -> str:
    """A digest of operators, of what they are applied to and of dtypes, without any number."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    lines = []
    for node in graph.nodes:
        value = node.meta.get("val")
        kind = f"{value.dtype}{value.dim()}" if isinstance(value, torch.Tensor) else ""
        name = "" if node.op in ("placeholder", "output") else str(node.target)
        lines.append(f"{node.op} {name} {[place[n] for n in node.all_input_nodes]} {kind}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _draws(node: Node) -> bool:
    if any(argument == 0 for argument in _dropout(node)):
        return False
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or "inductor_random" in str(node.target)


def _dropout(node: Node) -> list[Any]:
    """The share that an attention operator drops: its kinds are all said to draw, and with 0 they do not."""
    schema = getattr(node.target, "_schema", None)
    arguments = schema.arguments if schema is not None else []
    names = [argument.name for argument in arguments]
    if "dropout_p" not in names:
        return []
    place = names.index("dropout_p")
    default = arguments[place].default_value
    given = node.args[place] if place < len(node.args) else default
    return [node.kwargs.get("dropout_p", given)]
