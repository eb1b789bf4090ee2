"""A task as library calls and the parts between them, each of which is a task of its own.

Products and convolutions are at levels, by how many of them a value goes through. Whatever else a product at a level
reads is made in the part before it; what no product reads is made in the last part, behind all. Values that pass
from one to the other lie in memory, in a layout that is chosen here: views of them are worked out anew where they are
read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from cuda_agent_backend.codegen.cuda.library.unfuse_bias import (
    OPERANDS,
    is_unscaled,
    moved,
    unfuse_biases,
)
from cuda_agent_backend.codegen.ir.failure import Unsupported
from sandbox.graph.build import value_specs as specs_of
from sandbox.plan.library_check import FLOATING
from sandbox.task.specs import TensorSpec, contiguous_stride, overlaps
from sandbox.task.task import Arg, InputRef, Node, NodeRef, Ref, Task, references

CONVOLUTION = "convolution"
VIEWS = ("alias", "detach", "diagonal", "expand", "permute", "select", "slice", "squeeze", "t",
         "transpose", "unsqueeze", "view")  # fmt: skip
"""Operators whose result is their operand's memory, or which fail."""
RESHAPES = {"reshape": "shape", "_unsafe_view": "size"}
"""Operators whose result is that where it can be, and what their argument is called."""
LEAST = 16
"""Of a product's rows, columns and terms, and of a convolution's terms: others are not bound by arithmetic."""
LEAST_CHANNELS = 8
"""Of a group's results."""


@dataclass(frozen=True)
class Part:
    """What kernels compute between calls. inputs, outputs: values of the whole that ``task`` reads and makes."""

    task: Task
    inputs: tuple[Ref, ...]
    outputs: tuple[Ref, ...]


