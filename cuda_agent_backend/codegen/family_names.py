"""Which sketch a kernel of a schedule is of, told from its parameters alone: all that a label that was kept has."""

from __future__ import annotations

from collections.abc import Mapping

BY_PARAMETER = {
    "scatter": "scatter",
    "team": "sort",
    "groups": "selection",
    "ranks": "recurrent layers",
    "parts": "mixing by scores",
    "keys": "attention",
    "lanes": "loop nests",
}
"""Sketches whose schedules do not name them, by a parameter that none of those below has."""
CPU_PRODUCT = "product"


def family_of(kernel: Mapping[str, object]) -> str:
    """The name of the sketch that a kernel's parameters are of; without a mark it is a matrix product on the cpu."""
    if "sketch" in kernel:
        return str(kernel["sketch"])
    marks = (name for mark, name in BY_PARAMETER.items() if mark in kernel)
    return next(marks, CPU_PRODUCT)
