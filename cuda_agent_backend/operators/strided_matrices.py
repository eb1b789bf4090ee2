"""Batches of matrices as kernels of attention and of back-to-back products read them: where they lie, and as heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Node

from cuda_agent_backend.graph.strides import (
    Dim,
    reshaped,
    shared,
    single,
)


@dataclass(frozen=True)
class Operand:
    """What is read, and elements between neighbours of each dimension (batch, head, row, column)."""

    node: Node
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Matrices:
    """A batch of matrices, as a product reads them."""

    node: Node
    batch: Dim
    rows: Dim
    columns: Dim

    @property
    def transposed(self) -> Matrices:
        return Matrices(self.node, self.batch, self.columns, self.rows)

    @property
    def even(self) -> bool:
        """Whether columns lie next to each other, and rows at one distance."""
        return single(self.rows) is not None and single(self.columns) == 1

    def operand(self, heads: tuple[int, int]) -> Operand:
        """heads: the steps of batches and heads."""
        return Operand(self.node, (*heads, single(self.rows) or 0, single(self.columns) or 0))


def is_readable(value: torch.Tensor, device: torch.device) -> bool:
    """Whether a kernel on that device can read a tensor, which lies in memory as its strides say."""
    fixed = all(type(n) is int for n in (*value.shape, *value.stride()))
    return fixed and value.device == device


def splits(count: int, operands: tuple[Matrices, ...]) -> Iterator[tuple[int, int]]:
    """Ways to take a batch of matrices as batches of heads: how many batches, and heads that share keys and values."""
    found = {1}
    for matrices in operands:
        product = 1
        for own, _ in matrices.batch:
            product *= own
            found.add(product)
    group = min(shared(matrices.batch) for matrices in operands[1:])
    for batches in sorted(found):
        for together in (group, 1):
            if count % (batches * together) == 0:
                yield batches, together


def head_steps(batch: Dim, batches: int, heads: int, group: int) -> tuple[int, int] | None:
    """The steps of batches and of heads, of which ``group`` neighbours share one; None where they are not even."""
    steps = reshaped((batch,), (batches, heads // group, group))
    if steps is None or (group > 1 and single(steps[2]) != 0):
        return None
    outer, inner = single(steps[0]), single(steps[1])
    return None if outer is None or inner is None else (outer, inner)
