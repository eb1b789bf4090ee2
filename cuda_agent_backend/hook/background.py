"""Search mode `background`: run what Inductor made, and take code with kernels once they were found and measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule

from cuda_agent_backend import log
from cuda_agent_backend.acceptance.digests import kernel_set_digest
from cuda_agent_backend.hook.kernel_pass import KernelPass
from cuda_agent_backend.options import Options
from cuda_agent_backend.runtime.kernels import Hit

LOOK_EVERY_S = 1.0

Compile = Callable[[GraphModule, Sequence[Any], Options, KernelPass], Any]


def hot_swap(
    first: Callable[..., Any],
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    hook: KernelPass,
    compile_with: Compile,
) -> Callable[..., Any]:
    """`first`, or a callable that starts as `first` and is compiled anew when its kernels are there.

    compile_with: as in `backend`. gm: an untouched copy of the graph, static sizes only: with symbolic ones the next
    compilation brings the kernels.
    """
    static = all(isinstance(value, torch.Tensor) and _static(value) for value in example_inputs)
    if not static or hook.later is None:
        return first
    return HotSwap(first, gm, options, hook, compile_with)


def _static(value: torch.Tensor) -> bool:
    return all(type(n) is int for n in (*value.shape, *value.stride()))


class HotSwap:
    """Calls the current code. Looks now and then, at little cost, whether the graph was measured with kernels."""

    def __init__(
        self,
        first: Callable[..., Any],
        gm: GraphModule,
        options: Options,
        hook: KernelPass,
        compile_with: Compile,
    ) -> None:
        self.current = first
        self._spare: GraphModule | None = gm
        self._options, self._hook, self._compile_with = options, hook, compile_with
        self._next = time.monotonic() + LOOK_EVERY_S
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        """Run on the arguments of the graph."""
        if self._spare is not None and time.monotonic() > self._next:
            self._look(arguments)
        return self.current(*arguments)

    def _look(self, arguments: Sequence[Any]) -> None:
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._next = time.monotonic() + LOOK_EVERY_S
            if self._spare is not None and self._is_measured():
                gm, self._spare = self._spare, None
                self.current = self._compile(gm, arguments) or self.current
        finally:
            self._lock.release()

    def _is_measured(self) -> bool:
        """Whether there are kernels now; what goes wrong over that is no matter of the user's call."""
        try:
            return self._measured()
        except Exception as error:
            log.once("hook", f"going on without kernels: {type(error).__name__}: {error}")
            return False

    def _measured(self) -> bool:
        later, kernels = self._hook.later, self._hook.kernels
        assert later is not None
        least = self._options.min_speedup
        there = [key for key in later.keys if isinstance(kernels.find(key, least), Hit)]
        decision = kernels.cache.get_acceptance(later.name, kernel_set_digest(there))
        return bool(there) and isinstance(decision, dict)

    def _compile(self, gm: GraphModule, arguments: Sequence[Any]) -> Callable[..., Any] | None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        options = replace(self._options, search="cached")
        hook = KernelPass(options, self._hook.kernels, None, self._hook.before)
        try:
            fake = FakeTensorMode(shape_env=ShapeEnv())
            inputs = [fake.from_tensor(value, static_shapes=True) for value in arguments]
            made: Callable[..., Any] = self._compile_with(gm, inputs, options, hook)
        except Exception as error:
            log.once("hook", f"going on without kernels: {type(error).__name__}: {error}")
            return None
        self._hook.reports += hook.reports
        log.logger("hook").info("a graph now runs with the kernels found in the background")
        return made
