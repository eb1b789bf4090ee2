"""Names under which the acceptance table keeps what was decided of a graph."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from cuda_agent_backend.acceptance.rule import RULE
from kernel_cache import KernelKey


def acceptance_digest(digest: str) -> str:
    """The name of a graph in the acceptance table: its digest under this torch, whose Inductor is the rival, and under
    the rule by which it is decided."""
    return hashlib.sha256(f"{digest}:{torch.__version__}:{RULE}".encode()).hexdigest()


def kernel_set_digest(keys: Sequence[KernelKey]) -> str:
    """One name for a set of kernels."""
    return hashlib.sha256("\n".join(sorted(key.digest for key in keys)).encode()).hexdigest()
