"""Input sets of a device, which the judge draws and changes when it looks at them. Here the device is the processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from judge_kit import spec

from sandbox.accuracy.inputs import make_inputs
from sandbox.accuracy.perturb_inputs import perturb
from sandbox.judge import input_sets
from sandbox.judge.input_sets import InputSet, Source

SPECS = (spec(64, 3), spec(40))
NORMAL, UNIFORM = Source("normal", 1), Source("uniform", 2)


class Counted:
    """Counts draws and changes, and lets a change fail halfway."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.draws = self.perturbations = 0
        self.fails = False
        monkeypatch.setattr(InputSet, "_device", lambda inputs: "cpu")
        monkeypatch.setattr(input_sets, "make_inputs", self.make_inputs)
        monkeypatch.setattr(input_sets, "perturb", self.perturb)

    def make_inputs(self, *args: Any) -> list[torch.Tensor]:
        self.draws += 1
        return make_inputs(*args)

    def perturb(self, tensors: Sequence[torch.Tensor], seed: int) -> None:
        self.perturbations += 1
        if self.fails:
            perturb(tensors[:1], seed)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        perturb(tensors, seed)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def filled(source: Source = NORMAL) -> InputSet:
    inputs = InputSet(3, SPECS, "cuda")
    inputs.fill(source, [None, None])
    return inputs


def wanted(source: Source, *seeds: int) -> list[torch.Tensor]:
    """What a worker has that draws and changes at once."""
    values = make_inputs(SPECS, source.seed, source.distribution, [None, None], "cpu")
    for seed in seeds:
        perturb(values, seed)
    return values


def same(found: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return all(map(torch.equal, found, others))


def test_what_nobody_looks_at_is_neither_drawn_nor_changed(counted: Counted) -> None:
    inputs = filled()
    for seed in range(20):
        inputs.perturb(seed)
    inputs.moment()
    assert (counted.draws, counted.perturbations) == (0, 0)
    assert inputs.version == 21 and inputs.perturbations == tuple(range(20))


def test_the_values_are_those_that_a_worker_has(counted: Counted) -> None:
    inputs = filled()
    inputs.perturb(5)
    assert same(inputs.tensors, wanted(NORMAL, 5))
    inputs.perturb(6)
    inputs.perturb(7)
    assert same(inputs.tensors, wanted(NORMAL, 5, 6, 7))
    assert (counted.draws, counted.perturbations) == (1, 3)


def test_moments_are_had_again_in_any_order(counted: Counted) -> None:
    inputs = filled()
    moments = [inputs.moment()]
    for seed in (5, 6, 7):
        inputs.perturb(seed)
        moments.append(inputs.moment())
    for count, moment in enumerate(moments):
        assert same(moment.tensors(), wanted(NORMAL, *(5, 6, 7)[:count]))
    assert (counted.draws, counted.perturbations) == (1, 3)
    assert same(moments[1].tensors(), wanted(NORMAL, 5))
    assert same(inputs.tensors, wanted(NORMAL, 5, 6, 7))
    assert all(moment.held_bytes == 0 for moment in moments)


def test_a_moment_outlives_the_values_that_replace_it(counted: Counted) -> None:
    inputs = filled()
    inputs.perturb(5)
    moment = inputs.moment()
    inputs.fill(UNIFORM, [None, None])
    inputs.perturb(5)
    assert same(moment.tensors(), wanted(NORMAL, 5))
    assert same(inputs.tensors, wanted(UNIFORM, 5))


def test_a_change_that_fails_halfway_leaves_nothing_behind(counted: Counted) -> None:
    inputs = filled()
    assert same(inputs.tensors, wanted(NORMAL))
    inputs.perturb(5)
    counted.fails = True
    with pytest.raises(torch.OutOfMemoryError):
        inputs.tensors  # noqa: B018
    counted.fails = False
    assert same(inputs.tensors, wanted(NORMAL, 5))


def test_on_cpu_values_change_at_once_and_a_moment_is_a_copy() -> None:
    inputs = InputSet(3, SPECS, "cpu")
    inputs.fill(NORMAL, [None, None])
    address, before = inputs.tensors[0].data_ptr(), inputs.moment()
    inputs.perturb(5)
    assert inputs.tensors[0].data_ptr() == address
    assert same(inputs.tensors, wanted(NORMAL, 5))
    assert same(before.tensors(), wanted(NORMAL))
    assert before.held_bytes == 4 * (64 * 3 + 40)


def test_recorded_inputs_are_no_draw(counted: Counted) -> None:
    real = wanted(UNIFORM)
    inputs = filled(Source("recorded 0", 0, real))
    assert same(inputs.tensors, real)
    assert same(inputs.moment().tensors(), real)
    inputs.fill(NORMAL, [None, None])
    assert same(inputs.tensors, wanted(NORMAL))
    assert counted.draws == 1
