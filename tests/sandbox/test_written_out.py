"""A mean that is infinite is right where eager's `var_mean` makes a NaN of it; nothing else is excused by that."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sandbox.accuracy.oracle import run_written_out
from sandbox.accuracy.rule import Draw, compare_draws
from sandbox.accuracy.written_out import written_out


def both(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, 0)


def module_of(x: Tensor) -> torch.fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(both, tracing_mode="fake")(x)


def infinite(*at: tuple[int, int], value: float = -torch.inf) -> Tensor:
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
    for place in at:
        x[place] = value
    return x


def draw_of(x: Tensor, variance: Tensor, mean: Tensor) -> Draw:
    oracle = list(both(x.double()))
    other = run_written_out(module_of(x), [x])
    return Draw([variance, mean], list(both(x)), oracle, None, True, other)


def as_inductor(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.var(0), x.mean(0)


def test_a_kernel_may_say_that_a_mean_is_infinite() -> None:
    x = infinite((3, 0), (5, 7))
    assert both(x)[1][0].isnan()
    assert compare_draws([draw_of(x, *as_inductor(x))]).passes
    assert compare_draws([draw_of(x, *both(x))]).passes


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda m: m.where(~m.isinf(), torch.inf), id="the other infinity"),
        pytest.param(lambda m: m.nan_to_num(0.0, neginf=0.0), id="a number"),
        pytest.param(
            lambda m: m.clone().index_fill_(0, torch.tensor([9]), -torch.inf), id="elsewhere"
        ),
    ],
)
def test_another_answer_is_still_refused(wrong: object) -> None:
    x = infinite((3, 0))
    variance, mean = as_inductor(x)
    assert not compare_draws([draw_of(x, variance, wrong(mean))]).passes  # type: ignore[operator]


def test_an_infinite_variance_is_not_excused() -> None:
    x = infinite((3, 0))
    variance, mean = as_inductor(x)
    assert not compare_draws([draw_of(x, variance.nan_to_num(torch.inf), mean)]).passes


def test_infinities_of_both_signs_make_a_nan_of_the_mean_too() -> None:
    x = infinite((3, 0))
    x[4, 0] = torch.inf
    variance, mean = as_inductor(x)
    assert mean[0].isnan()
    assert compare_draws([draw_of(x, variance, mean)]).passes
    assert not compare_draws([draw_of(x, variance, mean.nan_to_num(-torch.inf))]).passes


def test_a_graph_without_such_an_operator_is_not_run_twice() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    module = make_fx(lambda x: x.mean(0), tracing_mode="fake")(torch.randn(4, 4))
    assert written_out(module) is None
    assert run_written_out(module, [torch.randn(4, 4)]) == []
