"""Graphs that draw random numbers: all that compute one draw the same, so that its results can be compared."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import splice_kit as kit
import torch
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.acceptance.rng_replay import random_subgraph
from cuda_agent_backend.acceptance.rule import MEDIAN
from cuda_agent_backend.acceptance.trial import Trial
from cuda_agent_backend.acceptance.whole_graph import graph_task
from cuda_agent_backend.tools.capture import capture
from sandbox.graph.build import build_graph
from sandbox.task.task import Task
from sandbox.timing.device_lock import DeviceLock

KEPT = 0.75


def attending(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    weights = F.dropout(torch.softmax(x, -1), 1 - KEPT)
    return weights, (F.dropout(weights @ w, 0.5) + torch.randn_like(x)).cumsum(-1), x.argmax(-1)


def task_of(function: object, folder: Path) -> Task:
    inputs = torch.randn(64, 96), torch.randn(96, 96)
    (found,) = capture(function, inputs, kit.options_in(folder))
    task = graph_task(found.module.graph)
    assert isinstance(task, Task)
    return task


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(task_of(attending, tmp_path), {}, 3, DeviceLock(None))


def test_eager_the_oracle_and_inductor_draw_the_same_numbers(trial: Trial) -> None:
    (ground,) = trial.grounds
    for eager, oracle, own in zip(ground.eager, ground.oracle, ground.reference, strict=True):
        torch.testing.assert_close(eager, oracle.to(eager.dtype), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(own, oracle.to(own.dtype), atol=1e-5, rtol=1e-4)
    assert 0.1 < (ground.eager[0] == 0).float().mean() < 0.4


def test_a_graph_without_its_mask_is_less_accurate(trial: Trial) -> None:
    assert trial._compare(trial.plain, 0, MEDIAN).accurate

    def without_mask(inputs: Sequence[Tensor]) -> list[Tensor]:
        weights, *others = trial.plain(inputs)
        return [torch.where(weights == 0, weights.max(), weights), *others]

    found = trial._compare(without_mask, 0, MEDIAN)
    assert not found.accurate and "output 0" in found.reason


def test_a_graph_that_draws_nothing(tmp_path: Path) -> None:
    assert random_subgraph(build_graph(task_of(lambda x, w: (x @ w).exp(), tmp_path))) is None
