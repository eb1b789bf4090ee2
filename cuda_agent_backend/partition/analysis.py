"""What decides which nodes of a graph fall into one region: their kinds and levels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.graph.convolution_grad import is_gradient
from cuda_agent_backend.operators.back_to_back import BackToBack, back_to_back_of
from cuda_agent_backend.operators.copies import read_through
from cuda_agent_backend.operators.kinds import (
    Kind,
    kind_of,
    kind_of_lasting,
)
from cuda_agent_backend.operators.rng_nodes import rng_nodes_of
from cuda_agent_backend.operators.sdpa import Sdpa, sdpa_of
from cuda_agent_backend.partition.dequantize import dequantized_operands
from cuda_agent_backend.partition.node_values import (
    device_of,
    is_overlapping,
    is_selection,
    size_in_bytes,
    users_of,
)
from cuda_agent_backend.partition.operand_scales import scaled_operands
from cuda_agent_backend.partition.scatter_producers import scatter_producers

MANY_VIEWS = 8
"""Of one tensor, from which on a region reads it whole."""
SINGLE_OPERATORS = (Kind.ATTENTION, Kind.RECURRENT, Kind.SORT)
"""Regions of one operator and nothing else."""
OWN_REGION = (*SINGLE_OPERATORS, Kind.SCATTER)
"""Operators that begin a region of their own."""
STARTING_A_LEVEL = (Kind.PRODUCT, *OWN_REGION)
"""Operators for which all that they read must have been computed before."""
FUSIBLE = (Kind.COMPUTE, Kind.VIEW, Kind.RANDOM, Kind.VANISHING, *STARTING_A_LEVEL)


class Analysis:
    """Kinds, levels and members of regions, for one graph. lasting: products that do not vanish.

    kinds, level, position: of each node. attentions: those written out as several operators, by the node that makes
    their result. shared: what each region that needs it computes for itself. random: what random numbers alone decide.
    members: the nodes that regions are made of, in graph order.
    """

    def __init__(self, graph: Graph, lasting: Collection[Node] = ()) -> None:
        self.nodes: list[Node] = list(graph.nodes)
        self.position = {node: number for number, node in enumerate(self.nodes)}
        self.kinds: dict[Node, Kind] = {}
        for node in self.nodes:
            kind = kind_of_lasting(node) if node in lasting else kind_of(node, self.kinds)
            self.kinds[node] = kind
        self.trailing = self._trailing_mutations()
        self.attentions = self._written_out_attentions()
        self.shared = self._shared()
        self.level = self._levels()
        self._move_up()
        self.random = rng_nodes_of(self.nodes, self.kinds, self.fusible)
        inner = (n for n in self.nodes if self.fusible(n) and n not in self.random)
        self.members = self.without_fringe(inner)

    def fusible(self, node: Node) -> bool:
        """Whether a kernel can make the node together with others."""
        return self.kinds[node] in FUSIBLE and node not in self.shared

    def waits(self, node: Node) -> bool:
        """Whether a node starts a level: all that it reads has been computed before."""
        return not self.fusible(node) or (
            self.kinds[node] in STARTING_A_LEVEL and not is_selection(node)
        )

    def in_order(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes in graph order."""
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
                if (
                    read in root
                    and level[read] == level[node]
                    and device_of(read) == device_of(node)
                ):
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
        within = (node for found in self.attentions.values() for node in found.inner)
        copied = read_through(self.nodes, self.kinds)
        scaled = scaled_operands(self.nodes, self.kinds)
        sent = scatter_producers(self.nodes, self.kinds)
        return copied.union(
            backward, within, scaled, sent, dequantized_operands(self.nodes, self.kinds)
        )

    def _written_out_attentions(self) -> dict[Node, Sdpa | BackToBack]:
        """The attentions of cuda that torch has taken apart, and others like them without a softmax, by the node that
        makes their result."""
        if self._mutates_within():
            return {}
        known: dict[Node, Sdpa | BackToBack] = {}
        for node in self._products_on_cuda():
            if (attention := sdpa_of(node, whole=False)) is not None:
                self._claim(known, node, attention)
        for node in self._products_on_cuda():
            found = back_to_back_of(node, whole=False)
            if found is not None and not self._overlaps(known, found):
                self._claim(known, found.last, found)
        return known

    def _products_on_cuda(self) -> list[Node]:
        return [
            n for n in self.nodes if self.kinds[n] is Kind.PRODUCT and device_of(n)[0] == "cuda"
        ]

    def _claim(
        self, known: dict[Node, Sdpa | BackToBack], node: Node, found: Sdpa | BackToBack
    ) -> None:
        """Take a written-out attention for one operator."""
        known[node] = found
        self.kinds[node] = Kind.ATTENTION
        # no product that copies are read through for
        self.kinds |= {n: Kind.COMPUTE for n in found.inner if self.kinds[n] is Kind.PRODUCT}

    def _overlaps(self, known: dict[Node, Sdpa | BackToBack], found: BackToBack) -> bool:
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
            users = users_of(node)
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
                others = [user for user in users_of(read) if user is not node]
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
    if is_overlapping(value):
        return False
    others = sum(inside(node, user) for user in base.users)
    whole = size_in_bytes(base)
    if others >= MANY_VIEWS and 2 * others * size_in_bytes(node) >= whole:
        return False  # one input rather than one for each step of a loop
    return others <= 1 or size_in_bytes(node) < whole
