"""What Inductor times while it compiles takes turns on the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch._inductor.runtime.benchmarking import benchmarker

from cuda_agent_backend.inductor_timing import compiling, in_turns
from sandbox.devicelock import DeviceLock


class Counted(DeviceLock):
    """How often a turn was taken, and whether one is now."""

    def __init__(self) -> None:
        super().__init__(None)
        self.taken = 0
        self.now = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.taken, self.now = self.taken + 1, True
        yield
        self.now = False


def test_every_timing_takes_a_turn_until_the_end() -> None:
    lock, seen = Counted(), list[bool]()
    own = benchmarker.benchmark
    with in_turns(lock):
        benchmarker.benchmark(lambda: seen.append(lock.now), (), {}, device="cpu", rep=1, warmup=1)
    assert lock.taken and seen and all(seen)
    assert benchmarker.benchmark == own
    taken = lock.taken
    benchmarker.benchmark(lambda: None, (), {}, device="cpu", rep=1, warmup=1)
    assert lock.taken == taken


def test_the_methods_come_back_after_an_error() -> None:
    own = benchmarker.benchmark
    with pytest.raises(ZeroDivisionError), in_turns(Counted()):
        raise ZeroDivisionError
    assert benchmarker.benchmark == own


@pytest.mark.parametrize(("target", "turns"), [("cpu", 1), ("cuda", 0)])
def test_a_compilation_is_a_turn_where_it_disturbs_others(target: str, turns: int) -> None:
    lock = Counted()
    with compiling(lock, target):
        torch.compile(torch.exp)(torch.ones(3))
    assert lock.taken == turns
