"""Torch's global numerical flags: read here, carried to the workers, set there.

Results and baselines are those of the user's flags, so a TF32 kernel is right exactly where the
user chose TF32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Flags = Mapping[str, Any]
"""JSON-able: names below to values."""


def current() -> dict[str, Any]:
    """The flags of this process."""
    import torch

    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "fp16_reduced_precision_reduction": (
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
        ),
        "bf16_reduced_precision_reduction": (
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        ),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
    }


def apply(flags: Flags) -> None:
    """Set the flags given and leave the others. Raises KeyError on an unknown name."""
    import torch

    matmul = torch.backends.cuda.matmul
    setters: dict[str, Callable[[Any], Any]] = {
        "float32_matmul_precision": torch.set_float32_matmul_precision,
        "cudnn_allow_tf32": lambda v: setattr(torch.backends.cudnn, "allow_tf32", v),
        "fp16_reduced_precision_reduction": lambda v: setattr(
            matmul, "allow_fp16_reduced_precision_reduction", v
        ),
        "bf16_reduced_precision_reduction": lambda v: setattr(
            matmul, "allow_bf16_reduced_precision_reduction", v
        ),
        "deterministic": lambda v: torch.use_deterministic_algorithms(
            v, warn_only=bool(flags.get("deterministic_warn_only"))
        ),
        "deterministic_warn_only": lambda v: None,
    }
    now = current()
    for name, value in flags.items():
        if now[name] != value:
            setters[name](value)


@contextmanager
def applied(flags: Flags) -> Iterator[None]:
    """The flags within the block, the former ones afterwards."""
    before = current()
    apply(flags)
    try:
        yield
    finally:
        apply(before)
