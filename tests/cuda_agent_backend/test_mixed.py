"""Rows mixed by weights that are scores, without a softmax: one region, one kernel, right as in eager."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from test_composed_attention import graph_on_cuda
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from cuda_agent_backend.codegen.api import analyse, generate, schedules
from cuda_agent_backend.codegen.cuda.attention.linear.schedules import parts_in_waves
from cuda_agent_backend.codegen.cuda.attention.linear.writer import CudaLinearAttention
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.operators.back_to_back import back_to_back_of
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.rewrite.vanishing import vanishes
from sandbox.accuracy.oracle import run_oracle
from sandbox.accuracy.rule import compare
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.graph.build import build_graph
from sandbox.plan.candidate import Candidate

DEVICE = DeviceFacts()
INFINITY, NAN = float("inf"), float("nan")
Function = Callable[..., Tensor]


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def found_in(function: Function, *inputs: Tensor) -> list[tuple[Region, CudaLinearAttention]]:
    found = []
    for region in partition(graph_on_cuda(function, *inputs)):
        made = canonical(region.nodes, region.outputs, "cuda")
        assert isinstance(made, Canonical), made
        analysis = analyse(made.task)
        if isinstance(analysis, CudaLinearAttention):
            found.append((region, analysis))
    return found


class Values(Interpreter):
    """What all nodes of a graph are, by name."""

    def __init__(self, function: Function, *inputs: Tensor) -> None:
        super().__init__(make_fx(function, select_decomp_table(), "fake")(*inputs))
        self.known: dict[str, Any] = {}
        self.run(*inputs)

    def run_node(self, n: Node) -> Any:
        self.known[n.name] = super().run_node(n)
        return self.known[n.name]


def analysed(function: Function, *inputs: Tensor) -> tuple[CudaLinearAttention, list[Tensor]]:
    """The one region, and what it reads."""
    ((region, analysis),) = found_in(function, *inputs)
    made = canonical(region.nodes, region.outputs, "cuda")
    assert isinstance(made, Canonical), made
    known = Values(function, *inputs).known
    return analysis, [known[node.name] for node in made.inputs]


def emulated(
    analysis: CudaLinearAttention, number: int, folder: Path, inputs: list[Tensor]
) -> Tensor:
    source, plan = analysis.emit(schedules(analysis, DEVICE)[number], DEVICE)
    (found,) = cuda_emulator.run(source, plan, inputs, folder)
    return found


def eager(analysis: CudaLinearAttention, inputs: list[Tensor]) -> Tensor:
    module = build_graph(replace(analysis.task, target="cpu"))
    (found,) = module(*inputs)
    assert isinstance(found, Tensor)
    return found


def wide(analysis: CudaLinearAttention, inputs: list[Tensor]) -> Tensor:
    """As the judge's oracle has it."""
    task = replace(analysis.task, target="cpu")
    return run_oracle(task, build_graph(task), inputs).outputs[0]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 4) @ v


def nothing_between(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1)
    return (scores @ v) / scores.sum(-1, keepdim=True)


def decayed(q: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    places = torch.arange(q.shape[2])
    distance = places[:, None] - torch.arange(k.shape[2])[None, :]
    weights = torch.tril(torch.exp(-rate * distance.clamp(min=0)))
    return (q @ k.transpose(-2, -1) * weights) @ v / q.shape[-1] ** 0.5


def decayed_by_parameter(q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
    return decayed(q, k, v, F.softplus(decay)[:, None, None])


def numbers_of_heads(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, bound: Tensor) -> Tensor:
    """Before and behind the second product, by a division, of a truth, of half precision."""
    scale = scale[:, None, None].float()
    factor = torch.where(scale > 0, scale.exp(), scale.sigmoid())
    scores = (q @ k.transpose(-2, -1) / 4).clamp(min=0) / (1 + factor)
    return torch.tanh(scores * factor + bound) @ v / (bound.exp() + factor)


def given_weights(q: Tensor, k: Tensor, v: Tensor, weights: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) * weights) @ v


def normalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / 4
    return (scores @ v) / scores.sum(-1, keepdim=True)


def squared_and_normalised(q: Tensor, k: Tensor, v: Tensor, beside: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1) / 4).relu().square()
    return scores @ v / (scores.sum(-1) + 1).unsqueeze(-1) + beside


