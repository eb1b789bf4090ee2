"""Torch's global flags that decide what eager computes and how fast: read here, carried to the workers, set there.

Results and baselines are those of the user's flags: a TF32 kernel is right exactly where the user chose TF32, and where
cuDNN measures its algorithms (`torch.backends.cudnn.benchmark`), a kernel has to beat the one it chose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

Flags = Mapping[str, Any]
"""JSON-able: names below to values."""

FLOAT32 = (
    "cuda.matmul.fp32_precision",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
    "mkldnn.matmul.fp32_precision",
)
"""Below `torch.backends`: how float32 is multiplied. They stand in for two older flags where torch does not let those
be read, as newer ones were set that they cannot tell."""

DEFAULTS: Flags = {
    "mkldnn.conv.fp32_precision": "none",
    "mkldnn.rnn.fp32_precision": "none",
    "fp16_accumulation": False,
    "fp16_bf16_reduction_math_sdp": False,
    "cudnn_enabled": True,
    "cudnn_benchmark": False,
    "cudnn_deterministic": False,
    "flash_sdp": True,
    "mem_efficient_sdp": True,
    "math_sdp": True,
    "cudnn_sdp": True,
}
"""Flags that few people touch, as torch starts with them."""


def current() -> dict[str, Any]:
    """The flags of this process."""
    import torch

    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return {
        **_float32(),
        **{name: _read(name) for name in DEFAULTS if "." in name},
        "fp16_reduced_precision_reduction": cuda.matmul.allow_fp16_reduced_precision_reduction,
        "bf16_reduced_precision_reduction": cuda.matmul.allow_bf16_reduced_precision_reduction,
        "fp16_accumulation": cuda.matmul.allow_fp16_accumulation,
        "fp16_bf16_reduction_math_sdp": cuda.fp16_bf16_reduction_math_sdp_allowed(),
        "cudnn_enabled": cudnn.enabled,
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_deterministic": cudnn.deterministic,
        "flash_sdp": cuda.flash_sdp_enabled(),
        "mem_efficient_sdp": cuda.mem_efficient_sdp_enabled(),
        "math_sdp": cuda.math_sdp_enabled(),
        "cudnn_sdp": cuda.cudnn_sdp_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
    }


def apply(flags: Flags) -> None:
    """Set the flags given and leave the others. Raises KeyError on an unknown name."""
    import torch

    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    setters: dict[str, Callable[[Any], Any]] = {
        "float32_matmul_precision": torch.set_float32_matmul_precision,
        "cudnn_allow_tf32": _setter(cudnn, "allow_tf32"),
        "fp16_reduced_precision_reduction": _setter(
            cuda.matmul, "allow_fp16_reduced_precision_reduction"
        ),
        "bf16_reduced_precision_reduction": _setter(
            cuda.matmul, "allow_bf16_reduced_precision_reduction"
        ),
        "fp16_accumulation": _setter(cuda.matmul, "allow_fp16_accumulation"),
        "fp16_bf16_reduction_math_sdp": cuda.allow_fp16_bf16_reduction_math_sdp,
        "cudnn_enabled": _setter(cudnn, "enabled"),
        "cudnn_benchmark": _setter(cudnn, "benchmark"),
        "cudnn_deterministic": _setter(cudnn, "deterministic"),
        "flash_sdp": cuda.enable_flash_sdp,
        "mem_efficient_sdp": cuda.enable_mem_efficient_sdp,
        "math_sdp": cuda.enable_math_sdp,
        "cudnn_sdp": cuda.enable_cudnn_sdp,
        **{name: _setter(*_place(name)) for name in (*FLOAT32, *DEFAULTS) if "." in name},
        "deterministic": lambda v: torch.use_deterministic_algorithms(
            v, warn_only=bool(wanted["deterministic_warn_only"])
        ),
        "deterministic_warn_only": lambda v: torch.use_deterministic_algorithms(
            wanted["deterministic"], warn_only=v
        ),
    }
    now = current()
    wanted = {**now, **flags}
    for name, value in flags.items():
        if now.get(name) != value:
            setters[name](value)


def allows_tf32() -> bool:
    """Whether any operator on float32 may run in TF32 on a GPU."""
    return any(_read(name) == "tf32" for name in FLOAT32[:3])


def without_defaults(flags: Flags) -> dict[str, Any]:
    """The flags but for those of `DEFAULTS` that are as torch starts with them."""
    return {k: v for k, v in flags.items() if k not in DEFAULTS or v != DEFAULTS[k]}


@contextmanager
def applied(flags: Flags) -> Iterator[None]:
    """The flags within the block, the former ones afterwards."""
    before = current()
    try:
        apply(flags)
        yield
    finally:
        apply(before)


def _float32() -> dict[str, Any]:
    """How float32 is multiplied: by the two older flags if torch lets them be read, else by `FLOAT32`."""
    import torch

    try:
        return {
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        }
    except RuntimeError:
        return {name: _read(name) for name in FLOAT32}


def _read(name: str) -> Any:
    import torch

    return attrgetter(name)(torch.backends)


def _place(name: str) -> tuple[Any, str]:
    owner, _, attribute = name.rpartition(".")
    return _read(owner), attribute


def _setter(owner: Any, name: str) -> Callable[[Any], None]:
    return lambda value: setattr(owner, name, value)
