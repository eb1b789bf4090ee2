"""Torch's global flags that decide what eager computes and how fast: read here, carried to the workers, set there.

Results and baselines are those of the user's flags: a TF32 kernel is right exactly where the user chose TF32, and where
cuDNN measures its algorithms (`torch.backends.cudnn.benchmark`), a kernel has to beat the one it chose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
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

_PLACES = {
    "fp16_reduced_precision_reduction": "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "bf16_reduced_precision_reduction": "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "fp16_accumulation": "cuda.matmul.allow_fp16_accumulation",
    "cudnn_enabled": "cudnn.enabled",
    "cudnn_benchmark": "cudnn.benchmark",
    "cudnn_deterministic": "cudnn.deterministic",
}
"""Below `torch.backends`; flags with points in their names are there under these."""
_SWITCHES = {
    "fp16_bf16_reduction_math_sdp": (
        "fp16_bf16_reduction_math_sdp_allowed", "allow_fp16_bf16_reduction_math_sdp",
    ),
    "flash_sdp": ("flash_sdp_enabled", "enable_flash_sdp"),
    "mem_efficient_sdp": ("mem_efficient_sdp_enabled", "enable_mem_efficient_sdp"),
    "math_sdp": ("math_sdp_enabled", "enable_math_sdp"),
    "cudnn_sdp": ("cudnn_sdp_enabled", "enable_cudnn_sdp"),
}  # fmt: skip
"""Of `torch.backends.cuda`: what tells a flag, and what sets it."""


def current() -> dict[str, Any]:
    """The flags of this process."""
    import torch

    return {
        **_float32(),
        **{name: _read(name) for name in (*_PLACES, *DEFAULTS) if name not in _SWITCHES},
        **{name: getattr(torch.backends.cuda, told)() for name, (told, _) in _SWITCHES.items()},
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
    }


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Give torch so many threads for a block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def apply(flags: Flags) -> None:
    """Set the flags given and leave the others. Raises KeyError on an unknown name.

    Also where torch's flags were frozen, as `torch.testing` does for all of a process that imports its utilities.
    """
    import torch

    now = current()
    wanted = {**now, **flags}
    with getattr(torch.backends, "__allow_nonbracketed_mutation", nullcontext)():
        for name, value in flags.items():
            if now.get(name) != value:
                _set(name, value, wanted)


def tf32_operators() -> tuple[str, ...]:
    """Which of "matmul", "conv" and "rnn" may run in TF32 on a GPU where they are given float32."""
    return tuple(name.split(".")[1] for name in FLOAT32[:3] if _read(name) == "tf32")


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

    return attrgetter(_PLACES.get(name, name))(torch.backends)


def _set(name: str, value: Any, wanted: Flags) -> None:
    """wanted: the flags as they are to be, for what sets two at once."""
    import torch

    if name == "float32_matmul_precision":
        torch.set_float32_matmul_precision(value)
    elif name == "cudnn_allow_tf32":
        torch.backends.cudnn.allow_tf32 = value
    elif name in ("deterministic", "deterministic_warn_only"):
        warn_only = bool(wanted["deterministic_warn_only"])
        torch.use_deterministic_algorithms(wanted["deterministic"], warn_only=warn_only)
    elif name in _SWITCHES:
        getattr(torch.backends.cuda, _SWITCHES[name][1])(value)
    elif name in (*_PLACES, *FLOAT32, *DEFAULTS):
        owner, _, attribute = _PLACES.get(name, name).rpartition(".")
        setattr(attrgetter(owner)(torch.backends), attribute, value)
    else:
        raise KeyError(name)
