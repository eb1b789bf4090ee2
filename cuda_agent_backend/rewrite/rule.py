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
    """

    name: str
    apply: Callable[[Graph], bool]
    exact: bool
