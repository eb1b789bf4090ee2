"""Lowering and grouping: what is fused over common rows, what stays local, and what is refused with its reason."""

from __future__ import annotations

import pytest
import torch
from sketch_kit import sample
from torch._inductor.lowering import lowerings

from cuda_agent_backend.codegen.analysis.passes import expand_welford, passes
from cuda_agent_backend.codegen.analysis.rows import refine
from cuda_agent_backend.codegen.api import analyse
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Schedule


def test_softmax_is_one_kernel_whose_intermediates_stay_in_the_row() -> None:
    (kernel,) = sample(lambda x: torch.softmax(x, -1), torch.randn(12, 40)).analysis.kernels
    assert kernel.rows == 12
    assert sorted(v.size for v in kernel.locals.values()) == [1, 1, 40]
    written = [s.buffer for stage in kernel.stages for s in stage.stores]
    assert len(written) == 1


def test_what_needs_more_buffers_than_a_plan_has_is_refused_before_schedules_are_written() -> None:
    def sums(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(value.sum(-1) for value in values)

    covered, found = (
        analyse(sample(sums, *torch.randn(count, 4, 8).unbind()).task) for count in (32, 33)
    )
    assert not isinstance(covered, NotCovered)
    assert isinstance(found, NotCovered) and found.reason == "more than 64 buffers"


def test_the_sum_of_a_softmax_shares_the_loop_of_its_exp() -> None:
    (kernel,) = sample(lambda x: torch.softmax(x, -1), torch.randn(12, 40)).analysis.kernels
    assert [len(p.stages) for p in passes(kernel)] == [1, 2, 1]


def test_reductions_over_different_rows_become_two_kernels() -> None:
    kernels = sample(
        lambda x: (torch.softmax(x, -1), torch.softmax(x, -1).sum(0)), torch.randn(12, 40)
    ).analysis.kernels
    assert [k.rows for k in kernels] == [12, 40]


def test_group_norm_splits_channels_into_groups_and_merges_the_rest() -> None:
    x, w = torch.randn(2, 6, 8, 15), torch.randn(6)
    (kernel,) = sample(
        lambda x, w, b: torch.nn.functional.group_norm(x, 3, w, b), x, w, w.clone()
    ).analysis.kernels
    assert kernel.rows == 6
    assert [n for _, n in kernel.stages[0].inner] == [240]


def test_reductions_over_the_same_rows_share_a_kernel_whatever_lies_between() -> None:
    def between(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        high = x.amax(1)
        total = high.sum()
        return high, total, (x - high[:, None]).sum(1)

    kernels = sample(between, torch.randn(40, 300)).analysis.kernels
    assert [k.rows for k in kernels] == [40, 1]
    assert [s.combine for s in kernels[0].stages] == ["max", "sum"]


def test_welford_becomes_a_mean_and_a_sum_of_squares() -> None:
    x, w = torch.randn(2, 6, 32, 33), torch.randn(6)
    (kernel,) = sample(
        lambda x, w, b: torch.nn.functional.group_norm(x, 3, w, b), x, w, w.clone()
    ).analysis.kernels
    assert "welford" in {s.combine for s in kernel.stages}
    assert "welford" not in {s.combine for s in expand_welford(kernel).stages}


@pytest.mark.parametrize(
    ("chains", "sizes"),
    [
        ([[64], [8, 8]], (8, 8)),
        ([[6, 4], [3, 8]], (3, 2, 4)),
        ([[6, 4], [4, 6]], None),
        ([[2, 3, 4], [6, 4]], (2, 3, 4)),
        ([[7]], (7,)),
        ([[]], ()),
    ],
)
def test_row_dimensions_are_refined_only_where_they_divide(
    chains: list[list[int]], sizes: tuple[int, ...] | None
) -> None:
    assert refine(chains) == sizes


def test_data_dependent_indexing_is_refused_with_its_reason() -> None:
    task = sample(
        lambda t, i: torch.nn.functional.embedding(i, t) * 2,
        torch.randn(9, 4),
        torch.zeros(3, dtype=torch.int64),
    ).task
    found = analyse(task)
    assert isinstance(found, NotCovered) and "bounds checks" in found.reason


def test_a_matrix_product_in_double_precision_is_refused_with_its_reason() -> None:
    a, b = torch.randn(3, 4).double(), torch.randn(4, 5).double()
    task = sample(lambda a, b: a @ b, a, b, target="cuda").task
    found = analyse(task)
    assert isinstance(found, NotCovered) and "external kernel" in found.reason


@pytest.mark.parametrize("ci", ["", "1"])
def test_an_operator_without_a_lowering_is_refused_by_name_wherever_this_runs(
    ci: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    larger = torch.ops.aten.upsample_bilinear2d.default
    task = sample(lambda x: larger(x, [6 + len(ci), 8], False), torch.randn(1, 2, 3, 4)).task
    known = set(lowerings)
    found = analyse(task)
    assert isinstance(found, NotCovered) and "upsample_bilinear2d" in found.reason
    assert set(lowerings) == known


def test_a_schedule_survives_json_and_bad_ones_say_why() -> None:
    schedule = Schedule.of({"unroll": 4, "lanes": "inner"})
    assert Schedule.from_json(schedule.to_json()) == schedule
    for text in ("{}", "[1]", '[{"unroll": 1.5}]', '[{"unroll": true}]'):
        with pytest.raises(ValueError, match="schedule"):
            Schedule.from_json(text)