def gaussian(left: Tensor, right: Tensor, vectors: Tensor, a: Tensor, b: Tensor) -> Tensor:
    squared = a[:, None] + b - left @ right.T
    return torch.exp(-squared / 9.0) @ vectors


def gated(q: Tensor, k: Tensor, v: Tensor, column: Tensor) -> Tensor:
    return F.silu(q @ k.transpose(-2, -1) * 0.2 + column) @ v


def where(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.where(seen & (scores > 0), scores, 0.25) @ v


def heads(queries: int, keys: int, size: int, width: int) -> tuple[Tensor, ...]:
    return randn(2, 3, queries, size), randn(2, 3, keys, size), randn(2, 3, keys, width) + 0.1


def tokens(count: int, size: int) -> tuple[Tensor, ...]:
    """Views of projections."""
    return tuple(randn(2, count, 3, size + n)[..., :size].transpose(1, 2) for n in (0, 4, 8))


def points(rows: int, columns: int, size: int, width: int) -> tuple[Tensor, ...]:
    left, right = randn(rows, size), randn(columns, size)
    return left * 2, right, randn(columns, width), left.square().sum(1), right.square().sum(1)


CASES: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "plain": (plain, heads(133, 150, 16, 16)),
    "decayed": (decayed, (*heads(133, 133, 16, 16), randn(3).abs()[:, None, None])),
    "decayed, fewer keys": (decayed, (*heads(200, 130, 16, 16), randn(3).abs()[:, None, None])),
    "decayed by a parameter": (decayed_by_parameter, (*heads(133, 133, 16, 16), randn(3) - 0.5)),
    "numbers of heads": (numbers_of_heads, (*heads(133, 140, 16, 16), randn(3).half(), randn(1))),
    "weights for each head": (given_weights, (*heads(133, 133, 16, 16), randn(3, 133, 133))),
    "weights for each matrix": (given_weights, (*heads(133, 133, 16, 16), randn(2, 3, 133, 133))),
    "weights for all": (given_weights, (*heads(133, 135, 16, 16), randn(133, 135))),
    "normalised": (normalised, tuple(x.abs() for x in heads(161, 131, 16, 8))),
    "normalised by hand": (squared_and_normalised, (*heads(161, 131, 16, 8), randn(8))),
    "gaussian": (gaussian, points(333, 277, 40, 8)),
    "gaussian, wide": (gaussian, points(300, 515, 24, 16)),
    "gated by columns": (gated, (*heads(150, 177, 16, 16), randn(177))),
    "where": (where, heads(140, 140, 16, 16)),
    "tokens before heads": (plain, tokens(141, 16)),
}  # fmt: skip


LARGE: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "heads of 80": (decayed, (*heads(1250, 1250, 80, 80), randn(3)[:, None, None])),
    "a parameter": (decayed_by_parameter, (*heads(1250, 1250, 80, 80), randn(3))),
    "heads of 56": (normalised, heads(1300, 1300, 56, 56)),
    "heads of 96": (normalised, heads(1300, 1300, 96, 96)),
    "heads of 128": (normalised, heads(1300, 1300, 128, 128)),
    "gaussian": (gaussian, points(7000, 6500, 40, 8)),
}


