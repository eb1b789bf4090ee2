"""What a rewrite rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.fx import Graph


@dataclass(frozen=True)
class Rule:
    """A rule: `apply` rewrites every place of a graph (with fake values) where it holds and pays, and says whether
    there was any.

    exact: the results are bit for bit those of before, the sign of a zero aside. Where it is not, they are equal in
    real numbers and as to NaN and infinities, and rounded elsewhere; overflow on the way may differ.
    guarded: where a rule is, its results hold only where they are finite. For each place it adds an output to the
    graph, a number that is 0 there and else NaN; the task as it stands is then to be computed after all.
    """

    name: str
    apply: Callable[[Graph], bool]
    exact: bool
    guarded: bool = False
