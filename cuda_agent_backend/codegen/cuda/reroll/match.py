"""Tasks that are a loop over steps: what is computed before it, and the loop as stages over steps and lanes.

A *lane* is an element of the states that steps hand on. All that a step does is done at its lanes, or once for those
that a reduction joins; what goes from stage to stage, and from step to step, is at hand there and goes through no
memory. Whatever is reduced, multiplied as matrices or costly before the loop is computed before it, once.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from unittest.mock import patch

import sympy
import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch.fx import Graph, Node

from cuda_agent_backend.codegen.cuda.reroll.graph import RolledGraph, State, rolled
from cuda_agent_backend.codegen.ir.nest import Dim, coefficient, simplify, with_indices
from cuda_agent_backend.codegen.ir.region import Buffer, LoweredRegion, Stage, Store
from cuda_agent_backend.codegen.ir.ssa import Body, Unsupported
from cuda_agent_backend.codegen.ir.value_types import WIDE
from cuda_agent_backend.codegen.lowering.lower import lower
from cuda_agent_backend.graph.canonical import NotATask, linear, tensor_spec
from cuda_agent_backend.graph.edit import Editor, argument, aten, is_tensor, name_of, shape_of
from sandbox.graph.build import build_graph
from sandbox.task.specs import TensorSpec, contiguous_stride
from sandbox.task.task import Task

Load = tuple[str, sympy.Expr]
STEP = sympy.Symbol("t", integer=True, nonnegative=True)
VIEWS = ("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "permute", "expand", "select", "slice", "split",
         "split_with_sizes", "unbind", "transpose", "t", "alias")  # fmt: skip
LIGHT = (
    *VIEWS,
    "full",
    "iota",
    "scalar_tensor",
    "constant_pad_nd",
    "cat",
    "rev",
    "convert_element_type",
)
"""What is done anew for each lane beside what torch calls pointwise."""
CHEAP = ("add", "sub", "mul", "neg", "where", "abs", "relu", "maximum", "minimum", "gt", "ge", "lt", "le", "eq", "ne",
         "logical_and", "logical_or", "logical_not", "clone", *LIGHT)  # fmt: skip
"""What is sooner done anew for each lane than written once and read."""
REDUCTIONS = ("sum", "prod", "max", "min")


@dataclass(frozen=True)
class LaneStage:
    """A map or a reduction over steps and lanes. wide: whether a map is done at all lanes, and not once for those that
    are reduced."""

    kind: str
    combine: str
    dtype: torch.dtype
    body: Body
    stores: tuple[Store, ...]
    wide: bool


@dataclass(frozen=True)
class Handed:
    """A state: the buffers of what a step is given and of what it makes; initial: a number, or what it is read from."""

    given: str
    made: str
    dtype: torch.dtype
    initial: str | float
    spec: TensorSpec


@dataclass(frozen=True)
class Part:
    """What is computed beside the loop, and what its inputs and outputs are called."""

    task: Task
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Rolled:
    """A task that is a loop.

    before, after: what is computed first and last. names: of the buffers of ``region`` in memory; those of the plan are
    ``in0``, ``out0`` and so on, and others are kept between. kept: what is between, by name.
    """

    task: Task
    steps: int
    backward: bool
    lanes: tuple[Dim, ...]
    reduced: tuple[Dim, ...]
    stages: tuple[LaneStage, ...]
    states: tuple[Handed, ...]
    region: LoweredRegion
    names: Mapping[str, str]
    before: Part | None
    after: Part | None
    kept: Mapping[str, TensorSpec]

    @cached_property
    def early(self) -> tuple[Load, ...]:
        """What the steps read that is another thing at each step, and does not depend on the one before."""
        found: dict[Load, None] = {}
        for stage in self.stages:
            for i in stage.body.instructions:
                if i.op == "load" and i.buffer and i.index is not None and i.index.has(STEP):
                    found[i.buffer, i.index] = None
        return tuple(found)

    def is_wide(self, index: sympy.Expr) -> bool:
        """Whether lanes that are reduced together read different elements."""
        return not index.free_symbols.isdisjoint(s for s, _ in self.reduced)


def rolled_of(task: Task) -> Rolled | None:
    """The form that ``task`` is, None where it is no loop.

    Raises:
        Unsupported: a loop that does not go through lanes, with the reason.
    """
    if not any(node.name == "cat" for node in task.nodes):
        return None
    try:
        return _form(task, apart=False)
    except Unsupported:
        return _form(task, apart=True)


def _form(task: Task, *, apart: bool) -> Rolled | None:
    """apart: whether what reads the loop's results is computed behind it, from memory."""
    graph: Graph = build_graph(replace(task, target="cpu")).graph
    found = rolled(graph)
    return None if found is None else _Split(task, graph, found).form(apart=apart)