def check(name: str, number: int, folder: Path) -> None:
    function, inputs = CASES[name]
    analysis, own = analysed(function, *inputs)
    if number >= len(schedules(analysis, DEVICE)):
        pytest.skip("there are fewer")
    got = emulated(analysis, number, folder, own)
    report = compare([got], [eager(analysis, own)], [wide(analysis, own)])
    assert report.passes, report.reason
    want = function(*inputs)
    torch.testing.assert_close(got.view(-1), want.reshape(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_it_is_one_kernel_as_accurate_as_eager(name: str, tmp_path: Path) -> None:
    check(name, 0, tmp_path)


@pytest.mark.parametrize("number", range(1, 10))
@pytest.mark.parametrize("name", ["decayed", "normalised by hand", "gaussian"])
def test_all_schedules_compute_the_same(name: str, number: int, tmp_path: Path) -> None:
    check(name, number, tmp_path)


FEW_ROWS: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "gaussian": (gaussian, points(150, 1507, 24, 8)),
    "normalised by hand": (squared_and_normalised, (*(x[:1, :2] for x in heads(70, 1107, 16, 8)), randn(8))),
}  # fmt: skip


@pytest.mark.parametrize("relay", [True, False], ids=["warp groups", "warps"])
@pytest.mark.parametrize("wrong", [False, True], ids=["numbers", "not finite"])
@pytest.mark.parametrize("name", FEW_ROWS)
def test_blocks_that_share_the_keys_of_a_row_compute_the_same(
    name: str, wrong: bool, relay: bool, tmp_path: Path
) -> None:
    function, inputs = FEW_ROWS[name]
    q, k, v, *rest = (x.clone() for x in inputs)
    if wrong:
        spread(q, k, v)
    analysis, own = analysed(function, q, k, v, *rest)
    found = [s.only() for s in schedules(analysis, DEVICE)]
    numbers = [n for n, s in enumerate(found) if s["parts"] != 1 and bool(s["relay"]) == relay]
    assert numbers
    got, want = emulated(analysis, numbers[-1], tmp_path, own), eager(analysis, own)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-4)
    report = compare([got], [want], [wide(analysis, own)])
    assert wrong or report.passes, report.reason


@pytest.mark.parametrize("number", [0, 2, 4, 5])
@pytest.mark.parametrize("name", ["plain", "decayed", "normalised", "gaussian", "where"])
def test_what_is_not_finite_is_as_in_eager(name: str, number: int, tmp_path: Path) -> None:
    """Also where a weight is zero, or a number though its score is none."""
    function, inputs = CASES[name]
    q, k, v, *rest = (x.clone() for x in inputs)
    spread(q, k, v)
    analysis, own = analysed(function, q, k, v, *rest)
    want = eager(analysis, own)
    assert want.isnan().any() and want.isfinite().any()
    got = emulated(analysis, number, tmp_path, own)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positive", [False, True], ids=["of both signs", "positive"])
@pytest.mark.parametrize("number", [0, 4])
def test_weights_that_overflow_are_as_in_eager(number: int, positive: bool, tmp_path: Path) -> None:
    """Whole rows are NaN after a few terms, or infinite, where no weight nor value is negative."""
    function, (q, k, v, _) = CASES["decayed"]
    if positive:
        q, k, v = q.abs() + 0.1, k.abs() + 0.1, v.abs() + 0.1
    rate = torch.tensor([-2.0, -0.9, 0.5])[:, None, None]
    analysis, own = analysed(function, q, k, v, rate)
    want = eager(analysis, own)
    beyond = want.isinf() if positive else want.isnan()
    assert 0.2 < beyond.float().mean() < 0.6
    got = emulated(analysis, number, tmp_path, own)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("relay", [True, False], ids=["warp groups", "warps"])
@pytest.mark.parametrize("infinite", [1, 60], ids=["one", "many"])
def test_rows_whose_last_weights_overflow_are_as_in_eager(
    infinite: int, relay: bool, tmp_path: Path
) -> None:
    """The first keys do not tell, so that all warps share them: one sees what makes NaN of a row, or none does."""

    def by_columns(q: Tensor, k: Tensor, v: Tensor, column: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1) * torch.exp(column)) @ v

    q, k, v = (x[:1, :1] for x in heads(150, 301, 24, 8))
    column = torch.zeros(301)
    column[-infinite:] = 100
    analysis, own = analysed(by_columns, q, k, v, column)
    want = eager(analysis, own)
    assert (want.isinf().float().mean() > 0.3) == (infinite < 3)
    assert want.isnan().all() == (infinite == 60)
    number = next(
        n for n, s in enumerate(schedules(analysis, DEVICE)) if bool(s.only()["relay"]) == relay
    )
    got = emulated(analysis, number, tmp_path, own)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-4)


