"""What Inductor times while it compiles takes turns on the device: variants of its kernels, padded products.

Compiling for a GPU may then go on beside other processes' work. Torch 2.13 has a hook of its own for that
(`torch._inductor.runtime.benchmarking.set_gpu_benchmark_lock_context`), 2.11 has none; both time through one object,
whose methods are wrapped here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sandbox.devicelock import DeviceLock

METHODS = ("benchmark", "benchmark_gpu", "benchmark_gpu_with_cuda_graph")


def compiling(lock: DeviceLock, target: str) -> AbstractContextManager[None]:
    """A compilation's turns. On cpu it is one as a whole: compilers disturb what others time there."""
    return in_turns(lock) if target == "cuda" else lock.turn()


@contextmanager
def in_turns(lock: DeviceLock) -> Iterator[None]:
    """Within it, in this process. Raises `AttributeError` where torch no longer times through that object."""
    from torch._inductor.runtime.benchmarking import benchmarker

    names = [*METHODS[:2], *(name for name in METHODS[2:] if hasattr(benchmarker, name))]
    before = dict(vars(benchmarker))
    for name in names:
        setattr(benchmarker, name, _in_a_turn(getattr(benchmarker, name), lock))
    try:
        yield
    finally:
        for name in names:
            vars(benchmarker).pop(name, None)  # the class's own comes back
            if name in before:
                setattr(benchmarker, name, before[name])


def _in_a_turn(method: Callable[..., Any], lock: DeviceLock) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with lock.turn():
            return method(*args, **kwargs)

    return call
