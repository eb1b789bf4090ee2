"""Which parts of a post-grad graph are offered for replacement, and why the others are not.

Every node gets a level: the number of barriers (extern kernels and the like) that must run before it. Fusible nodes of
one level never have a barrier between them, so any connected set of them is convex, and replacing all such sets leaves
the graph without cycles. A matrix product that sketches cover waits like a barrier for what it reads, and is fused with
what follows it, one to a region (or two of one operand), and with copies, masks, constant factors and quantised forms
of its operands (`copies`, `scaled`, `dequantised`).
The gradients that the backward of a convolution gives are such products, each with that call in its region. An
attention or a sort waits too and is a region of its own, an attention that torch has taken apart (`composed`), and its
like without a softmax (`mixed`), with all operators; so is a scatter, with its `messages`. What is beside a product is
offered as well, as its region's rest, for where a library is left to run the product. A product that a rewrite does
away with is fusible like any other node. A fusible node whose users all lie on higher levels is moved up to them when
that saves traffic. Views on the fringe of a region stay outside, and no view is ever an output: what it views is put
out instead. What random numbers alone decide stays outside too (`drawn`): it comes before all that reads it, and
depends on nothing in a region.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import Graph, Node
from torch.fx.node import Argument

from cuda_agent_backend.graph.convolution_grad import is_gradient
from cuda_agent_backend.operators.back_to_back import Mixed, mixed
from cuda_agent_backend.operators.copies import read_through
from cuda_agent_backend.operators.kinds import (
    VIEWS_OF_AN_INDEX,
    Kind,
    kind_of,
    kind_of_lasting,
    scattered,
)
from cuda_agent_backend.operators.rng_nodes import drawn
from cuda_agent_backend.operators.sdpa import Composed, composed
from cuda_agent_backend.partition.dequantize import dequantised
from cuda_agent_backend.partition.operand_scales import scaled_operands
from cuda_agent_backend.partition.scatter_producers import messages
from cuda_agent_backend.rewrite.vanishing import vanishes_within
from sandbox.plan import plan
from sandbox.task.specs import ITEM_SIZES

MAX_INPUTS, MAX_OUTPUTS = 12, 4
"""Of regions of loop nests: with more of them there is more to be read than is saved by one kernel."""
SMALL = 16
"""Inputs so many times as small as the largest one do not count, nor do such outputs: statistics of a batch norm."""

MANY_VIEWS = 8
"""Of one tensor, from which on a region reads it whole."""

AS_THEY_STAND = (Kind.ATTENTION, Kind.RECURRENT, Kind.SORT)
"""Regions of one operator and nothing else."""
ALONE = (*AS_THEY_STAND, Kind.SCATTER)
WAITING = (Kind.PRODUCT, *ALONE)
FUSIBLE = (Kind.COMPUTE, Kind.VIEW, Kind.RANDOM, Kind.VANISHING, *WAITING)
CONVOLUTION = torch.ops.aten.convolution.default
PAIRED = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    CONVOLUTION,
)
"""Products of which two of one operand may be one region."""
FEWEST_OF_PAIR = 8
"""Rows and columns from which on they are worth tiles, by which one kernel does both."""
CONVERSIONS = (torch.ops.prims.convert_element_type.default, torch.ops.aten.clone.default)
"""Of dtype and layout: Inductor makes them part of whatever is beside them."""


@dataclass(frozen=True)
class Region:
    """A part of a graph: `nodes` in graph order, what they read from outside, what is needed outside.

    `reason` says why it is left to Inductor, or is None. `moved` counts the bytes of inputs and outputs. `rest` is what
    is offered where no kernel wins for all of it: what is beside its matrix product, which a library then runs.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    target: str
    moved: int
    reason: str | None = None
    rest: Region | None = None


