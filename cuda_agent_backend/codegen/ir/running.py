"""What running sums of exponentials and places of running extremes need, in headers that other kernels do without."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.ir.ssa import FLOAT_BITS

EXPONENTIALS = "logaddexp"
"""How such a sum's scan combines. On a processor it keeps more than its value (`cpu/running.h`)."""
HEADERS: Mapping[str, str] = {"cpu": "cpu/running.h", "cuda": "cuda/common/running.cuh"}
NEEDED_BY: Mapping[str, frozenset[str]] = {
    "cpu": frozenset([EXPONENTIALS, FLOAT_BITS]),
    "cuda": frozenset([FLOAT_BITS]),
}
"""Loop operations, and ways to combine, that take a target's header."""
