"""What Inductor times while it compiles takes turns on the device: variants of its kernels, padded products.

Compiling for a GPU may then go on beside other processes' work. Torch 2.13 has a hook of its own for that
(`torch._inductor.runtime.benchmarking.set_gpu_benchmark_lock_context`), 2.11 has none; both time through one object,
whose methods are wrapped here. What they time one after another, with nothing to compile in between, is one turn.

Templates are compiled before it. Torch has had its workers compile them, but by the ptxas that torch brings, where this
process takes Triton's own (2.11 on CUDA 13): what the workers left in Triton's cache is not found, and a turn of 20
templates for a product in float32 took minutes, in which the device had nothing to do.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

from sandbox.timing.device_lock import DeviceLock

METHODS = ("benchmark", "benchmark_gpu", "benchmark_gpu_with_cuda_graph")
TOGETHER = (
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "benchmark_all_configs"),
    ("torch._inductor.select_algorithm", "AlgorithmSelectorCache", "benchmark_choices"),
)
"""Methods that time many compiled kernels: module, class, name."""
COMPILERS = 4
"""Threads that compile templates: most of it is ptxas, and other processes have theirs."""


def compiling(lock: DeviceLock, target: str) -> AbstractContextManager[None]:
    """A compilation's turns. It is one as a whole where it disturbs what others time: on cpu, whose cores compilers
    take, and where the user has Inductor time in processes of its own."""
    from torch._inductor import config

    elsewhere = config.autotune_in_subproc or config.pipeline_max_autotune_gemm
    return lock.turn() if target == "cpu" or elsewhere else in_turns(lock)


@contextmanager
def in_turns(lock: DeviceLock) -> Iterator[None]:
    """Within it, in this process; one thread at a time. Raises `AttributeError` where torch no longer times so."""
    from torch._inductor.runtime.benchmarking import benchmarker

    names = [*METHODS[:2], *(name for name in METHODS[2:] if hasattr(benchmarker, name))]
    with ExitStack() as stack:
        for name in names:
            timed = _in_a_turn(getattr(benchmarker, name), lock)
            stack.enter_context(_replaced(benchmarker, name, timed))
        for module, owner, name in TOGETHER:
            stack.enter_context(
                _together(getattr(importlib.import_module(module), owner), name, lock)
            )
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of an object or a class; what it inherits comes back at the end."""
    own = {name: vars(owner)[name]} if name in vars(owner) else {}
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)
        for before in own.values():
            setattr(owner, name, before)


def _together(owner: type, name: str, lock: DeviceLock) -> AbstractContextManager[None]:
    """A method of a class as one turn."""
    method = vars(owner)[name]
    if isinstance(method, classmethod):
        timed = _compiled_before(_in_a_turn(method.__func__, lock))
        return _replaced(owner, name, classmethod(timed))
    return _replaced(owner, name, _in_a_turn(method, lock))


def _compiled_before(method: Callable[..., Any]) -> Callable[..., Any]:
    """`AlgorithmSelectorCache.benchmark_choices`, with what it times compiled in this process."""

    @functools.wraps(method)
    def call(cls: type, choices: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        templates = [choice.precompile for choice in choices if hasattr(choice, "precompile")]
        with ThreadPoolExecutor(min(COMPILERS, os.cpu_count() or 1)) as threads:
            for compiled in [threads.submit(template) for template in templates]:
                with suppress(Exception):  # it comes up again where the choice is timed
                    compiled.result()
        return method(cls, choices, *args, **kwargs)

    return call


def _in_a_turn(method: Callable[..., Any], lock: DeviceLock) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with lock.turn():
            return method(*args, **kwargs)

    return call