def spread(q: Tensor, k: Tensor, v: Tensor) -> None:
    """What is not finite, or nearly so, in a few rows; of values in a column that few results have."""
    q, k, v = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))
    q[0, 5, 2], q[0, 9] = NAN, 3e38
    q[0, 11, 3], v[0, 70, 1] = INFINITY, INFINITY
    k[-1, 90, 0], v[-1, 7, 5] = -INFINITY, NAN


@pytest.mark.parametrize("what", [INFINITY, NAN])
def test_zero_times_what_is_not_finite_is_nan(what: float, tmp_path: Path) -> None:
    """Beyond the diagonal, where every weight is zero."""
    function, inputs = CASES["decayed"]
    q, k, v, rate = (x.clone() for x in inputs)
    v[1, 1, 132, 3] = what
    analysis, own = analysed(function, q, k, v, rate)
    got = emulated(analysis, 0, tmp_path, own)
    assert got[1, 1, :, 3].isnan()[:132].all() and got[1, 0].isfinite().all()
    torch.testing.assert_close(got, eager(analysis, own), equal_nan=True, rtol=1e-4, atol=1e-4)


def scores_kept(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.transpose(-2, -1)
    return scores @ v, scores


def sums_kept(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.transpose(-2, -1)
    return scores @ v, scores.sum(-1)


def transposed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).transpose(-2, -1) @ v


def over_columns(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Divided by a sum of a row's weights, each column by another row's."""
    scores = q @ k.transpose(-2, -1)
    return (scores @ v) / scores.sum(-1)[..., None, :16]


def averaged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1)
    return (scores - scores.mean(-1, keepdim=True)) @ v


def by_itself(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)).relu()
    return scores @ scores[..., :]


def of_places(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).relu() @ torch.arange(140.0 * 16).view(140, 16).expand(v.shape)


def linear(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return (x @ first.T).relu() @ second


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (scores_kept, heads(133, 150, 16, 16)),
        (sums_kept, heads(133, 150, 16, 16)),
        (transposed, heads(140, 140, 16, 16)),
        (over_columns, heads(140, 140, 16, 16)),
        (averaged, heads(140, 140, 16, 16)),
        (by_itself, heads(128, 128, 16, 16)),
        (of_places, heads(140, 140, 16, 16)),
        (nothing_between, heads(140, 140, 16, 16)),
        (plain, heads(140, 140, 20, 16)),
        (plain, heads(140, 140, 16, 12)),
        (plain, heads(40, 400, 16, 16)),
        (plain, heads(64, 64, 16, 16)),
        (plain, tuple(x.double() for x in heads(140, 140, 16, 16))),
        (plain, tuple(x.half() for x in heads(140, 140, 16, 16))),
        (linear, (randn(4096, 128), randn(256, 128), randn(256, 128))),
    ],
    ids=["scores kept", "sums kept", "transposed", "sums elsewhere", "a mean of scores", "by itself",
         "of places", "nothing between", "uneven rows",
         "uneven columns", "few rows", "small scores", "double", "half", "few hidden features"],
)  # fmt: skip
def test_other_products_stay_apart(function: Function, inputs: tuple[Tensor, ...]) -> None:
    assert found_in(function, *inputs) == []
    products = [torch.ops.aten.bmm.default, torch.ops.aten.mm.default]
    for region in partition(graph_on_cuda(function, *inputs)):
        # two in the other order are one region, and no mixing
        needed = [n for n in region.nodes if n.target in products and not vanishes(n)]
        assert len(needed) <= 1


def test_what_something_else_needs_is_read() -> None:
    """Weights that are in memory anyway."""

    def kept(q: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.exp(rate * torch.arange(140.0)[:, None] * torch.ones(140))
        return (q @ k.transpose(-2, -1) * weights) @ v, weights

    ((region, analysis),) = found_in(kept, *heads(140, 140, 16, 16), randn(3, 1, 1))
    assert len(region.inputs) == 4 and len(analysis.form.inputs) == 1
    assert region.inputs[[n.name for n in region.inputs].index("exp")].users


def test_numbers_of_heads_are_made_where_they_are_read() -> None:
    """What is drawn for a race is then the parameter, and no rate is negative."""
    q, k, v = heads(140, 140, 16, 16)
    (region,) = partition(graph_on_cuda(decayed_by_parameter, q, k, v, randn(3)))
    assert all(node.op == "placeholder" for node in region.inputs) and len(region.inputs) == 4

    def both(q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
        rate = F.softplus(decay)[:, None, None]
        return decayed(q, k, v, rate) * torch.exp(-rate)

    (region,) = partition(graph_on_cuda(both, q, k, v, randn(3)))
    assert all(node.op == "placeholder" for node in region.inputs) and len(region.inputs) == 4


def rate_kept(q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    rate = F.softplus(decay)
    return decayed(q, k, v, rate[:, None, None]), rate


def of_columns(q: Tensor, k: Tensor, v: Tensor, column: Tensor) -> Tensor:
    return gated(q, k, v, F.softplus(column))


def of_a_sum(q: Tensor, k: Tensor, v: Tensor, many: Tensor) -> Tensor:
    return decayed(q, k, v, F.softplus(many.sum(1))[:, None, None])


def of_much(q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
    for _ in range(40):
        decay = decay.sin()
    return decayed(q, k, v, decay[:, None, None])


def of_doubles(q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
    return decayed(q, k, v, decay.double().exp().float()[:, None, None])


def not_printed(q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
    return decayed(q, k, v, torch.special.i0(decay)[:, None, None])


@pytest.mark.parametrize(
    ("function", "beside"),
    [(rate_kept, randn(3)), (of_columns, randn(140)), (of_a_sum, randn(3, 5)), (of_much, randn(3)),
     (of_doubles, randn(3)), (not_printed, randn(3))],
    ids=["needed elsewhere", "of columns", "of a kernel's result", "much work", "of doubles", "not printed"],
)  # fmt: skip
def test_other_numbers_are_read(function: Function, beside: Tensor) -> None:
    """They are made by a kernel in any case, or would be made again at each place."""
    ((region, _),) = found_in(function, *heads(140, 140, 16, 16), beside)
    (read,) = (node for node in region.inputs if node.op != "placeholder")
    assert not {read, *read.all_input_nodes} & set(region.nodes)


def test_what_makes_numbers_of_heads_runs_once_for_a_block() -> None:
    function, inputs = CASES["numbers of heads"]
    ((region, analysis),) = found_in(function, *inputs)
    assert all(node.op == "placeholder" for node in region.inputs)
    source, _ = analysis.emit(schedules(analysis, DEVICE)[0], DEVICE)
    before, _, each = source.partition("static CA_INLINE float weigh(")
    assert before.count("ca::sigmoid(v") >= 1 and each.count("ca::sigmoid(v") == 0
    assert each.count("ca::exp(v") == 0 and each.count("ca::tanh(v") == 1


def test_a_view_of_a_number_that_is_given_stays_outside() -> None:
    def scaled(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1) * scale[:, None, None]) @ v

    ((region, _),) = found_in(scaled, *heads(140, 140, 16, 16), randn(3))
    assert torch.ops.aten.unsqueeze.default not in {n.target for n in region.nodes}


def test_chains_of_products_are_two_at_a_time() -> None:
    def chain(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        first = (a @ b.transpose(-2, -1)).relu() @ c
        return (first @ b.transpose(-2, -1)).relu() @ c

    found = found_in(chain, *heads(140, 140, 16, 16))
    assert len(found) == 2


def test_what_is_written_to_an_input_is_written_beside_it() -> None:
    graph = graph_on_cuda(plain, *heads(140, 140, 16, 16))
    (end,) = graph.find_nodes(op="output")
    into, result = next(iter(graph.nodes)), end.all_input_nodes[0]
    with graph.inserting_before(end):
        written = graph.call_function(torch.ops.aten.copy_.default, (into, result))
    written.meta["val"] = result.meta["val"]
    end.args = ((written,),)
    (region,) = partition(graph)
    assert written not in region.nodes and len(region.outputs) == 1


def test_work_of_any_length_before_a_product_is_looked_at() -> None:
    def long(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(600):
            x = torch.sin(x) + 0.1
        return x @ w

    graph = graph_on_cuda(long, randn(128, 64), randn(64, 64))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 250)
    try:
        product = next(n for n in graph.nodes if n.target == torch.ops.aten.mm.default)
        assert back_to_back_of(product, whole=False) is None
    finally:
        sys.setrecursionlimit(limit)


def test_rows_whose_weights_are_all_small_are_divided_by_their_sum(tmp_path: Path) -> None:
    def regression(a: Tensor, b: Tensor, v: Tensor, c: Tensor, d: Tensor) -> Tensor:
        weights = torch.exp(-(c[:, None] + d - 2 * (a @ b.T)))
        return (weights @ v) / weights.sum(1, keepdim=True)

    a, b, v = randn(400, 8) * 0.1, randn(420, 8) * 0.1, randn(420, 8) + 1
    a[0, 0] += 9.1
    a[1, 0] += 9.08
    inputs = (a, b, v, a.square().sum(1), b.square().sum(1))
    analysis, own = analysed(regression, *inputs)
    got = emulated(analysis, 0, tmp_path, own)
    report = compare([got], [eager(analysis, own)], [wide(analysis, own)])
    assert report.passes, report.reason


def test_nothing_is_found_on_the_cpu() -> None:
    inputs = heads(140, 140, 16, 16)
    graph = make_fx(plain, select_decomp_table(), "fake")(*inputs).graph
    for region in partition(graph):
        assert sum(node.target == torch.ops.aten.bmm.default for node in region.nodes) <= 1


def one_head(queries: int, keys: int, size: int, width: int) -> tuple[Tensor, ...]:
    return tuple(x[:1, :1].abs() for x in heads(queries, keys, size, width))


WIDE: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    # all parts of few columns are one operand, many columns are multiplied by halves
    "16 columns": (normalised, one_head(370, 400, 72, 16)),
    "24 columns": (normalised, one_head(200, 500, 40, 24)),
    "128 columns": (normalised, one_head(560, 580, 8, 128)),
}  # fmt: skip


@pytest.mark.parametrize("name", WIDE)
def test_warp_groups_multiply_any_number_of_columns(name: str, tmp_path: Path) -> None:
    function, inputs = WIDE[name]
    analysis, own = analysed(function, *inputs)
    assert schedules(analysis, DEVICE)[0].only()["relay"]
    got = emulated(analysis, 0, tmp_path, own)
    report = compare([got], [eager(analysis, own)], [wide(analysis, own)])
    assert report.passes, report.reason


def test_warp_groups_are_of_one_architecture() -> None:
    function, inputs = CASES["plain"]
    analysis, _ = analysed(function, *inputs)
    older = replace(DEVICE, arch="sm_80")
    assert any(s.only()["relay"] for s in schedules(analysis, DEVICE))
    assert not any(s.only()["relay"] for s in schedules(analysis, older))
    first = schedules(analysis, DEVICE)[0]
    assert isinstance(generate(analysis, first, older), NotCovered)


def test_parts_of_warp_groups_fill_whole_waves() -> None:
    """55 blocks of 128 rows on 132 multiprocessors: two for each row take one wave, four as many as five; of few keys
    or many rows there are none."""
    assert parts_in_waves(102, 55, 132) == 7
    assert parts_in_waves(51, 55, 132) == 2
    assert parts_in_waves(102, 132, 132) == 1
    assert parts_in_waves(8, 10, 132) == 1


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("number", range(13))
@pytest.mark.parametrize("name", LARGE)
def test_all_schedules_compile_with_few_registers_spilled(
    name: str, number: int, tmp_path: Path
) -> None:
    """None but where several blocks share a multiprocessor's registers and rows are summed as well: eight at most. And
    those of threads that prepare a part of the keys: ten."""
    function, inputs = LARGE[name]
    ((_, analysis),) = found_in(function, *inputs)
    found = schedules(analysis, DEVICE)
    if number >= len(found):
        pytest.skip("there are fewer")
    candidate = generate(analysis, found[number], DEVICE)
    assert isinstance(candidate, Candidate)
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    given = found[number].only()
    most = 40 if given["relay"] and given["parts"] != 1 else 32
    assert all(kernel["spill_store_bytes"] <= most for kernel in built.facts.values())
