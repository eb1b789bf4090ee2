"""What a child is asked to do: plain data, ready for JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DTYPES = ("float32", "float16", "bfloat16")
LATER = "-"
"""In place of a request's path: it is told later."""
FLOAT32: dict[str, dict[str, Any]] = {
    "torch": {},
    "ieee": {"float32_matmul_precision": "highest", "cudnn_allow_tf32": False},
    "tf32": {"float32_matmul_precision": "high", "cudnn_allow_tf32": True},
}
"""How float32 is multiplied, as `sandbox.task.flags`. torch: as set by default, with TF32 in convolutions only."""


@dataclass(frozen=True)
class Wishes:
    """What the result of a task depends on, beside the task: another wish makes another result.

    dtype: of floating tensors. float32: how it is multiplied. budget_s: seconds of search per graph. seconds, rounds:
    of timing, whichever ends first. policy: options of `torch.compile` that choose what writes kernels. holds: bytes of
    the device that another process has all the while.
    """

    target: str
    dtype: str = "float32"
    float32: str = "torch"
    budget_s: float = 120.0
    seconds: float = 10.0
    rounds: int = 100
    max_autotune: bool = False
    seed: int = 0
    policy: Mapping[str, Any] = field(default_factory=dict)
    holds: int = 0


@dataclass(frozen=True)
class Request:
    """One child's work. result: the file that it writes; "" where it is only to get ready for others like it. ceilings:
    for measuring (`sandbox.timing.machine.Ceilings`).

    device_lock: a file by which processes take turns; "" for the device's own, which the machine phase tells.
    answer_by: when the child ends by itself with what it knows, by `time.monotonic`, which is one clock for all
    processes; 0 for never.
    """

    file: str
    result: str
    cache_dir: str
    native_dir: str
    device_lock: str
    wishes: Wishes
    ceilings: Mapping[str, Any] | None = None
    answer_by: float = 0.0

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_text(text: str) -> Request:
        """From JSON."""
        value = json.loads(text)
        return Request(**{**value, "wishes": Wishes(**value["wishes"])})

    def options(self, search: str) -> dict[str, Any]:
        """The options that `torch.compile` gets."""
        return {
            "cuda_agent.search": search,
            "cuda_agent.cache_dir": Path(self.cache_dir),
            "cuda_agent.native_dir": Path(self.native_dir),
            "cuda_agent.progress": "off",
            **self.wishes.policy,
        }
