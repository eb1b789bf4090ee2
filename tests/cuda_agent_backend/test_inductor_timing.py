"""What Inductor times while it compiles takes turns on the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._inductor import config
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.select_algorithm import AlgorithmSelectorCache, AutotuneArgs

from cuda_agent_backend.runtime.inductor_timing import compiling, in_turns
from sandbox.timing.device_lock import DeviceLock


class Counted(DeviceLock):
    """How often a turn was taken that was not within another, and whether one is now."""

    def __init__(self) -> None:
        super().__init__(None)
        self.taken = 0
        self.now = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        if self.now:
            yield
            return
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


def test_all_choices_are_timed_in_one_turn() -> None:
    lock, seen = Counted(), list[bool]()
    choices: list[Any] = [Choice(lock, seen), Choice(lock, seen)]
    one = torch.zeros(1)
    tensors = AutotuneArgs.from_choice_args([], [], one, one)
    with in_turns(lock):
        found = AlgorithmSelectorCache.benchmark_choices(choices, tensors)
    assert found == dict.fromkeys(choices, 1.0)
    assert lock.taken == 1 and seen == [True, True]
    AlgorithmSelectorCache.benchmark_choices(choices, tensors)
    assert lock.taken == 1


def test_choices_are_compiled_before_their_turn() -> None:
    lock, seen = Counted(), list[bool]()
    choices: list[Any] = [Template(lock, seen), Choice(lock, seen), Template(lock, seen, bad=True)]
    one = torch.zeros(1)
    tensors = AutotuneArgs.from_choice_args([], [], one, one)
    with in_turns(lock):
        found = AlgorithmSelectorCache.benchmark_choices(choices, tensors)
    assert seen == [True] * 3 and set(found) == set(choices)
    assert [choice.compiled for choice in (choices[0], choices[2])] == [[False], [False]]


class Choice:
    """A way to compute something, as Inductor asks for its time."""

    def __init__(self, lock: Counted, seen: list[bool]) -> None:
        self._lock, self._seen = lock, seen

    def benchmark(self, *inputs: torch.Tensor, out: torch.Tensor) -> float:
        self._seen.append(self._lock.now)
        benchmarker.benchmark(lambda: None, (), {}, device="cpu", rep=1, warmup=1)
        return 1.0


class Template(Choice):
    """One that is compiled. compiled: for each time, whether that was within a turn."""

    def __init__(self, lock: Counted, seen: list[bool], bad: bool = False) -> None:
        super().__init__(lock, seen)
        self.compiled, self._bad = list[bool](), bad

    def precompile(self) -> None:
        self.compiled.append(self._lock.now)
        if self._bad:
            raise RuntimeError("No valid triton configs")


def test_the_methods_come_back_after_an_error() -> None:
    methods = vars(CachingAutotuner)["benchmark_all_configs"], benchmarker.benchmark
    with pytest.raises(ZeroDivisionError), in_turns(Counted()):
        assert vars(CachingAutotuner)["benchmark_all_configs"] != methods[0]
        raise ZeroDivisionError
    assert (vars(CachingAutotuner)["benchmark_all_configs"], benchmarker.benchmark) == methods


@pytest.mark.parametrize("elsewhere", ["autotune_in_subproc", "pipeline_max_autotune_gemm"])
def test_a_compilation_is_a_turn_where_other_processes_time(elsewhere: str) -> None:
    lock = Counted()
    with config.patch(elsewhere, True), compiling(lock, "cuda"):
        assert lock.now


@pytest.mark.parametrize(("target", "turns"), [("cpu", 1), ("cuda", 0)])
def test_a_compilation_is_a_turn_where_it_disturbs_others(target: str, turns: int) -> None:
    lock = Counted()
    with compiling(lock, target):
        torch.compile(torch.exp)(torch.ones(3))
    assert lock.taken == turns
