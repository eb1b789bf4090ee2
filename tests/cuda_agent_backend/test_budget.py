"""How a graph's budget is spent, and what regions promise."""

from __future__ import annotations

import pytest
import torch
from test_partition import HEADS, graph_of, head_scores, on_cuda

from cuda_agent_backend.partition.estimate import room, saving
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.search.budget import (
    JUDGEMENT_S,
    LEAST_TASK_S,
    MANY_OPERATORS,
    WHOLE_EPISODE_S,
    acceptance_reserve,
    order_by_promise,
    share,
    share_of_deadline,
)


@pytest.mark.parametrize(
    ("budget_s", "kept"), [(120.0, 36.0), (60.0, 20.0), (30.0, 15.0), (2.0, 1.0)]
)
def test_a_part_of_every_budget_is_kept_for_the_whole_graph(budget_s: float, kept: float) -> None:
    assert acceptance_reserve(budget_s) == pytest.approx(kept)


def test_the_time_goes_where_most_may_be_saved() -> None:
    assert share(60.0, [30.0, 20.0, 10.0]) == pytest.approx(30.0)
    assert share(60.0, [0.0, 0.0, 0.0]) == pytest.approx(20.0)
    assert order_by_promise(["a", "b", "c", "d"], {"b": 1.0, "c": 5.0}) == ["c", "b", "a", "d"]


def test_what_takes_a_baseline_long_to_compile_goes_last() -> None:
    promises = {"a": 1.0, "b": 9.0, "c": 5.0, "d": 8.0}
    counts = {"a": MANY_OPERATORS, "b": MANY_OPERATORS + 1, "c": 3, "d": 500}
    assert order_by_promise(["a", "b", "c", "d"], promises, counts) == ["c", "a", "b", "d"]


def test_many_tasks_do_not_starve_each_other() -> None:
    """Each gets enough to time something, as long as there is enough for one."""
    left, begun = 50.0, 0
    promises = [1.0] * 24
    while promises and (seconds := share(left, promises, first=not begun)) is not None:
        assert seconds >= LEAST_TASK_S
        left, promises, begun = left - seconds, promises[1:], begun + 1
    assert begun == 3  # 20, 20 and 10 seconds
    assert share(50.0, [1.0] * 24) == WHOLE_EPISODE_S


def test_the_first_task_is_begun_however_small_the_budget() -> None:
    assert share(1.0, [1.0, 1.0], first=True) == 1.0
    assert share(-1.0, [1.0], first=True) == 0.0
    assert share(1.0, [1.0, 1.0]) is None


def savings(function: object, *inputs: torch.Tensor) -> list[float]:
    return [saving(region) for region in partition(graph_of(function, *inputs))]


def test_a_region_that_moves_too_much_promises_more_than_one_that_does_not() -> None:
    x = torch.randn(256, 256)
    (pointwise,) = savings(lambda x: (x * 2).tanh(), x)
    (softmax,) = savings(lambda x: torch.softmax(x, -1), x)
    (larger,) = savings(lambda x: torch.softmax(x, -1), torch.randn(512, 256))
    assert 0 < pointwise < softmax < larger


def test_a_matrix_product_promises_by_its_work() -> None:
    x = torch.randn(256, 256)
    narrow = savings(lambda a, b: (a @ b).relu(), x, torch.randn(256, 256))
    deep = savings(lambda a, b: (a @ b).relu(), torch.randn(256, 4096), torch.randn(4096, 256))
    assert max(deep) > max(narrow) > 0


def test_copies_that_a_product_reads_through_are_room() -> None:
    (found,) = on_cuda(head_scores, HEADS, HEADS)
    copies = sum(4 * node.meta["val"].numel() for node in found.inputs)
    assert room(found) == pytest.approx(1 + 2 * copies / found.moved)


def test_what_operators_with_several_results_promise_is_known() -> None:
    x = torch.randn(4, 4, 64, 64)
    assert min(savings(lambda x: torch.nn.functional.layer_norm(x, (64,)).relu(), x)) > 0
    assert min(savings(lambda x: torch.cat([y.exp() for y in x.split(32, -1)], -1), x)) > 0
    attention = savings(torch.nn.functional.scaled_dot_product_attention, x, x, x)
    assert min(attention) > 0


def test_every_region_of_the_models_promises_something() -> None:
    """Of those that are offered, and without a fault for the rest."""
    from cuda_agent_backend.options import parse
    from cuda_agent_backend.settings import Settings
    from cuda_agent_backend.tools.capture import capture
    from examples.models import MODELS

    wishes = parse(Settings.from_environment({}), None, {"cuda_agent.search": "cached"})
    for name in ("bert_layer", "mamba_block", "groupnorm_resnet_stage"):
        model, inputs = MODELS[name]()
        for graph in capture(model, inputs, wishes):
            for region in partition(graph.module.graph):
                assert (saving(region) > 0) == (region.reason is None and region.moved > 0)


def test_episodes_with_one_deadline_leave_time_to_judge_what_each_has() -> None:
    assert share_of_deadline(100.0, 1) == 100.0
    assert share_of_deadline(100.0, 6) == 100.0 - 5 * JUDGEMENT_S
    assert share_of_deadline(20.0, 16) == 10.0
    assert share_of_deadline(LEAST_TASK_S - 1, 4) is None
    assert share_of_deadline(LEAST_TASK_S - 1, 4, first=True) == LEAST_TASK_S - 1