@dataclass(frozen=True)
class ExternSplit:
    """``task``, with sums apart, and the metadata of its values; ``levels``: of the nodes that are calls."""

    task: Task
    specs: Mapping[Ref, TensorSpec]
    levels: Mapping[int, int]
    views: frozenset[int]
    """Nodes whose results are their operands' memory."""

    @property
    def last(self) -> int:
        """The number of the last part; parts before it come each before the calls of its level."""
        return max(self.levels.values()) + 1

    @cached_property
    def stages(self) -> dict[int, int]:
        """For each node that is no call the part that makes it: the one before the first call that needs it."""
        found = dict.fromkeys(range(len(self.task.nodes)), self.last)
        for number in reversed(range(len(self.task.nodes))):
            own = self.levels.get(number, found[number])
            for ref in _reads(self.task.nodes[number]):
                if isinstance(ref, NodeRef):
                    found[ref.node] = min(found[ref.node], own)
        return {number: part for number, part in found.items() if number not in self.levels}

    @property
    def has_convolutions(self) -> bool:
        return any(self.task.nodes[n].name == CONVOLUTION for n in self.levels)

    @property
    def has_free_order(self) -> bool:
        """Whether a convolution's result may have its channels first or last: kernels read it, and what cuDNN computes
        in its image's order, as transposed ones, is of an image that kernels made."""
        for number in filter(self._is_convolution, self.levels):
            args, result = self.task.nodes[number].args, NodeRef(number)
            ordered = args.get("transposed") and args["input"] not in self.kept
            if result in self.kept and result not in self.results and not ordered:
                return True
        return False

    @property
    def is_channels_last(self) -> bool:
        """Whether eager's convolutions have, of their results, neighbouring channels next to each other."""
        made = [self.specs[NodeRef(n)] for n in self.levels if self._is_convolution(n)]
        return bool(made) and all(
            s.stride == last_stride(s.shape) != contiguous_stride(s.shape) for s in made
        )

    def is_view(self, ref: Ref) -> bool:
        """Whether a value is another's memory."""
        return isinstance(ref, NodeRef) and ref.node in self.views

    def base(self, ref: Ref) -> Ref:
        """The value whose memory ``ref`` is."""
        while isinstance(ref, NodeRef) and self.is_view(ref):
            (ref,) = _reads(self.task.nodes[ref.node])
        return ref

    def maker(self, ref: Ref) -> int | None:
        """The part that makes a value; None where it is an input or a call's result."""
        return self.stages.get(ref.node) if isinstance(ref, NodeRef) else None

    @cached_property
    def kept(self) -> tuple[Ref, ...]:
        """Values that lie in memory between parts and calls, or are outputs of another part than the last."""
        found: dict[Ref, None] = {}
        for number, node in enumerate(self.task.nodes):
            reader = None if number in self.levels else self.stages[number]
            for ref in map(self.base, _reads(node)):
                if isinstance(ref, NodeRef) and (reader is None or self.maker(ref) != reader):
                    found[ref] = None
        for ref in self.task.outputs:
            if isinstance(ref, NodeRef) and self.maker(self.base(ref)) != self.last:
                found[self.base(ref)] = None
        return tuple(found)

    @cached_property
    def results(self) -> dict[Ref, int]:
        """Numbers of the outputs whose memory kept values are, either as they are or seen as other shapes."""
        found: dict[Ref, int] = {}
        for number, ref in enumerate(self.task.outputs):
            base, spec = self.base(ref), self.task.output_specs[number]
            flat = all(_is_contiguous(s) for s in (spec, self.specs[ref], self.specs[base]))
            same = ref == base or (flat and self.specs[base].numel == spec.numel)
            if base in self.kept and same:
                found.setdefault(base, number)
        return found

    def laid_out(self, channels_last: bool) -> dict[Ref, TensorSpec]:
        """Layouts of inputs and of what is kept. channels_last: those that convolutions read and write."""
        found: dict[Ref, TensorSpec] = {InputRef(i): s for i, s in enumerate(self.task.inputs)}
        images = {self.task.nodes[n].args["input"] for n in self.levels if self._is_convolution(n)}
        for ref in self.kept:
            spec = self.specs[ref]
            image = ref in images or (isinstance(ref, NodeRef) and self._is_convolution(ref.node))
            if ref in self.results:
                out = self.task.output_specs[self.results[ref]]
                stride = out.stride if out.shape == spec.shape else contiguous_stride(spec.shape)
            elif image:
                stride = last_stride(spec.shape) if channels_last else contiguous_stride(spec.shape)
            else:
                dense = spec.extent == spec.numel and not overlaps(spec)
                stride = spec.stride if dense else contiguous_stride(spec.shape)
            found[ref] = replace(spec, stride=stride)
        return found

    def _is_convolution(self, number: int) -> bool:
        return number in self.levels and self.task.nodes[number].name == CONVOLUTION

    def part(self, number: int, layouts: Mapping[Ref, TensorSpec]) -> Part | None:
        """One part, as a task; None where it has nothing to do.

        Raises:
            Unsupported: it reads no input, which a plan of its own must.
            TaskError: a view is not to be had in these layouts.
        """
        outputs = [ref for ref in self.kept if self.maker(ref) == number]
        specs = [layouts[ref] for ref in outputs]
        for n, ref in enumerate(self.task.outputs if number == self.last else ()):
            if self.results.get(self.base(ref)) != n:
                outputs.append(ref)
                specs.append(self.task.output_specs[n])
        if not outputs:
            return None
        made = _Part(self, number)
        refs = tuple(made.place(ref) for ref in outputs)
        if not made.inputs:
            raise Unsupported("a part that makes constants only")
        inputs = tuple(layouts[ref] for ref in made.inputs)
        task = Task(self.task.target, inputs, tuple(made.nodes), refs, tuple(specs))
        return Part(task, tuple(made.inputs), tuple(outputs))

    def chain(self, ref: Ref, layouts: Mapping[Ref, TensorSpec]) -> Task:
        """The views from a value that lies in memory to ``ref``, as a task for the cpu; none where it has no nodes."""
        made = _Part(self, None)
        out = made.place(ref)
        spec = self.specs[ref]
        given = tuple(layouts[base] for base in made.inputs)
        return Task("cpu", given, tuple(made.nodes), (out,), (spec,))


