"""How exactly the kernels of a schedule multiply, as far as they say."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from cuda_agent_backend.codegen.ir.parameters import SKETCH, meanings
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from cuda_agent_backend.codegen.registry import FAMILIES

Key = TypeVar("Key", bound=Hashable)


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
    """Those that a kernel says, or that hold where it does not; 0 for a family that multiplies in one way."""
    family = next((f for f in FAMILIES["cuda"] if f.name == kernel.get(SKETCH)), None)
    meaning = None if family is None else meanings(family.params).get("products")
    usual = None if meaning is None else meaning.default
    return int(kernel.get("products", usual or 0))