class _Split:
    """Takes the rewritten graph apart: what depends on a state, and light work around, is the loop."""

    def __init__(self, task: Task, graph: Graph, found: RolledGraph) -> None:
        self.task, self.graph, self.found = task, graph, found
        self.given = [state.given for state in found.states]
        inputs = [n for n in graph.nodes if n.op == "placeholder" and n not in self.given]
        self.names = {node: f"in{n}" for n, node in enumerate(inputs)}
        """What lies in memory when the loop begins: inputs, and what is stored before it."""
        made = zip(graph.output_node().args[0], task.output_specs, strict=True)  # type: ignore[arg-type]
        whole = [_with_own_steps(node, spec) for node, spec in made]
        self.results: list[Node] = [node for node, _ in whole]
        self.specs = [spec for _, spec in whole]
        """As the results lie in memory."""
        self.dependent = _dependent(graph, set(self.given))
        self.costly = _costly(graph)
        self.stored: list[Node] = []

    def form(self, *, apart: bool) -> Rolled:
        found, results = self.found, [n for n in self.results if n in self.dependent]
        inputs = list(self.names)
        for number, node in enumerate(self.results):
            if node not in self.dependent:
                self._store(node, f"out{number}")
        initial = [self._initial(state) for state in found.states]
        made = [state.made for state in found.states]
        own = list(found.results) if apart else results
        loop = self._taken([*own, *made], set(self.given))
        behind = self._taken(results, set(own)) if apart else set[Node]()
        called = {n: f"out{self.results.index(n)}" for n in results}
        memory = self.names | ({n: f"joined{i}" for i, n in enumerate(own)} if apart else called)
        read = _read(loop, self.names)
        with _for_lanes():
            region = lower(self._task(loop, [*read, *self.given], [*own, *made]))
        states = tuple(
            Handed(given, to, region.buffers[given].dtype, *start)
            for given, to, start in zip(
                region.inputs[len(read) :], region.outputs[len(own) :], initial, strict=True
            )
        )
        lanes, reduced, stages = _Lanes(region, states, found.steps).found()
        buffers = (*region.inputs[: len(read)], *region.outputs[: len(own)])
        names = {b: memory[n] for b, n in zip(buffers, (*read, *own), strict=True)}
        before = self._part(_ancestors(self.stored), inputs, self.stored, memory)
        after = self._part(behind, list(memory), results, memory | called) if apart else None
        between = [*self.stored, *(own if apart else ())]
        kept = {
            memory[n]: tensor_spec(n.meta["val"])
            for n in between
            if not memory[n].startswith("out")
        }
        return Rolled(
            self.task, found.steps, found.backward, lanes, reduced, stages, states, region, names, before, after, kept
        )  # fmt: skip

    def _part(
        self,
        nodes: Collection[Node],
        known: Iterable[Node],
        outputs: Sequence[Node],
        memory: Mapping[Node, str],
    ) -> Part | None:
        """What makes ``outputs`` of what is known; None where there are none."""
        if not outputs:
            return None
        body = {n for n in nodes if n.op == "call_function"}
        inputs = _read(body, known)
        if not inputs:
            raise Unsupported("a loop with constants that are computed beside it")
        task = self._task(body, inputs, outputs)
        return Part(task, tuple(memory[n] for n in inputs), tuple(memory[n] for n in outputs))

    def _initial(self, state: State) -> tuple[str | float, TensorSpec]:
        node, spec = state.initial, tensor_spec(state.initial.meta["val"])
        value = _constant(node)
        if isinstance(value, bool | int | float):
            return value, spec
        if node in self.names:
            return self.names[node], spec
        if node in self.dependent:
            raise Unsupported("a loop that begins with what it makes")
        if is_tensor(node):
            node = Editor(self.graph, self.graph.output_node()).call(aten.clone.default, node)
            self._store(node)
        return self.names[node], tensor_spec(node.meta["val"])

    def _store(self, node: Node, name: str = "") -> None:
        if not is_tensor(node):
            raise Unsupported("a loop that reads what is no tensor")
        if node not in self.names:
            self.stored.append(node)
            self.names[node] = name or f"kept{len(self.stored)}"

    def _taken(self, outputs: Sequence[Node], known: set[Node]) -> set[Node]:
        """What makes the outputs of what is known and of what lies in memory; more is stored there where it should be
        computed before the loop."""
        found, waiting = set[Node](), list(outputs)
        while waiting:
            node = waiting.pop()
            if node in found:
                continue
            found.add(node)
            for read in node.all_input_nodes:
                at_hand = read in known or read in self.names
                if not at_hand and not self._cut(node, read, found):
                    waiting.append(read)
        return found

    def _cut(self, node: Node, read: Node, found: set[Node]) -> bool:
        """Whether what ``node`` reads is computed before the loop; views of it are not."""
        if read in self.dependent:
            return False
        fewer = _size(read) < _size(node) and self.costly[read]
        if _is_light(read) and not fewer:
            return False
        while _is_view(read):
            found.add(read)
            (read,) = read.all_input_nodes
            if read in self.names:
                return True
        self._store(read)
        return True

    def _task(self, nodes: Iterable[Node], inputs: Sequence[Node], outputs: Sequence[Node]) -> Task:
        own = set(nodes)
        body = [n for n in self.graph.nodes if n in own]
        made = linear(body, inputs, outputs, "cpu")
        if isinstance(made, NotATask):
            raise Unsupported(made.reason)
        wanted = dict(zip(self.results, self.specs, strict=True))
        specs = tuple(wanted.get(n, s) for n, s in zip(outputs, made.output_specs, strict=True))
        return replace(made, target=self.task.target, output_specs=specs)