class _Part:
    """Nodes of one part (None: views only), copied in an order in which each comes after what it reads."""

    def __init__(self, whole: ExternSplit, number: int | None) -> None:
        self.whole, self.number = whole, number
        self.inputs: list[Ref] = []
        self.nodes: list[Node] = []
        self.found: dict[int, int] = {}

    def place(self, ref: Ref) -> Ref:
        """A value as the part knows it."""
        inside = isinstance(ref, NodeRef) and (self.whole.is_view(ref) or self._makes(ref))
        if not isinstance(ref, NodeRef) or not inside:
            if ref not in self.inputs:
                self.inputs.append(ref)
            return InputRef(self.inputs.index(ref))
        if ref.node not in self.found:
            node = self.whole.task.nodes[ref.node]
            args: dict[str, Arg] = {name: moved(arg, self.place) for name, arg in node.args.items()}
            made = Node(node.op, args)
            if self.number is None and node.name in RESHAPES:  # fails where it would have to copy
                shape = args[RESHAPES[node.name]]
                made = Node("aten.view.default", {"self": args["self"], "size": shape})
            self.nodes.append(made)
            self.found[ref.node] = len(self.nodes) - 1
        return NodeRef(self.found[ref.node], ref.output)

    def _makes(self, ref: NodeRef) -> bool:
        return self.number is not None and self.whole.maker(ref) == self.number


def extern_split_of(task: Task) -> ExternSplit:
    """``task`` with its products as calls.

    Raises:
        Unsupported: no product is worth one, or an operator looks at how memory is laid out.
        TaskError: an operator or an argument is unknown to this torch.
    """
    if not any(_is_product(node) for node in task.nodes):
        raise Unsupported("no product or convolution")
    if any(node.name in ("as_strided", "copy_", "set_") for node in task.nodes):
        raise Unsupported("an operator that depends on how its operand lies in memory")
    apart = unfuse_biases(task, specs_of(replace(task, target="cpu")))
    specs = specs_of(replace(apart, target="cpu"))
    depths: list[int] = []
    levels: dict[int, int] = {}
    for number, node in enumerate(apart.nodes):
        before = [r.node for r in _reads(node) if isinstance(r, NodeRef)]
        depths.append(max((depths[n] + (n in levels) for n in before), default=0))
        if _is_product(node) and _pays(node, specs, NodeRef(number)):
            levels[number] = depths[-1]
    if not levels:
        raise Unsupported("no product that is large enough for a call")
    views = frozenset(n for n, node in enumerate(apart.nodes) if _is_view(node, specs))
    return ExternSplit(apart, specs, levels, views)


def last_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an image [batch, channels, ...] whose channels are next to each other."""
    batch, *others = contiguous_stride((shape[0], *shape[2:], shape[1]))
    return (batch, others[-1], *others[:-1])


def _reads(node: Node) -> list[Ref]:
    return references(tuple(node.args.values()))


def _is_product(node: Node) -> bool:
    if node.op == "aten.convolution.default":
        return True
    plain = node.op.endswith(".default") and node.name in OPERANDS
    return plain and is_unscaled(node)


def _is_view(node: Node, specs: Mapping[Ref, TensorSpec]) -> bool:
    if node.name not in RESHAPES:
        return node.name in VIEWS and node.op != "aten.view.dtype"
    spec, shape = _spec_of(node, "self", specs), node.args[RESHAPES[node.name]]
    memory = torch.empty_strided(spec.shape, spec.stride, device="meta")
    try:
        memory.view(shape)  # type: ignore[arg-type]
    except RuntimeError:
        return False
    return True


def _pays(node: Node, specs: Mapping[Ref, TensorSpec], ref: Ref) -> bool:
    out = specs[ref]
    if out.dtype not in FLOATING or out.numel == 0:
        return False
    if node.name == CONVOLUTION:
        weight, groups = _spec_of(node, "weight", specs).shape, node.args.get("groups", 1)
        assert isinstance(groups, int)
        transposed = bool(node.args.get("transposed"))
        columns = weight[0] // groups if transposed else weight[1]
        results = weight[1] if transposed else weight[0] // groups
        return math.prod(weight[2:]) * columns >= LEAST and results >= LEAST_CHANNELS
    left = _spec_of(node, OPERANDS[node.name][0], specs)
    return min(*out.shape[-2:], left.shape[-1]) >= LEAST


def _spec_of(node: Node, name: str, specs: Mapping[Ref, TensorSpec]) -> TensorSpec:
    ref = node.args[name]
    assert isinstance(ref, NodeRef | InputRef)
    return specs[ref]


def _is_contiguous(spec: TensorSpec) -> bool:
    dense = contiguous_stride(spec.shape)
    return all(n == 1 or a == b for n, a, b in zip(spec.shape, spec.stride, dense, strict=True))