def partition(graph: Graph, *, min_bytes: int = 0) -> list[Region]:
    """All regions of a graph in order of their first node, those not offered included.

    A product that would vanish only together with what has come into another region is one like any other.
    """
    lasting: set[Node] = set()
    while True:
        analysis = Analysis(graph, lasting)
        regions: list[Region] = []
        for part in analysis.components(analysis.members, analysis.level):
            for piece in _pieces(part, analysis):
                regions.extend(_offer(piece, analysis, min_bytes))
        found = {node for region in regions for node in _lasting(region, analysis.kinds)}
        if not found:
            return sorted(regions, key=lambda region: analysis.position[region.nodes[0]])
        lasting |= found


def _lasting(region: Region, kinds: Mapping[Node, Kind]) -> list[Node]:
    """The products of a region that would vanish if more of the graph were in it."""
    nodes = set(region.nodes)
    return [
        n
        for n in region.nodes
        if kinds[n] is Kind.VANISHING and not vanishes_within(n, nodes, region.outputs)
    ]


class Analysis:
    """Kinds, levels and members of regions, for one graph. lasting: products that do not vanish."""

    def __init__(self, graph: Graph, lasting: Collection[Node] = ()) -> None:
        self.nodes: list[Node] = list(graph.nodes)
        self.position = {node: number for number, node in enumerate(self.nodes)}
        self.kinds: dict[Node, Kind] = {}
        for node in self.nodes:
            kind = kind_of_lasting(node) if node in lasting else kind_of(node, self.kinds)
            self.kinds[node] = kind
        self.trailing = self._trailing_mutations()
        self.composed = self._composed()
        self.through = self._shared()
        self.level = self._levels()
        self._move_up()
        self.drawn = drawn(self.nodes, self.kinds, self.fusible)
        inner = (n for n in self.nodes if self.fusible(n) and n not in self.drawn)
        self.members = self.without_fringe(inner)

    def fusible(self, node: Node) -> bool:
        return self.kinds[node] in FUSIBLE and node not in self.through

    def waits(self, node: Node) -> bool:
        """Whether a node starts a level: all that it reads has been computed before."""
        return not self.fusible(node) or (self.kinds[node] in WAITING and not is_selection(node))

    def in_order(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(nodes, key=self.position.__getitem__)

    def components(self, members: Iterable[Node], level: Mapping[Node, int]) -> list[list[Node]]:
        """Connected parts of equal level and device, each in graph order."""
        ordered = self.in_order(members)
        root: dict[Node, Node] = {node: node for node in ordered}

        def find(node: Node) -> Node:
            while root[node] is not node:
                root[node] = root[root[node]]
                node = root[node]
            return node

        for node in ordered:
            for read in node.all_input_nodes:
                if read in root and level[read] == level[node] and _device(read) == _device(node):
                    root[find(read)] = find(node)
        parts: dict[Node, list[Node]] = {}
        for node in ordered:
            parts.setdefault(find(node), []).append(node)
        return list(parts.values())

    def _shared(self) -> set[Node]:
        """What each region that needs it has for itself; past a mutation it would be something else."""
        if self._mutates_within():
            self.kinds |= {n: Kind.BARRIER for n in self.nodes if is_gradient(n)}
            return set()
        backward = (node for node in self.nodes if self.kinds[node] is Kind.BACKWARD)
        within = (node for found in self.composed.values() for node in found.inner)
        copied = read_through(self.nodes, self.kinds)
        scaled = scaled_operands(self.nodes, self.kinds)
        sent = messages(self.nodes, self.kinds)
        return copied.union(backward, within, scaled, sent, dequantised(self.nodes, self.kinds))

    def _composed(self) -> dict[Node, Composed | Mixed]:
        """The attentions of cuda that torch has taken apart, and others like them without a softmax, by the node that
        makes their result."""
        if self._mutates_within():
            return {}
        known: dict[Node, Composed | Mixed] = {}
        for node in self._products_on_cuda():
            if (attention := composed(node, whole=False)) is not None:
                self._is_one(known, node, attention)
        for node in self._products_on_cuda():
            found = mixed(node, whole=False)
            if found is not None and not self._is_taken(known, found):
                self._is_one(known, found.last, found)
        return known

    def _products_on_cuda(self) -> list[Node]:
        return [n for n in self.nodes if self.kinds[n] is Kind.PRODUCT and _device(n)[0] == "cuda"]

    def _is_one(
        self, known: dict[Node, Composed | Mixed], node: Node, found: Composed | Mixed
    ) -> None:
        known[node] = found
        self.kinds[node] = Kind.ATTENTION
        # no product that copies are read through for
        self.kinds |= {n: Kind.COMPUTE for n in found.inner if self.kinds[n] is Kind.PRODUCT}

    def _is_taken(self, known: dict[Node, Composed | Mixed], found: Mixed) -> bool:
        """Whether a part of it is another one's."""
        own = {found.last, *found.inner}
        return any(last in own or not own.isdisjoint(o.inner) for last, o in known.items())

    def _trailing_mutations(self) -> set[Node]:
        """The mutations after which nothing is computed."""
        found: set[Node] = set()
        for node in reversed(self.nodes):
            if node.op == "output":
                continue
            if self.kinds[node] is not Kind.MUTATION:
                break
            found.add(node)
        return found

    def _mutates_within(self) -> bool:
        return any(self.kinds[n] is Kind.MUTATION and n not in self.trailing for n in self.nodes)

    def _levels(self) -> dict[Node, int]:
        """Barriers before each node. A mutation that is not at the very end counts for everything after it."""
        level: dict[Node, int] = {}
        floor = highest = 0
        for node in self.nodes:
            below = self.waits(node)
            own = max(
                (level[read] + (below and self.fusible(read)) for read in node.all_input_nodes),
                default=floor,
            )
            level[node] = max(own, floor)
            highest = max(highest, level[node])
            if self.kinds[node] is Kind.MUTATION and node not in self.trailing:
                floor = highest = highest + 1
        return level

    def _move_up(self) -> None:
        """Move nodes to the level of their first user where all users lie higher and it does not cost bytes.

        Nothing is moved where a mutation lies in the midst of the graph: reading after it would be wrong.
        """
        if self._mutates_within():
            return
        for node in reversed(self.nodes):
            users = _users(node)
            if not self.fusible(node) or is_selection(node) or not users:
                continue
            first = min(self._latest(node, user) for user in users)
            if first > self.level[node] and self._worth_moving(node, first):
                for moved in (node, *(user for user in node.users if is_selection(user))):
                    self.level[moved] = first

    def _latest(self, node: Node, user: Node) -> int:
        if user.op == "output" or user in self.trailing:
            return self.level[node]
        return self.level[user] - self.waits(user)

    def _worth_moving(self, node: Node, to: int) -> bool:
        """Whether its operands move with it, or are no larger than what would be cut otherwise."""
        kept = 0
        for read in node.all_input_nodes:
            if self.fusible(read) and self.level[read] == self.level[node]:
                others = [user for user in _users(read) if user is not node]
                if any(self._latest(read, user) < to for user in others):
                    kept += size_in_bytes(read)
        return kept <= max(size_in_bytes(part) for part in (node, *node.users))

    def without_fringe(self, nodes: Iterable[Node]) -> dict[Node, None]:
        """Nodes in graph order without the views that are as well made outside of the regions that they fall into."""
        members = dict.fromkeys(nodes)

        def inside(node: Node, other: Node) -> bool:
            return other in members and self.level[other] == self.level[node]

        views = [node for node in members if self.kinds[node] is Kind.VIEW]
        for node in reversed(views):
            if not any(inside(node, user) for user in node.users):
                del members[node]
        for node in views:
            if node in members and _stays_outside(node, inside):
                del members[node]
        return members


def _stays_outside(node: Node, inside: Callable[[Node, Node], bool]) -> bool:
    """Whether a view of a region's input is better made outside: it is one input either way and may be smaller."""
    if any(inside(node, read) for read in node.all_input_nodes):
        return False
    value, base = node.meta.get("val"), node.all_input_nodes[0]
    if not isinstance(value, torch.Tensor):  # several at once
        return sum(inside(node, user) for user in node.users) < MANY_VIEWS
    if not isinstance(base.meta.get("val"), torch.Tensor):
        return True
    if _overlapping(value):
        return False
    others = sum(inside(node, user) for user in base.users)
    whole = size_in_bytes(base)
    if others >= MANY_VIEWS and 2 * others * size_in_bytes(node) >= whole:
        return False  # one input rather than one for each step of a loop
    return others <= 1 or size_in_bytes(node) < whole


def _overlapping(value: torch.Tensor) -> bool:
    return any(
        type(step) is int and step == 0 and size != 1
        for size, step in zip(value.shape, value.stride(), strict=True)
    )


def is_selection(node: Node) -> bool:
    """Whether a node picks one of several results."""
    return node.target is operator.getitem


def _users(node: Node) -> list[Node]:
    """Users, those of its selections in place of the selections."""
    return [
        found for user in node.users for found in (user.users if is_selection(user) else (user,))
    ]


def _pieces(part: list[Node], analysis: Analysis) -> list[list[Node]]:
    """What a component is offered as: its attentions, sorts and scatters run before the rest, which may fall apart."""
    alone = [n for n in part if analysis.kinds[n] in ALONE and not is_selection(n)]
    if not alone:
        return _one_product_each(part, analysis)
    rest = [n for n in part if analysis.kinds[n] not in ALONE]
    return [
        *([node, *(n for n in node.users if n in part and is_selection(n))] for node in alone),
        *(
            piece
            for found in analysis.components(rest, analysis.level)
            for piece in _one_product_each(found, analysis)
        ),
    ]


def _one_product_each(part: list[Node], analysis: Analysis) -> list[list[Node]]:
    """Take all products but the last out of a component: each of them runs before the rest, which may fall apart.

    Two that one kernel may do stay together.
    """
    products = [node for node in part if analysis.kinds[node] is Kind.PRODUCT]
    if len(products) < 2 or (len(products) == 2 and _paired(products[0], products[1], part)):
        return [part]
    apart = set(products[:-1])
    rest = [node for node in part if node not in apart]
    return [[node] for node in products[:-1]] + analysis.components(rest, analysis.level)


def _paired(first: Node, second: Node, part: Iterable[Node]) -> bool:
    """Whether two products are of one operand and of weights that lie in the same way, and needed in ``part`` alone.

    In half precision the copy engine's tiles are faster than those that one kernel for both has (`sketch.paired`).
    """
    if first.target not in PAIRED or first.target is not second.target:
        return False
    (left, weights), (other, others) = _operands(first), _operands(second)
    if left is not other or not isinstance(weights, Node) or not isinstance(others, Node):
        return False
    if first.target is CONVOLUTION and not _alike(first, second):
        return False
    users, values = {*first.users, *second.users}, [n.meta["val"] for n in (weights, others)]
    same = values[0].shape == values[1].shape and values[0].stride() == values[1].stride()
    whole = values[0].dtype == values[1].dtype == torch.float32
    large = min(_rows_and_columns(first)) >= FEWEST_OF_PAIR
    return _device(first)[0] == "cuda" and whole and large and same and users <= set(part)


def _operands(product: Node) -> tuple[Argument, Argument]:
    """What is multiplied, the weights second."""
    left, weights = product.args[:2] if product.target is CONVOLUTION else product.args[-2:]
    return left, weights


def _alike(first: Node, second: Node) -> bool:
    """Whether two convolutions of one image go over it in the same way, none of them transposed or in groups."""
    *_, transposed, _, groups = way = first.args[3:]
    return way == second.args[3:] and (transposed, groups) == (False, 1)


def _rows_and_columns(product: Node) -> tuple[int, int]:
    """Of what a product makes."""
    shape = product.meta["val"].shape
    if product.target is CONVOLUTION:
        return shape.numel() // shape[1], shape[1]
    return shape[-2], shape[-1]


def _offer(part: list[Node], analysis: Analysis, min_bytes: int) -> list[Region]:
    """The region of a component, or the regions that it is split into because it has too many inputs or outputs."""
    region = _region(part, analysis, min_bytes)
    if region is None:
        return []
    alone = any(analysis.kinds[node] in AS_THEY_STAND for node in part)
    if _fits(region, plan.MAX_INPUTS if alone else MAX_INPUTS):
        return [replace(region, rest=_rest(region, part, analysis, min_bytes))]
    halves = _halves(part) if region.reason is None else None
    if halves is None:
        wide = f"{len(region.inputs)} inputs and {len(region.outputs)} outputs are too many"
        return [replace(region, reason=region.reason or wide)]
    return [
        made
        for half in halves
        for piece in analysis.components(half, dict.fromkeys(half, 0))
        for made in _offer(piece, analysis, min_bytes)
    ]


def _fits(region: Region, most_inputs: int) -> bool:
    """Whether there are not too many inputs and outputs for one kernel, and for a plan."""
    within = len(region.inputs) <= plan.MAX_INPUTS and len(region.outputs) <= plan.MAX_OUTPUTS
    return within and _large(region.inputs) <= most_inputs and _large(region.outputs) <= MAX_OUTPUTS


def _large(nodes: Sequence[Node]) -> int:
    """How many of some values count."""
    sizes = list(map(size_in_bytes, nodes))
    return sum(SMALL * size >= max(sizes) for size in sizes)


def _rest(region: Region, part: list[Node], analysis: Analysis, min_bytes: int) -> Region | None:
    """What is beside a region's product, in one piece, for all of it reads the product.

    None where that is no region, or a single operator, which is one kernel of Inductor's in any case.
    """
    beside = [node for node in part if analysis.kinds[node] is not Kind.PRODUCT]
    if region.reason is not None or len(beside) == len(part):
        return None
    rest = list(analysis.without_fringe(beside))
    if sum(_computes(node, analysis.kinds) for node in rest) < 2:
        return None
    found = _region(rest, analysis, min_bytes)
    return found if found is not None and found.reason is None else None


def _computes(node: Node, kinds: Mapping[Node, Kind]) -> bool:
    """Whether a node makes values, rather than picking, viewing or converting them."""
    computing = kinds[node] in (Kind.COMPUTE, Kind.VANISHING)
    return computing and not is_selection(node) and node.target not in CONVERSIONS


def _halves(part: list[Node]) -> tuple[list[Node], list[Node]] | None:
    """Cut a component in graph order where the fewest bytes cross, not too far from its middle.

    Selections go with their operator: where they stand is an accident.
    """
    body = [node for node in part if not is_selection(node)]
    count = len(body)
    place = {node: number for number, node in enumerate(body)}
    last_use = [max((place[u] for u in _users(node) if u in place), default=-1) for node in body]
    sizes = [sum(map(size_in_bytes, (node, *filter(is_selection, node.users)))) for node in body]
    low, high = max(1, count // 5), max(2, count - count // 5)
    best: tuple[int, int] | None = None
    for cut in range(low, min(high, count)):
        crossing = sum(sizes[i] for i in range(cut) if last_use[i] >= cut)
        if best is None or crossing < best[0]:
            best = (crossing, cut)
    if best is None:
        return None
    place |= {n: place.get(n.all_input_nodes[0], 0) for n in part if is_selection(n)}
    first = [node for node in part if place[node] < best[1]]
    return first, [node for node in part if place[node] >= best[1]]


def _region(part: list[Node], analysis: Analysis, min_bytes: int) -> Region | None:
    alone = any(analysis.kinds[node] in AS_THEY_STAND for node in part)
    alone = alone and analysis.composed.keys().isdisjoint(part)
    nodes = part if alone else _with_shared(_with_index(part, analysis), analysis)
    own, inner = set(nodes), set(part)
    inputs = list(dict.fromkeys(r for n in nodes for r in n.all_input_nodes if r not in own))
    outputs = _outputs(part, inner, analysis.kinds)
    if not outputs:
        return None
    target = _device(outputs[0])[0]
    moved = sum(map(size_in_bytes, (*inputs, *outputs)))
    region = Region(tuple(nodes), tuple(inputs), tuple(outputs), target, moved)
    reason = _why_not(region, analysis.kinds, min_bytes)
    return replace(region, reason=reason)


def _with_index(part: list[Node], analysis: Analysis) -> list[Node]:
    """The part and, for a scatter, what its index is a view of: mostly one index for many values."""
    found = list(part)
    for node in part:
        if analysis.kinds[node] is Kind.SCATTER:
            scatter = scattered(node)
            assert scatter is not None
            index = scatter.index
            while index.target in VIEWS_OF_AN_INDEX:
                found.append(index)
                index = index.all_input_nodes[0]
    return found


def _with_shared(part: list[Node], analysis: Analysis) -> list[Node]:
    """The part and what every region has for itself: constants that it needs, copies and codes that its products read
    through, the backward of a convolution of which it has a gradient, the values of a scatter. Not the mask that an
    attention reads."""
    found = set(part)
    attentions = (analysis.composed.get(node) for node in part)
    masks = {a.mask.node for a in attentions if isinstance(a, Composed) and a.mask is not None}
    waiting = list(part)
    while waiting:
        for read in waiting.pop().all_input_nodes:
            shared = analysis.kinds[read] is Kind.CONSTANT or read in analysis.through
            if shared and read not in found and read not in masks:
                found.add(read)
                waiting.append(read)
    return analysis.in_order(found)


def _outputs(part: list[Node], inner: set[Node], kinds: dict[Node, Kind]) -> list[Node]:
    """Values needed outside. A view needed outside is made there from the value it views."""
    needed: dict[Node, None] = {}
    outside: set[Node] = set()
    for node in reversed(part):
        used = any(user not in inner or user in outside for user in node.users)
        if not used:
            continue
        if kinds[node] is Kind.VIEW or not isinstance(node.meta.get("val"), torch.Tensor):
            if kinds[node] is Kind.VIEW:
                outside.add(node)
        else:
            needed[node] = None
    return list(reversed(needed))


def _why_not(region: Region, kinds: dict[Node, Kind], min_bytes: int) -> str | None:
    values = [node.meta.get("val") for node in (*region.nodes, *region.inputs)]
    if any(_symbolic(value) for value in values):
        return "symbolic sizes"
    if any(kinds[node] is Kind.RANDOM for node in region.nodes):
        return "random numbers"
    for node in (*region.inputs, *region.outputs):
        if reason := _unfit(node):
            return reason
    devices = {_device(node) for node in (*region.nodes, *region.inputs)}
    if len(devices) > 1:
        return f"several devices: {', '.join(sorted(f'{kind}:{index}' for kind, index in devices))}"
    if region.target not in ("cpu", "cuda"):
        return f"device {region.target}"
    if all(kinds[node] in (Kind.VIEW, Kind.CONSTANT) for node in region.nodes):
        return "views only"
    if not region.inputs:
        return "no inputs"
    alone = all(kinds[n] in (Kind.VIEW, Kind.PRODUCT) and not _has_addend(n) for n in region.nodes)
    if alone and region.target == "cpu":
        return "a matrix product alone, which a library runs"
    if any(_overlapping(node.meta["val"]) for node in region.outputs):
        return "an output whose elements share memory"
    if region.moved < min_bytes:
        return f"it moves {region.moved} bytes, less than {min_bytes}"
    return None


def _has_addend(node: Node) -> bool:
    return node.target in (torch.ops.aten.addmm.default, torch.ops.aten.baddbmm.default)


def _unfit(node: Node) -> str | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return f"{node.name} is not a tensor"
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in ITEM_SIZES:
        return f"dtype {dtype}"
    return "an empty tensor" if value.numel() == 0 else None


def _symbolic(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return not all(type(n) is int for n in (*value.shape, *value.stride()))
    if isinstance(value, list | tuple):
        return any(_symbolic(item) for item in value)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _device(node: Node) -> tuple[str, int]:
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        value = next((item for item in value if isinstance(item, torch.Tensor)), None)
    if not isinstance(value, torch.Tensor):
        return ("none", 0)
    return value.device.type, value.device.index or 0


def size_in_bytes(node: Node) -> int:
    """Bytes of distinct elements of a node's value; 0 where they are not known."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or _symbolic(value):
        return 0
    count = 1
    for size, step in zip(value.shape, value.stride(), strict=True):
        count *= size if step != 0 else 1
    return count * value.element_size()
