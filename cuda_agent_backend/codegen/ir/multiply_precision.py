"""How exactly the kernels of a schedule multiply, as far as they say."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule

Key = TypeVar("Key", bound=Hashable)

EXACT = 6
"""Products of parts for one of float32 numbers, with float32's accuracy."""
BOXED = ("halo", "phases")
"""Sketches of float32 convolutions that do not say so many (`boxed_parameters`)."""


def products_of(schedule: Schedule) -> int:
    """Products of parts for one of two numbers, the fewest of a schedule's kernels: 1 for float32 in TF32, `EXACT` at
    most. 0 where none says."""
    found = (_products(dict(kernel)) for kernel in schedule.kernels)
    return min((products for products in found if products), default=0)


def as_coarse(products: Mapping[Key, int], wrong: int) -> set[Key]:
    """Which of several multiply no more exactly than a wrong one; none where nothing is more exact, for then that is
    not why it is wrong."""
    if not wrong or max(products.values(), default=0) <= wrong:
        return set()
    return {key for key, mine in products.items() if 0 < mine <= wrong}


def _products(kernel: Mapping[str, Parameter]) -> int:
    return int(kernel.get("products", EXACT if kernel.get("sketch") in BOXED else 0))
