"""How long a task takes eagerly and how much memory its probe needs, reckoned without running it: so that its size is
the same on every machine.

Each operator of the forward pass takes as long as the longer of its bytes and its arithmetic, and a launch at least.
Operators are found by a run on torch's meta device, which holds no numbers. The rates are ours: they are what eager's
kernels reach on an H100 or H200 and on a small server, not what those machines could do, and are to be right within a
factor of three. What is kept is measured; a task that is reckoned wrong by more is dropped.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

BACKWARD = 3.0
"""Forward and backward take so many times the forward pass."""


@dataclass(frozen=True)
class Rates:
    """bytes_s, and operations a second by dtype. call_s: of an operator that does nothing. slow_bytes_s: of operators
    that sort, scan or gather rather than stream."""

    bytes_s: float
    operations_s: dict[str, float]
    call_s: float
    slow_bytes_s: float


RATES = {
    "cuda": Rates(2.6e12, {"float32": 3.0e13, "float16": 3.0e14, "bfloat16": 3.0e14}, 6e-6, 8e11),
    "cpu": Rates(1.3e10, {"float32": 6e10, "float16": 2e10, "bfloat16": 6e10}, 4e-6, 4e9),
}
SLOW = (
    *("sort", "topk", "kthvalue", "median", "cumsum", "cumprod", "cummax", "cummin"),
    *("logcumsumexp", "unfold", "index", "gather", "scatter", "grid_sampler", "cdist", "roll"),
)


HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class Expected:
    """seconds: of one eager run. held: bytes of inputs and weights. live: bytes that operators of the forward pass have
    made and that are there at once, at most. made: all that they make, which a backward pass keeps."""

    seconds: float
    held: int
    live: int
    made: int

    def need(self, dtype: str, training: bool) -> int:
        """Bytes that a probe needs: two sets of inputs, each in float32 as well where they are of half precision,
        results of one to compare with, and gradients."""
        longer = 2 if dtype in HALF else 0
        forward = (2 + longer) * self.held + (1 + longer / 2) * 1.5 * self.live
        backward = 2 * self.held + 2 * self.made
        return int(max(forward, backward) if training else forward)


def expected(code: str, device: str, dtype: str, training: bool) -> Expected | None:
    """What is reckoned of a task; None where it does not run without numbers.

    code: ours, since it is run here.
    """
    names: dict[str, Any] = {"__name__": "task"}
    counted = _Counted(RATES[device], dtype)
    try:
        with torch.device("meta"), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(code, "task.py", "exec"), names)
            model = names["Model"](*names["get_init_inputs"]()).eval()
            inputs = names["get_inputs"]()
            with counted:
                model(*inputs)
    except Exception:  # whatever torch raises, the size is then left as it was drawn
        return None
    return Expected(
        seconds=max(counted.seconds, RATES[device].call_s) * (BACKWARD if training else 1.0),
        held=_bytes(_flat((*inputs, *model.state_dict().values()))),
        live=counted.most,
        made=counted.made,
    )


class _Counted(TorchDispatchMode):
    """Adds the time of each operator up, and follows what they make."""

    def __init__(self, rates: Rates, dtype: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds = 0.0
        self.live = self.most = self.made = 0
        self._rates, self._dtype = rates, dtype

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.seconds += self._seconds(func, args, kwargs or {}, found)
            for tensor in _flat(found):
                self._follow(tensor)
        return found

    def _follow(self, tensor: torch.Tensor) -> None:
        size = _bytes([tensor])
        self.live, self.made = self.live + size, self.made + size
        self.most = max(self.most, self.live)
        weakref.finalize(tensor, self._gone, size)

    def _gone(self, size: int) -> None:
        self.live -= size

    def _seconds(self, func: Any, args: Any, kwargs: dict[str, Any], found: Any) -> float:
        name = str(func).partition(".")[2]
        # Of a table only the rows that are looked up are read: as much as is written.
        tensors = _flat(
            (found, found) if "embedding" in name else (args, (*kwargs.values(),), found)
        )
        moved = _bytes(tensors)
        slow = any(word in name for word in SLOW)
        rate = self._rates.slow_bytes_s if slow else self._rates.bytes_s
        taken = max(self._rates.call_s, moved / rate)
        count = flop_registry.get(func.overloadpacket)
        if count is None:
            return taken
        operations = float(count(*args, **kwargs, out_val=found))
        return max(taken, operations / self._rates.operations_s[self._dtype])


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(x.numel() * x.itemsize for x in tensors)


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in _flat(part)]
    return []
