"""Sums described as terms before any node of them is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.fx import Node

from cuda_agent_backend.graph.edit import Editor, aten, dtype_of

Dims = tuple[int, ...]


class Term(Protocol):
    """The sum of some value over some of its dimensions, which are gone. `pays`: it reaches a leaf."""

    @property
    def pays(self) -> bool: ...

    def emit(self, at: Editor, wide: torch.dtype) -> Node:
        """Make its nodes, in a dtype wide enough that no rounding is added on the way."""


@dataclass(frozen=True)
class Plain:
    """A value, summed as it is."""

    node: Node
    dims: Dims
    pays: bool = False

    def emit(self, at: Editor, wide: torch.dtype) -> Node:
        if not self.dims:
            return at.cast(self.node, wide)
        dtype = {} if dtype_of(self.node) == wide else {"dtype": wide}
        return at.call(aten.sum.dim_IntList, self.node, list(self.dims), **dtype)


@dataclass(frozen=True)
class Paying:
    """A term that a leaf made."""

    term: Term
    pays: bool = True

    def emit(self, at: Editor, wide: torch.dtype) -> Node:
        return self.term.emit(at, wide)


@dataclass(frozen=True)
class Scaled:
    """Times a finite factor, or divided by one."""

    term: Term
    factor: float
    divide: bool = False

    @property
    def pays(self) -> bool:
        return self.term.pays

    def emit(self, at: Editor, wide: torch.dtype) -> Node:
        made = self.term.emit(at, wide)
        if self.factor == 1:
            return made
        target = aten.div.Tensor if self.divide else aten.mul.Tensor
        return at.call(target, made, self.factor)


@dataclass(frozen=True)
class Added:
    """The sum of two terms, which broadcast."""

    left: Term
    right: Term

    @property
    def pays(self) -> bool:
        return self.left.pays or self.right.pays

    def emit(self, at: Editor, wide: torch.dtype) -> Node:
        return at.call(aten.add.Tensor, self.left.emit(at, wide), self.right.emit(at, wide))


@dataclass(frozen=True)
class Shifted:
    """Plus a number."""

    term: Term
    amount: float

    @property
    def pays(self) -> bool:
        return self.term.pays

    def emit(self, at: Editor, wide: torch.dtype) -> Node:
        return at.call(aten.add.Tensor, self.term.emit(at, wide), self.amount)


@dataclass(frozen=True)
class Shaped:
    """In another shape, elements in the same order."""

    term: Term
    shape: tuple[int, ...]

    @property
    def pays(self) -> bool:
        return self.term.pays

    def emit(self, at: Editor, wide: torch.dtype) -> Node:
        return at.shaped(self.term.emit(at, wide), self.shape)


@dataclass(frozen=True)
class Permuted:
    """With its dimensions in another order."""

    term: Term
    order: tuple[int, ...]

    @property
    def pays(self) -> bool:
        return self.term.pays

    def emit(self, at: Editor, wide: torch.dtype) -> Node:
        made = self.term.emit(at, wide)
        if self.order == tuple(sorted(self.order)):
            return made
        return at.call(aten.permute.default, made, list(self.order))
