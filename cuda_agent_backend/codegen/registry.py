"""All kernel families of both targets, and which of them a schedule is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuda_agent_backend.codegen.cpu.family import (
    CpuAttentionFamily,
    CpuGemm,
    CpuLoopNests,
)
from cuda_agent_backend.codegen.cuda import registry as cuda
from cuda_agent_backend.codegen.family import Family, TaskFamily
from cuda_agent_backend.codegen.ir.parameters import SKETCH, meanings

CPU_TASKS: tuple[TaskFamily[Any], ...] = (CpuAttentionFamily(),)
FAMILIES: dict[str, tuple[Family[Any], ...]] = {
    "cpu": (CpuLoopNests(), CpuGemm(), *CPU_TASKS),
    "cuda": cuda.FAMILIES,
}
"""By target, in the order in which SKILL.md speaks of them."""
TASKS: dict[str, tuple[TaskFamily[Any], ...]] = {"cpu": CPU_TASKS, "cuda": cuda.TASKS}
"""Those of whole tasks, by target, in the order in which they are asked."""
LIBRARY = cuda.LIBRARY


def family_of(kernel: Mapping[str, object]) -> str:
    """The name of the family that a kernel's parameters are of, told from a label alone, which may be an old one.

    Where they do not name it, it is the first family that shares as many parameters with them as any.
    """
    if SKETCH in kernel:
        return str(kernel[SKETCH])
    unnamed = [f for own in FAMILIES.values() for f in own if not f.is_named]
    return max(unnamed, key=lambda f: len(meanings(f.params).keys() & kernel.keys())).name
