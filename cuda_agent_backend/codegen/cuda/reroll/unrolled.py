"""Loops over time that tracing has written out, among the nodes of a graph: what all steps have in common.

A loop is found from a concatenation of as many results as there are steps. Its operands, one of each step, are followed
upwards together. At each point the nodes of all steps are the same value; or what the steps read of one tensor, one
place after another; or what was followed already, at this step or at the one before (which makes it a state); or calls
of one operator, whose operands are followed in turn. Whatever is none of these, before the first step, is what a state
begins with. So nothing is guessed: what comes out says of each step what the graph does there.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from cuda_agent_backend.graph.edit import argument, calls, is_tensor, name_of

LEAST_STEPS = 8
"""Fewer are few enough to be written out."""
MOST_ROLES, MOST_FOLLOWED = 256, 4096
"""Beyond which a graph is taken for no loop."""
PEELED = (0, 1)
"""Steps before the loop: the first is often simpler than others, as the state is zero."""


@dataclass(frozen=True)
class Fixed:
    """The same value at all steps."""

    node: Node


@dataclass(frozen=True)
class Slices:
    """At step ``t`` what ``base`` has at place ``first + step * t`` of a dimension; kept: which stays, of size one."""

    base: Node
    dim: int
    first: int
    step: int
    kept: bool


@dataclass(frozen=True)
class Made:
    """What role number ``role`` makes at this step."""

    role: int


@dataclass(frozen=True)
class Carried:
    """What role number ``role`` made at the step before; at the first one, ``initial``."""

    role: int
    initial: Node


Operand = Fixed | Slices | Made | Carried
Steps = tuple[Node | None, ...]


@dataclass
class Role:
    """The nodes that do the same, by step, and what each operand is. The last step's may be missing, for nobody needs
    the state after the last."""

    nodes: Steps
    operands: tuple[Operand, ...] = ()

    @property
    def first(self) -> Node:
        """The node of the first step, which stands for all."""
        assert self.nodes[0] is not None
        return self.nodes[0]


@dataclass
class Unrolled:
    """A loop. joined: concatenations of what a role makes, each with that role's number and with how many operands it
    has from steps before. backward: whether the last operand of ``joined`` is made first.
    """

    steps: int
    backward: bool
    roles: list[Role] = field(default_factory=list)
    joined: dict[Node, tuple[int, int]] = field(default_factory=dict)

    @property
    def carried(self) -> list[Carried]:
        """What the steps hand on, each once."""
        operands = (operand for role in self.roles for operand in role.operands)
        return list(dict.fromkeys(o for o in operands if isinstance(o, Carried)))


class _Differ(Exception):
    """The steps have nothing in common here."""


def unrolled_of(graph: Graph) -> Unrolled | None:
    """The loop that the last of a graph's long concatenations is made by; None where there is none."""
    joined = [node for node in calls(graph, "cat") if len(node.args[0]) >= LEAST_STEPS]  # type: ignore[arg-type]
    for anchor in reversed(joined):
        for peeled in PEELED:
            for backward in (False, True):
                found = _Finder.found(anchor, peeled, backward)
                if found is not None:
                    found.add_others(joined)
                    return found.loop
    return None