def _with_own_steps(node: Node, spec: TensorSpec) -> tuple[Node, TensorSpec]:
    """A result with its steps in a dimension of their own, which are behind each other as torch joins them, and how it
    lies in memory then: the lanes go through it as they do through what is read."""
    joins = name_of(node) in ("view", "reshape") and spec.stride == contiguous_stride(spec.shape)
    if not joins or name_of(node.args[0]) != "permute":
        return node, spec
    source = node.all_input_nodes[0]
    shape = shape_of(source)
    return source, TensorSpec(spec.dtype, shape, contiguous_stride(shape))


def _dependent(graph: Graph, given: set[Node]) -> set[Node]:
    found = set(given)
    for node in graph.nodes:
        if any(read in found for read in node.all_input_nodes):
            found.add(node)
    return found - given


def _ancestors(nodes: Iterable[Node]) -> set[Node]:
    found = set(nodes)
    waiting = list(found)
    while waiting:
        for read in waiting.pop().all_input_nodes:
            if read not in found:
                found.add(read)
                waiting.append(read)
    return found


def _read(nodes: Collection[Node], known: Iterable[Node]) -> list[Node]:
    """What of the known is read by ``nodes``."""
    return [n for n in known if any(user in nodes for user in n.users)]


def _constant(node: Node) -> object:
    """The number that all elements are; None where they are not known."""
    while name_of(node) in (*VIEWS, "clone"):
        node = node.all_input_nodes[0]
    return argument(node, "fill_value") if name_of(node) == "full" else None


def _is_view(node: Node) -> bool:
    return node.target is operator.getitem or name_of(node) in VIEWS


def _is_light(node: Node) -> bool:
    """Whether it is done for each element by itself."""
    if node.target is operator.getitem:
        return _is_light(node.all_input_nodes[0])
    if name_of(node) in LIGHT:
        return True
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _costly(graph: Graph) -> dict[Node, bool]:
    """Whether something costly goes into a node."""
    found: dict[Node, bool] = {}
    for node in graph.nodes:
        own = node.op == "call_function" and node.target is not operator.getitem
        costly = own and name_of(node) not in CHEAP
        found[node] = costly or any(found[read] for read in node.all_input_nodes)
    return found


def _size(node: Node) -> int:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else 0


