"""Rewrite rules: the same results with less work where they hold, nothing where they do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_kit import sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.rewrite.catalogue import RULES
from cuda_agent_backend.rewrite.forms import Form, forms, rewritten
from cuda_agent_backend.rewrite.linear import matching_dims
from cuda_agent_backend.rewrite.rules.merged_clamps import Bounds
from cuda_agent_backend.rewrite.work import Work, work_of
from sandbox.accuracy.inputs import DISTRIBUTIONS, make_inputs
from sandbox.accuracy.oracle import run_eager, run_oracle
from sandbox.graph.build import build_graph
from sandbox.task.task import Task

INFINITY, NAN = math.inf, math.nan
BY_NAME = {rule.name: rule for rule in RULES}


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def task_of(function: Callable[..., Any], *inputs: Tensor, target: str = "cpu") -> Task:
    return sample(function, *inputs, target=target).task


def only(task: Task, name: str) -> Form | None:
    """The task rewritten by one rule."""
    return rewritten(task, [BY_NAME[name]])


def work(task: Task) -> Work:
    return work_of(build_graph(task).graph)


def wide(task: Task, inputs: Sequence[Tensor]) -> list[Tensor]:
    return run_oracle(task, build_graph(task), inputs).outputs


def assert_same(task: Task, form: Form, inputs: Sequence[Tensor]) -> None:
    """Equal in float64 to rounding, NaN and infinities in the same places."""
    for got, want in zip(wide(form.task, inputs), wide(task, inputs), strict=True):
        scale = float(want[want.isfinite()].abs().max()) if want.isfinite().any() else 1.0
        torch.testing.assert_close(
            got, want, rtol=1e-9, atol=1e-9 * max(scale, 1e-30), equal_nan=True
        )


def identity() -> Tensor:
    """As `torch.diag_embed` masks."""
    place = torch.arange(24)
    return place == place[:, None]


X, W, B, V = randn(24, 40), randn(40, 32), randn(32), randn(24)
IMAGE = randn(2, 6, 8, 12)
WIDE, FILTERS = randn(2, 6, 17, 24), randn(10, 6, 3, 5)


def norm(x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (x - mean) * scale * weight + bias


def channels(x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return norm(x, *(v[:, None, None] for v in (mean, scale, weight, bias)))


Case = tuple[str, Callable[..., Any], tuple[Tensor, ...]]
CASES: dict[str, Case] = {
    "sum of columns": ("sum_of_product", lambda x, w: (x @ w).sum(1), (X, W)),
    "sum of rows": ("sum_of_product", lambda x, w: (x @ w).sum(0), (X, W)),
    "sum of all": ("sum_of_product", lambda x, w: (x @ w).sum(), (X, W)),
    "mean of all": ("sum_of_product", lambda x, w: (x @ w).mean(), (X, W)),
    "linear, kept": (
        "sum_of_product",
        lambda x, w, b: F.linear(x, w.t(), b).sum(1, keepdim=True),
        (X, W, B),
    ),
    "scaled mean of a linear map": (
        "sum_of_product",
        lambda x, w, b: (F.linear(x, w.t(), b) * 0.5 / 3).mean(-1),
        (randn(2, 24, 40), W, B),
    ),
    "with a subtraction and a residual": (
        "sum_of_product",
        lambda x, w, b, v, h: ((-(x @ w) - v + h) * 2 + 1 - b).sum(1),
        (X, W, B, randn(24, 1), randn(24, 32)),
    ),
    "addmm with factors": (
        "sum_of_product",
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=-2).sum(1),
        (B, X, W),
    ),
    "transposed": ("sum_of_product", lambda x, w: (x @ w).t().sum(0), (X, W)),
    "batches": (
        "sum_of_product",
        lambda x, w: torch.bmm(x, w).sum(-1),
        (randn(3, 24, 40), randn(3, 40, 32)),
    ),
    "batches and rows": (
        "sum_of_product",
        lambda b, x, w: torch.baddbmm(b, x, w).sum((0, 1)),
        (randn(3, 1, 32), randn(3, 24, 40), randn(3, 40, 32)),
    ),
    "diagonal on the left": ("diagonal_product", lambda v, w: torch.diag(v) @ w, (randn(40), W)),
    "diagonal on the right": ("diagonal_product", lambda v, x: x @ torch.diag(v), (randn(40), X)),
    "linear map by a diagonal": (
        "diagonal_product",
        lambda v, x, b: F.linear(x, torch.diag(v), b),
        (randn(40), X, randn(40) + 1),
    ),
    "batches of diagonals": (
        "diagonal_product",
        lambda v, w: torch.bmm(torch.diag_embed(v), w),
        (randn(3, 40), randn(3, 40, 32)),
    ),
    "trace": ("diagonal_of_product", lambda x, w: torch.trace(x @ w), (X, randn(40, 24))),
    "diagonal of a wide product": ("diagonal_of_product", lambda x, w: (x @ w).diagonal() + 1, (X, W)),
    "diagonal above": ("diagonal_of_product", lambda x, w: (x @ w).diagonal(11).tanh(), (X, W)),
    "diagonal below, of a transposed product": (
        "diagonal_of_product",
        lambda x, w: (x @ w).t().diagonal(-11).tanh(),
        (X, W),
    ),
    "traces of a batch": (
        "diagonal_of_product",
        lambda x, w: (x @ w).diagonal(2, -1, -2).sum(-1),
        (randn(2, 3, 24, 40), randn(2, 3, 40, 32)),
    ),
    "diagonal with an addend and factors": (
        "diagonal_of_product",
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=-2).diagonal(1).tanh(),
        (B, X, W),
    ),
    "diagonals with an addend each": (
        "diagonal_of_product",
        lambda b, x, w: torch.baddbmm(b, x, w).diagonal(dim1=1, dim2=2).sum(0),
        (randn(3, 1, 32), randn(3, 24, 40), randn(3, 40, 32)),
    ),
    "diagonal of what is made of a product": (
        "diagonal_of_product",
        lambda x, w, v: torch.where(v > 0, (x @ w).exp() / 3, v).diagonal().mean(),
        (X, W, V[:, None]),
    ),
    "diagonal of a product times another": (
        "diagonal_of_product",
        lambda x, w, y: ((x @ w) * (y @ w)).diagonal(-3).sum(),
        (X, W, randn(24, 40) + 1),
    ),
    "batches in another order": (
        "diagonal_of_product",
        lambda x, w: (x @ w).permute(1, 2, 0, 3).diagonal(1, 1, 3).tanh(),
        (randn(2, 3, 24, 40), randn(2, 3, 40, 32)),
    ),
    "two diagonals": (
        "diagonal_of_product",
        lambda x, w: (lambda p: p.diagonal().sum() + p.diagonal(1).amax())(x @ w),
        (X, W),
    ),
    "what the identity leaves of a product": (
        "diagonal_of_product",
        lambda x, w: (torch.where(identity(), x @ w, 0.0)).sum((-1, -2)),
        (randn(3, 24, 40), randn(3, 40, 24)),
    ),
    "rows of what the identity leaves": (
        "diagonal_of_product",
        lambda x, w: (torch.where(identity(), (x @ w) * 2, 0.0)).sum((0, 2), keepdim=True),
        (randn(3, 24, 40), randn(3, 40, 24)),
    ),
    "pooling and mean": (
        "sum_of_pooling",
        lambda x: F.avg_pool2d(x, 2).mean((2, 3)),
        (IMAGE,),
    ),
    "pooling, scale and sum": (
        "sum_of_pooling",
        lambda x: (F.avg_pool2d(x, (4, 3), divisor_override=5) * 2).sum((1, 2, 3)),
        (IMAGE,),
    ),
    "adaptive pooling": (
        "sum_of_pooling",
        lambda x: torch.ops.aten._adaptive_avg_pool2d(x, [4, 4]).mean((-1, -2), keepdim=True),
        (IMAGE,),
    ),
    "pooling of one dimension": ("sum_of_pooling", lambda x: F.avg_pool2d(x, (1, 4)).sum(-1), (IMAGE,)),
    "mean of a convolution": (
        "sum_of_convolution",
        lambda x, w, b: F.conv2d(x, w, b).mean((2, 3)),
        (WIDE, FILTERS, randn(10)),
    ),
    "convolution with all there is": (
        "sum_of_convolution",
        lambda x, w, b: F.conv2d(x, w, b, (2, 1), (3, 1), (1, 2), 2).sum((2, 3), keepdim=True) * 2,
        (WIDE, randn(16, 3, 3, 4), randn(16)),
    ),
    "convolution of a line, all of it": (
        "sum_of_convolution",
        lambda x, w, b: (F.conv1d(x, w, b, stride=3, padding=2) - 1.0).mean(),
        (randn(2, 24, 67), randn(32, 24, 5), randn(32)),
    ),
    "convolution of a volume over images": (
        "sum_of_convolution",
        lambda x, w, b: F.conv3d(x, w, b, padding=1).flatten(2).sum((0, 2)),
        (randn(3, 4, 8, 9, 10), randn(12, 4, 3, 2, 3), randn(12)),
    ),
    "depthwise convolution": (
        "sum_of_convolution",
        lambda x, w: F.conv2d(x, w, padding=(2, 3), groups=6).mean((1, 2, 3)),
        (WIDE, randn(24, 1, 5, 7)),
    ),
    "mean of mean": ("merged_sums", lambda x: x.mean(-1).mean(-1), (IMAGE,)),
    "mean of mean, kept": (
        "merged_sums",
        lambda x: (x.mean(2, keepdim=True) * 3 + 1).mean((1, 3), keepdim=True),
        (IMAGE,),
    ),
    "sum of sum": ("merged_sums", lambda x: x.sum((0, 2)).sum(0), (IMAGE,)),
    "maximum of maximum": ("merged_sums", lambda x: x.amax(1).amax((0, 2)), (IMAGE,)),
    "minimum of minimum": ("merged_sums", lambda x: x.amin(3, True).amin(1), (IMAGE,)),
    "times one": ("identities", lambda x: torch.tanh(x * 1.0 / 1), (X,)),
    "minus nothing": ("identities", lambda x: torch.tanh(x - 0.0), (X,)),
    "negated twice": ("identities", lambda x: torch.tanh(x.neg().neg()), (X,)),
    "maximum with itself": ("identities", lambda x: torch.maximum(x, x).tanh(), (X,)),
    "size of the negative": ("identities", lambda x: (-x).abs().tanh(), (X,)),
    "cast there and back": ("identities", lambda x: x.double().float().tanh(), (X,)),
    "clamps": ("merged_clamps", lambda x: F.hardtanh(x.clamp(-2, 2).clamp(min=0), -1, 1), (X,)),
    "relu and clamp": ("merged_clamps", lambda x: torch.relu(torch.relu(x)).clamp(max=1), (X,)),
    "scales": ("merged_scales", lambda x: -(x * 2.0) * 3.0 / 7.0, (X,)),
    "divisions": ("merged_scales", lambda x: x.view(4, 6, 40) / 3.0 / 7.0, (X,)),
    "scale of the large operand": (
        "scale_of_product",
        lambda x, w: (x * 0.3) @ w,
        (randn(64, 16), randn(16, 4)),
    ),
    "scale to the result": (
        "scale_of_product",
        lambda b, x, w: torch.addmm(b, x / 3, w),
        (randn(16, 5), randn(16, 64), randn(64, 5)),
    ),
    "batch norm": ("merged_channels", channels, (IMAGE, *(randn(6) + i for i in range(4)))),
    "batch norm after a linear map": (
        "merged_channels",
        lambda x, w, b, *more: norm(F.linear(x, w.t(), b), *more),
        (randn(256, 40), W, B, *(randn(32) + i for i in range(1, 5))),
    ),
    "numbers among channels": (
        "merged_channels",
        lambda x, v: (((3.0 - v) + x) - 2.0) * v * 0.5,
        (IMAGE, randn(12)),
    ),
    "one element each": (
        "single_elements",
        lambda x: x.sum(1, keepdim=True).mean(1, keepdim=True).amax(1).tanh(),
        (X,),
    ),
    "maximum of one": (
        "single_elements",
        lambda x: x.sum(1, keepdim=True).max(1, keepdim=True).values.tanh(),
        (X,),
    ),
    "logsumexp of one": (
        "single_elements",
        lambda x: torch.logsumexp(x.sum(1, keepdim=True), 1).tanh(),
        (X,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_rewritten_task_equals_its_original_with_less_work(name: str) -> None:
    rule, function, inputs = CASES[name]
    case = sample(function, *inputs)
    form = only(case.task, rule)
    assert form is not None and form.rules == (rule,)
    assert form.task.inputs == case.task.inputs
    assert form.task.output_specs == case.task.output_specs
    before = work(case.task)
    assert form.work == work(form.task)
    if rule == "sum_of_convolution":
        assert form.work.convolved == 0 < before.convolved and form.work.passes <= before.passes + 8
    else:
        assert form.work.operations < before.operations
        assert form.work.passes <= before.passes + 3
    assert_same(case.task, form, case.inputs)


def test_a_maximum_is_taken_off_before_a_logarithm() -> None:
    case = sample(lambda x: torch.log_softmax(x, -1), randn(64, 300))
    assert only(case.task, "merged_channels") is None
    minus_mean = sample(
        lambda x, b: (x - x.mean(1, keepdim=True)) + b, randn(64, 300), randn(64, 1)
    )
    assert only(minus_mean.task, "merged_channels") is None


@pytest.mark.parametrize("name", CASES)
def test_nan_and_infinities_stay_where_they_were(name: str) -> None:
    rule, function, inputs = CASES[name]
    task = task_of(function, *inputs)
    form = only(task, rule)
    assert form is not None
    for seed, distribution in enumerate((*DISTRIBUTIONS, "edges", "edges", "masked")):
        assert_same(task, form, make_inputs(task.inputs, seed, distribution))


@pytest.mark.parametrize("name", [n for n in CASES if BY_NAME[CASES[n][0]].exact])
def test_an_exact_rule_changes_no_bit(name: str) -> None:
    rule, function, inputs = CASES[name]
    task = task_of(function, *inputs)
    form = only(task, rule)
    assert form is not None
    for distribution in ("normal", "edges"):
        drawn = make_inputs(task.inputs, 5, distribution)
        got = run_eager(build_graph(form.task), drawn)
        want = run_eager(build_graph(task), drawn)
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def one_infinity(shape: tuple[int, ...], place: tuple[int, ...], value: float) -> Tensor:
    x = randn(*shape)
    x[place] = value
    return x


@pytest.mark.parametrize("value", [INFINITY, -INFINITY, NAN])
@pytest.mark.parametrize("signs", ["mixed", "positive", "negative", "with a zero"])
def test_an_infinite_factor_of_a_sum_is_what_its_terms_make_of_it(value: float, signs: str) -> None:
    w = W.clone() if signs in ("mixed", "with a zero") else W.abs() + 0.1
    w = -w if signs == "negative" else w
    if signs == "with a zero":
        w = w.abs() + 0.1
        w[3, 5] = 0.0
    x = one_infinity((24, 40), (7, 3), value)
    for function, operands in (
        (lambda x, w: (x @ w).sum(1), (x, w)),
        (lambda x, w: (w.t() @ x.t()).sum(0), (x, w)),
    ):
        case = sample(function, *operands)
        form = only(case.task, "sum_of_product")
        assert form is not None
        assert_same(case.task, form, case.inputs)


@pytest.mark.parametrize("value", [INFINITY, -INFINITY, NAN])
@pytest.mark.parametrize("where", ["image", "edge", "weight", "image and weight"])
@pytest.mark.parametrize("signs", ["mixed", "positive", "with a zero"])
@pytest.mark.parametrize("padding", [0, 1])
def test_infinities_of_a_summed_convolution_are_what_its_terms_make_of_them(
    value: float, where: str, signs: str, padding: int
) -> None:
    x, w = WIDE.clone(), FILTERS.clone()
    if signs != "mixed":
        x, w = x.abs() + 0.1, w.abs() + 0.1
    if signs == "with a zero":
        x[:, 2, 5, 5] = w[3, :, 1, 1] = 0.0
    if "image" in where:
        x[1, 2, 8, 11] = value
    if where == "edge":
        x[0, 4, 0, 0] = value
    if "weight" in where:
        w[7, 2, 1, 3] = value
    case = sample(lambda x, w: F.conv2d(x, w, padding=padding).sum((2, 3)), x, w)
    form = only(case.task, "sum_of_convolution")
    assert form is not None
    assert_same(case.task, form, case.inputs)


@pytest.mark.parametrize("value", [INFINITY, NAN])
@pytest.mark.parametrize("where", ["matrix", "diagonal"])
def test_zeros_beside_a_diagonal_spoil_what_they_meet(value: float, where: str) -> None:
    v, w = randn(40), W.clone()
    (w[3] if where == "matrix" else v)[5] = value
    for function, operands in (
        (lambda v, w: torch.diag(v) @ w, (v, w)),
        (lambda v, w: w @ torch.diag(v), (v, w.t().contiguous())),
    ):
        case = sample(function, *operands)
        form = only(case.task, "diagonal_product")
        assert form is not None
        assert_same(case.task, form, case.inputs)


NOT: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "a product that is needed": (lambda x, w: ((x @ w).sum(1), x @ w), (X, W)),
    "something that is not linear between": (lambda x, w: torch.relu(x @ w).sum(1), (X, W)),
    "a factor for each row": (lambda x, w, v: ((x @ w) * v).sum(1), (X, W, randn(24, 1))),
    "an infinite factor": (lambda x, w: ((x @ w) * INFINITY).sum(1), (X, W)),
    "division by zero": (lambda x, w: ((x @ w) / 0.0).sum(1), (X, W)),
    "a sum over matrices of a batch": (
        lambda x, w: torch.bmm(x, w).sum(0),
        (randn(3, 24, 40), randn(3, 40, 32)),
    ),
    "a sum over parts of rows": (lambda x, w: (x @ w).view(24, 8, 4).sum(1), (X, W)),
    "a product with a vector": (lambda x, w: (x @ w).sum(0), (X, randn(40, 1))),
    "a convolution of which a dimension stays": (
        lambda x, w: F.conv2d(x, w).sum(2),
        (WIDE, FILTERS),
    ),
    "a convolution over channels": (lambda x, w: F.conv2d(x, w).sum(1), (WIDE, FILTERS)),
    "a transposed convolution": (
        lambda x, w: F.conv_transpose2d(x, w).sum((2, 3)),
        (WIDE, randn(6, 10, 3, 3)),
    ),
    "a convolution with one output": (
        lambda x, w: F.conv2d(x, w).sum((2, 3)),
        (WIDE, randn(1, 6, 1, 1)),
    ),
    "windows that overlap": (lambda x: F.avg_pool2d(x, 4, 2).mean((2, 3)), (IMAGE,)),
    "windows with padding": (lambda x: F.avg_pool2d(x, 2, 2, 1).mean((2, 3)), (IMAGE,)),
    "windows that leave some out": (lambda x: F.avg_pool2d(x, 5).mean((2, 3)), (IMAGE,)),
    "a pooled dimension that stays": (lambda x: F.avg_pool2d(x, 2).mean(2), (IMAGE,)),
    "a mean that is needed": (lambda x: (x.mean(-1).mean(-1), x.mean(-1)), (IMAGE,)),
    "a maximum of a minimum": (lambda x: x.amin(1).amax(1), (IMAGE,)),
    "a positive zero": (lambda x: torch.reciprocal(x + 0.0), (X,)),
    "a difference with itself": (lambda x: x - x, (X,)),
    "a product with zero": (lambda x: x * 0.0, (X,)),
    "a cast that rounds": (lambda x: x.bfloat16().float(), (X,)),
    "rows of several parts": (
        lambda x, w: (x @ w).view(2, 24, 32).mean(1),
        (randn(48, 40), W),
    ),
    "clamps that are both needed": (lambda x: x.clamp(-1, 1), (X,)),
    "a factor that would vanish": (lambda x: x * 1e-30 / 1e30, (X,)),
    "an infinite factor times another": (lambda x: x * INFINITY / 2.0, (X,)),
    "a factor of zero": (lambda x: x * 0.0 * 2.0, (X,)),
    "a scale of the small operand": (lambda x, w: x @ (w * 2.0), (X, randn(40, 2))),
    "sums that are large already": (lambda x, y, z: x + y - z, (X, X + 1, X + 2)),
    "a shift between two factors": (lambda x, a, b: (x * a + b) * a, (IMAGE, B[:12], V[:12])),
    "a diagonal of a product that is needed": (
        lambda x, w: (x @ w, (x @ w).diagonal().sum()),
        (X, W),
    ),
    "a diagonal over rows and matrices": (
        lambda x, w: torch.bmm(x, w).diagonal(0, 0, 1).sum(),
        (randn(24, 24, 40), randn(24, 40, 32)),
    ),
    "a product times the identity": (
        lambda x, w: ((x @ w) * identity().float()).sum(1),
        (X, randn(40, 24)),
    ),
    "a sum of rows beside the identity": (
        lambda x, w: torch.where(identity(), x @ w, 1.0).sum(1),
        (X, randn(40, 24)),
    ),
    "a matrix with more than a diagonal": (
        lambda v, w: torch.diag(v, 1) @ w,
        (randn(39), W),
    ),
    "a diagonal on ones": (
        lambda v, w: torch.where(torch.eye(40, dtype=torch.bool), v[None], 1.0) @ w,
        (randn(40), W),
    ),
}


@pytest.mark.parametrize("name", NOT)
def test_no_rule_that_matters_holds_where_it_must_not(name: str) -> None:
    function, inputs = NOT[name]
    task = task_of(function, *inputs)
    found = rewritten(task, [rule for rule in RULES if rule.name != "layouts"])
    if found is not None:  # other rules may: the work that must be done is still there
        assert found.work.operations >= 0.9 * work(task).operations, found.rules
        assert_same(task, found, make_inputs(task.inputs, 3, "normal"))
    assert not forms(task)


def test_rules_make_room_for_each_other() -> None:
    """A sum, a maximum of one, a mean of one and two logsumexps of one after a linear map."""

    def model(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.linear(x, w, b).sum(1, keepdim=True)
        y = y.max(1, keepdim=True)[0].mean(1, keepdim=True)
        return y.logsumexp(1, keepdim=True).logsumexp(1, keepdim=True)

    case = sample(model, X, W.t(), B)
    (best,) = forms(case.task)
    assert {"single_elements", "sum_of_product"} <= set(best.rules)
    assert work(case.task).operations > 4 * best.work.operations
    assert not {"log", "exp", "addmm"} & {node.op.split(".")[1] for node in best.task.nodes}
    assert_same(case.task, best, case.inputs)


def test_forms_that_save_as_much_are_offered_exact_ones_included() -> None:
    task = task_of(lambda x: ((-x).neg() * 2.0 * 3.0).tanh(), X)
    best, exact = forms(task)
    assert best.rules == ("identities", "merged_scales") and exact.rules == ("identities",)
    assert best.work < exact.work


def test_a_softmax_over_one_element_is_not_one_where_that_is_not_finite() -> None:
    case = sample(lambda x: torch.softmax(x.sum(1, keepdim=True), 1), X)
    form = rewritten(case.task, RULES)
    assert form is not None and "exp" in {node.op.split(".")[1] for node in form.task.nodes}
    assert_same(case.task, form, make_inputs(case.task.inputs, 1, "edges"))


def test_a_form_can_be_made_again_from_its_rules() -> None:
    _, function, inputs = CASES["scaled mean of a linear map"]
    task = task_of(function, *inputs)
    (form,) = forms(task)
    again = rewritten(task, [BY_NAME[name] for name in form.name.split("+")])
    assert again == form


def test_what_is_tidy_already_has_no_forms() -> None:
    assert forms(task_of(lambda x: torch.softmax(x, -1), X)) == ()
    assert forms(task_of(lambda x, w, b: F.layer_norm(x, (40,), w, b), X, X[0], X[1])) == ()


def test_a_task_for_cuda_is_rewritten_without_a_device() -> None:
    task = replace(task_of(lambda x, w: (x @ w).sum(1), X, W), target="cuda")
    (form,) = forms(task)
    assert form.task.target == "cuda" and form.task.inputs == task.inputs


def test_half_precision_is_summed_in_single() -> None:
    case = sample(lambda x, w: (x @ w).sum(1), X.bfloat16(), W.bfloat16())
    (form,) = forms(case.task)
    (got,) = run_eager(build_graph(form.task), case.inputs)
    (want,) = wide(case.task, case.inputs)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=0.005, atol=0.005)


SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@settings(max_examples=60)
@given(SHAPES, st.data())
def test_sums_over_all_of_a_shape_that_changes_are_the_same(shape: list[int], data: Any) -> None:
    elements = torch.arange(math.prod(shape), dtype=torch.float64).sqrt()
    cuts = data.draw(st.permutations(shape))
    dims = tuple(sorted(data.draw(st.sets(st.integers(0, len(cuts) - 1)))))
    mine = matching_dims(shape, cuts, dims)
    if mine is None:
        return
    before = elements.view(shape).sum(mine) if mine else elements.view(shape)
    after = elements.view(cuts).sum(dims) if dims else elements.view(cuts)
    torch.testing.assert_close(before.reshape(after.shape), after)


def test_parts_of_dimensions_do_not_match() -> None:
    assert matching_dims((12, 5), (3, 4, 5), (0, 1)) == (0,)
    assert matching_dims((12, 5), (3, 4, 5), (1, 2)) is None
    assert matching_dims((3, 4, 5), (12, 1, 5), (0,)) == (0, 1)
    assert matching_dims((6, 4), (4, 6), (0,)) is None


LIMIT = st.floats(-3, 3) | st.none()


@given(st.lists(st.tuples(LIMIT, LIMIT), min_size=1, max_size=5), st.floats(-5, 5))
def test_bounds_of_clamps_add_up(limits: list[tuple[float | None, float | None]], x: float) -> None:
    bounds, want = Bounds(), x
    for low, high in limits:
        bounds = bounds.clamped(low, high)
        want = max(want, low) if low is not None else want
        want = min(want, high) if high is not None else want
    assert min(max(x, bounds.low), bounds.high) == want


LINEAR: dict[str, Callable[[Tensor], Tensor]] = {
    "scaled": lambda y: y * 0.25,
    "divided": lambda y: y / 3,
    "negated": lambda y: -y,
    "shifted": lambda y: y - 2.0,
    "plus a vector": lambda y: y + torch.arange(y.shape[-1], dtype=y.dtype),
    "turned": lambda y: y.transpose(0, -1),
    "flattened": lambda y: y.reshape(-1, y.shape[-1]),
    "with one more": lambda y: y.unsqueeze(1),
}


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(sorted(LINEAR)), max_size=5),
    st.sampled_from(["all", "last", "first", "mean"]),
    st.integers(2, 12),
)
def test_a_sum_passes_through_any_chain_of_linear_operators(
    chain: list[str], how: str, rows: int
) -> None:
    def model(x: Tensor, w: Tensor) -> Tensor:
        y = torch.bmm(x, w)
        for name in chain:
            y = LINEAR[name](y)
        return (
            y.mean()
            if how == "mean"
            else y.sum()
            if how == "all"
            else y.sum(-1 if how == "last" else 0)
        )

    case = sample(model, randn(2, rows, 9), randn(2, 9, 10))
    form = rewritten(case.task, RULES)
    if form is not None:
        assert_same(case.task, form, case.inputs)
    if how in ("mean", "all") and rows > 8:
        assert form is not None and "sum_of_product" in form.rules
