"""All CUDA kernel families, each once. To add one, write its folder and add its line here."""

from __future__ import annotations

from typing import Any

from cuda_agent_backend.codegen.cuda.family import KernelFamily
from cuda_agent_backend.codegen.cuda.gemm.skinny.family import Skinny
from cuda_agent_backend.codegen.cuda.pointwise.family import Pointwise

KERNELS: tuple[KernelFamily[Any, Any], ...] = (
    Pointwise(),
    Skinny(),
)
"""Of one kernel, in the order in which they propose (see `family.Place`)."""
BY_NAME = {family.name: family for family in KERNELS}