class _Lanes:
    """Says of each stage which loops are steps and lanes, by how it reads what is at hand."""

    def __init__(self, region: LoweredRegion, states: Sequence[Handed], steps: int) -> None:
        self.region, self.states = region, states
        shapes = {region.buffers[s.given].shape[1:] for s in states}
        if len(shapes) != 1:
            raise Unsupported("a loop with states of several shapes")
        (shape,) = shapes
        sizes = [n for n in shape if n != 1]
        symbols = [sympy.Symbol(f"l{n}", integer=True, nonnegative=True) for n in range(len(sizes))]
        self.lanes: tuple[Dim, ...] = tuple(zip(symbols, sizes, strict=True))
        self.dims: tuple[Dim, ...] = ((STEP, steps), *self.lanes)
        self.reduced: frozenset[sympy.Symbol] = frozenset()
        self.at_hand: dict[str, tuple[tuple[sympy.Symbol, int], ...]] = {}
        """Of each buffer that is at hand the dimensions with their strides."""
        for state in states:
            self.at_hand[state.given] = _strides(region.buffers[state.given], self.dims)

    def found(self) -> tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[LaneStage, ...]]:
        """Lanes that are not reduced, those that are, and the stages."""
        extents = (b.extent for b in self.region.buffers.values())
        if max(*extents, math.prod(n for _, n in self.dims)) >= WIDE:
            raise Unsupported("a loop over more than 31 bits number")
        mapped = [(stage, self._mapping(stage)) for stage in self.region.stages]
        for state in self.states:
            own = _strides(self.region.buffers[state.made], self.dims)
            if dict(self.at_hand[state.made]) != dict(own):
                raise Unsupported("a loop whose steps take over from other lanes")
        stages = tuple(self._stage(stage, change) for stage, change in mapped)
        lanes = tuple(d for d in self.lanes if d[0] not in self.reduced)
        return lanes, tuple(d for d in self.lanes if d[0] in self.reduced), stages

    def _mapping(self, stage: Stage) -> dict[sympy.Symbol, sympy.Symbol]:
        """The steps and lanes that a stage's loops are; notes what it makes as at hand."""
        loops = (*stage.outer, *stage.inner)
        change: dict[sympy.Symbol, sympy.Symbol] = {}
        for i in stage.body.accesses():
            if i.buffer in self.at_hand:
                if i.op != "load" or i.index is None:
                    raise Unsupported("a loop that reads a state at a place that depends on data")
                for loop, symbol in self._places(i.buffer, simplify(i.index, loops), loops):
                    if change.setdefault(loop, symbol) != symbol:
                        raise Unsupported("a loop that reads a state at several places")
        if len(set(change.values())) != len(loops) or len(change) != len(loops):
            raise Unsupported("a loop whose steps do something beside the states")
        self._reduces(stage, change)
        for store in stage.stores:
            index = simplify(store.index, loops)
            places = [(change[loop], coefficient(index, loop)) for loop, _ in stage.outer]
            if any(step is None for _, step in places) or index.subs(dict.fromkeys(change, 0)) != 0:
                raise Unsupported("a loop that writes out of order")
            self.at_hand[store.buffer] = tuple((symbol, int(step or 0)) for symbol, step in places)
        return change

    def _places(
        self, buffer: str, index: sympy.Expr, loops: Sequence[Dim]
    ) -> Iterator[tuple[sympy.Symbol, sympy.Symbol]]:
        """The loops by which a buffer that is at hand is read, with what each stands for."""
        sizes = dict(self.dims)
        for symbol, stride in self.at_hand[buffer]:
            own = [s for s, n in loops if n == sizes[symbol] and coefficient(index, s) == stride]
            if len(own) != 1:
                raise Unsupported("a loop that reads what is made at another lane or step")
            index = sympy.expand(index - stride * own[0])
            yield own[0], symbol
        if index != 0:
            raise Unsupported("a loop that reads what is made at another lane or step")

    def _reduces(self, stage: Stage, change: Mapping[sympy.Symbol, sympy.Symbol]) -> None:
        """Note which lanes are reduced; all reductions must join the same ones."""
        if stage.kind == "map":
            return
        if stage.kind != "reduce" or stage.combine not in REDUCTIONS:
            raise Unsupported(f"a loop with {stage.combine or stage.kind} in its steps")
        reduced = frozenset(change[s] for s, _ in stage.inner)
        if STEP in reduced or len(change) != len(self.dims):
            raise Unsupported("a loop with a reduction over steps, or over a part of the lanes")
        if self.reduced and reduced != self.reduced:
            raise Unsupported("a loop with reductions over several dimensions")
        self.reduced = reduced

    def _stage(self, stage: Stage, change: Mapping[sympy.Symbol, sympy.Symbol]) -> LaneStage:
        lanes = set(change.values()) - {STEP}
        wide = lanes >= self.reduced
        every = {s for s, _ in self.lanes}
        if STEP not in change.values() or lanes != (every if wide else every - self.reduced):
            raise Unsupported("a loop with work for a part of the lanes")
        body = with_indices(stage.body, dict(change), self.dims)
        body = _at_hand(body, self.at_hand)
        stores = tuple(
            replace(s, index=sympy.expand(s.index.xreplace(dict(change)))) for s in stage.stores
        )
        return LaneStage(stage.kind, stage.combine, stage.dtype, body, stores, wide)


def _strides(buffer: Buffer, dims: Sequence[Dim]) -> tuple[tuple[sympy.Symbol, int], ...]:
    strides = [s for n, s in zip(buffer.shape, buffer.stride, strict=True) if n != 1]
    return tuple((symbol, s) for (symbol, _), s in zip(dims, strides, strict=True))


def _at_hand(body: Body, names: Mapping[str, object]) -> Body:
    """The body with what is at hand in the place of loads."""

    def one(b: Body) -> Body:
        made = []
        for i in b.instructions:
            inner = one(i.body) if i.body is not None else None
            op = "local" if i.op == "load" and i.buffer in names else i.op
            made.append(replace(i, op=op, body=inner))
        return Body(made, b.results)

    return one(body)


@contextlib.contextmanager
def _for_lanes() -> Iterator[None]:
    """Inductor keeps results of exponentials and the like that are reused on the cpu, where lanes have them in
    registers, and writes short reductions out, which would read other lanes."""
    whole = inductor_config.patch(unroll_reductions_threshold=1)
    with patch.object(ir, "is_cpu", lambda _: False), whole:
        yield
