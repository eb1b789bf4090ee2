"""How long a task takes eagerly, reckoned without running it: so that its size is the same on every machine.

Each operator of the forward pass takes as long as the longer of its bytes and its arithmetic, and a launch at least.
Operators are found by a run on torch's meta device, which holds no numbers. The rates are ours: they are what eager's
kernels reach on an H100 and on a small server, not what those machines could do, and are to be right within a factor
of three. What is kept is measured; a task that is reckoned wrong by more is dropped.
"""

from __future__ import annotations

import warnings
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
    "cuda": Rates(2.0e12, {"float32": 3.0e13, "float16": 3.0e14, "bfloat16": 3.0e14}, 6e-6, 8e11),
    "cpu": Rates(1.3e10, {"float32": 6e10, "float16": 2e10, "bfloat16": 6e10}, 4e-6, 4e9),
}
SLOW = (
    *("sort", "topk", "kthvalue", "median", "cumsum", "cumprod", "cummax", "cummin"),
    *("logcumsumexp", "unfold", "index", "gather", "scatter", "grid_sampler", "cdist", "roll"),
)


def expected_s(code: str, device: str, dtype: str, training: bool) -> float | None:
    """Seconds of one eager run; None where the task does not run without numbers.

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
    return max(counted.seconds, RATES[device].call_s) * (BACKWARD if training else 1.0)


class _Counted(TorchDispatchMode):
    """Adds the time of each operator up."""

    def __init__(self, rates: Rates, dtype: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds = 0.0
        self._rates, self._dtype = rates, dtype

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.seconds += self._seconds(func, args, kwargs or {}, found)
        return found

    def _seconds(self, func: Any, args: Any, kwargs: dict[str, Any], found: Any) -> float:
        name = str(func).partition(".")[2]
        # Of a table only the rows that are looked up are read: as much as is written.
        tensors = _flat(
            (found, found) if "embedding" in name else (args, (*kwargs.values(),), found)
        )
        moved = sum(x.numel() * x.itemsize for x in tensors)
        slow = any(word in name for word in SLOW)
        rate = self._rates.slow_bytes_s if slow else self._rates.bytes_s
        taken = max(self._rates.call_s, moved / rate)
        count = flop_registry.get(func.overloadpacket)
        if count is None:
            return taken
        operations = float(count(*args, **kwargs, out_val=found))
        return max(taken, operations / self._rates.operations_s[self._dtype])


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in _flat(part)]
    return []