class _Finder:
    """Follows operands of all steps together."""

    def __init__(self, steps: int, backward: bool) -> None:
        self.loop = Unrolled(steps, backward)
        self.places: dict[Node, tuple[tuple[int, int], ...]] = {}
        """Of nodes that have a role: its number, and the step. More than one at the first step only: where states begin
        with one value, as a numerator and a denominator with zero, tracing made one node of what is done to both."""
        self.followed = 0

    @staticmethod
    def found(anchor: Node, peeled: int, backward: bool) -> _Finder | None:
        """With the loop that makes what ``anchor`` joins; None where it is none, or one without a state."""
        finder = _Finder(len(_parts(anchor)) - peeled, backward)
        joins = finder.loop.steps >= LEAST_STEPS and finder.joins(anchor)
        return finder if joins and finder.loop.carried else None

    def add_others(self, joined: Sequence[Node]) -> None:
        """Note what else is joined of all steps, such as the states beside the results."""
        for node in joined:
            if node not in self.loop.joined and len(_parts(node)) >= self.loop.steps:
                self.joins(node)

    def joins(self, node: Node) -> bool:
        """Whether ``node`` joins what a role makes, beside what the steps before the loop do; it is noted then."""
        parts = _parts(node)
        peeled = len(parts) - self.loop.steps
        in_order = parts[::-1] if self.loop.backward else parts
        with self._undone():
            made = self._operand(in_order[peeled:])
            if not isinstance(made, Made):
                raise _Differ
            self.loop.joined[node] = (made.role, peeled)
            return True
        return False

    @contextlib.contextmanager
    def _undone(self) -> Iterator[None]:
        """Leave things as they were where steps differ."""
        kept = [Role(role.nodes, role.operands) for role in self.loop.roles], dict(self.places)
        try:
            yield
        except _Differ:
            self.loop.roles, self.places = kept

    def _operand(self, nodes: Steps) -> Operand:
        self.followed += 1
        if self.followed > MOST_FOLLOWED:
            raise _Differ
        known = [node for node in nodes if node is not None]
        if len(set(known)) == 1:
            return Fixed(known[0])
        found = self._made(nodes) or self._carried(nodes) or _slices(nodes)
        if found is not None:
            return found
        role: int | None = None
        with self._undone():
            role = self._role(nodes)
        if role is not None:
            return Made(role)
        assert nodes[0] is not None
        return Carried(self._role((*nodes[1:], None)), nodes[0])

    def _made(self, nodes: Steps) -> Made | None:
        """What has a role already, at the same steps."""
        role = self._role_at(nodes)
        if role is None:
            return None
        last, known = nodes[-1], self.loop.roles[role].nodes[-1]
        if last is not None and known is None:
            self._complete(role, last)
        elif last is not None and last is not known:
            return None
        return Made(role)

    def _carried(self, nodes: Steps) -> Carried | None:
        """What has a role already, at the steps before."""
        role = self._role_at(nodes[1:])
        if role is None or nodes[0] is None:
            return None
        last = nodes[-1]
        if last is not None and last is not self.loop.roles[role].nodes[-2]:
            return None
        return Carried(role, nodes[0])

    def _role_at(self, nodes: Steps) -> int | None:
        """The role that all but the last of ``nodes`` have, step by step."""
        first, *others = [self.places.get(node, ()) for node in nodes[:-1] if node is not None]
        roles = (role for role, step in first if step == 0)
        fits = (r for r in roles if all((r, t) in own for t, own in enumerate(others, 1)))
        return next(fits, None)

    def _role(self, nodes: Steps) -> int:
        """The number of a new role."""
        first, *others = [node for node in nodes if node is not None]
        if len(self.loop.roles) >= MOST_ROLES or any(node in self.places for node in others):
            raise _Differ
        if any(step for _, step in self.places.get(first, ())):
            raise _Differ
        if nodes[-2] is None or not is_tensor(first):
            raise _Differ
        if any(not _alike(first, node) for node in others):
            raise _Differ
        number = len(self.loop.roles)
        self.loop.roles.append(Role(nodes))
        for step, node in enumerate(nodes):
            if node is not None:
                self.places[node] = (*self.places.get(node, ()), (number, step))
        self.loop.roles[number].operands = self._operands(nodes)
        return number

    def _complete(self, number: int, last: Node) -> None:
        """Give a role the node of the last step, which must do what those before it do."""
        role = self.loop.roles[number]
        if last in self.places or not _alike(role.first, last):
            raise _Differ
        role.nodes = (*role.nodes[:-1], last)
        self.places[last] = ((number, self.loop.steps - 1),)
        if role.operands and self._operands(role.nodes) != role.operands:
            raise _Differ

    def _operands(self, nodes: Steps) -> tuple[Operand, ...]:
        read = [None if node is None else _reads(node) for node in nodes]
        known = next(own for own in read if own is not None)
        return tuple(
            self._operand(tuple(None if own is None else own[n] for own in read))
            for n in range(len(known))
        )


def _parts(node: Node) -> tuple[Node, ...]:
    parts: Any = node.args[0]
    return tuple(parts)


def _reads(node: Node) -> list[Node]:
    """The nodes among the arguments, in order, each as often as it is there."""
    return [leaf for leaf in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(leaf, Node)]


def _alike(one: Node, other: Node) -> bool:
    """Whether two nodes differ in the nodes that they read at most."""
    if one.op != "call_function" or one.target is not other.target or not is_tensor(other):
        return False
    mine, its = one.meta["val"], other.meta["val"]
    if (mine.shape, mine.dtype, mine.device) != (its.shape, its.dtype, its.device):
        return False
    return _plain(one) == _plain(other)


def _plain(node: Node) -> tuple[Any, list[str]]:
    leaves, form = pytree.tree_flatten((node.args, node.kwargs))
    return form, ["" if isinstance(leaf, Node) else repr(leaf) for leaf in leaves]


def _slices(nodes: Steps) -> Slices | None:
    """What all steps take from one tensor, one place after another; where the last one's is missing, there is a place
    for it."""
    found = [_slice(node) for node in nodes if node is not None]
    known = [own for own in found if own is not None]
    if len(known) != len(found):
        return None
    first, second = known[:2]
    step = second.first - first.first
    line = [replace(first, first=first.first + step * t, step=1) for t in range(len(known))]
    size, last = first.base.meta["val"].shape[first.dim], first.first + step * (len(nodes) - 1)
    fits = line == known and step in (1, -1) and 0 <= last < size
    return replace(first, step=step) if fits else None


def _slice(node: Node) -> Slices | None:
    """The one place of a dimension that a node takes, in `Slices` of a single step."""
    if node.target is operator.getitem:
        source, index = node.args
        if name_of(source) != "unbind":
            return None
        base, dim, kept = argument(source, "self"), argument(source, "dim"), False  # type: ignore[arg-type]
    elif name_of(node) == "select":
        base, dim, index = (argument(node, name) for name in ("self", "dim", "index"))
        kept = False
    elif name_of(node) == "slice":
        base, dim, index = (argument(node, name) for name in ("self", "dim", "start"))
        kept = True
    else:
        return None
    dim %= base.meta["val"].dim()
    size = base.meta["val"].shape[dim]
    if not isinstance(index, int) or (kept and node.meta["val"].shape[dim] != 1):
        return None
    first = (
        index if index >= 0 else max(index + size, 0)
    )  # a slice may begin before the first place
    return Slices(base, dim, first, 1, kept) if first < size else None
