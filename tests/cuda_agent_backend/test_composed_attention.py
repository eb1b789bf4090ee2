"""Attention that torch takes apart, as with grouped queries in float32: one region, one kernel, right as in eager."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import cuda_emulator
import pytest
import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.inductor_prims import prepare_softmax_online
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from cuda_agent_backend.codegen.api import analyse, generate, schedules
from cuda_agent_backend.codegen.covered_task import Analysis
from cuda_agent_backend.codegen.cuda.attention.float32.writer import CudaAttention
from cuda_agent_backend.codegen.cuda.attention.half.writer import CudaHalfAttention
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.graph.strides import moved, reshaped, shared, single, steps_of
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.partition.regions import partition
from sandbox.accuracy.oracle import run_oracle
from sandbox.accuracy.rule import compare
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.disassembly import count_instructions, find_disassembler
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.graph.build import build_graph
from sandbox.plan.candidate import Candidate

DEVICE = DeviceFacts()
INFINITY, NAN = float("inf"), float("nan")
Function = Callable[..., Tensor]


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def grouped(**how: Any) -> Function:
    """As torch has it where no library's kernel takes the arguments."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, *mask, enable_gqa=True, **how)

    return attend


def by_hand(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
    """As models write it: heads are repeated, scores are divided, and no row is guarded."""
    many = (q.shape[1] // k.shape[1], *k.shape[2:])
    k, v = (x[:, :, None].expand(-1, -1, *many).reshape(len(x), -1, *many[1:]) for x in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) / 8
    for one in mask:
        scores = scores + one
    return torch.matmul(torch.softmax(scores, -1), v)


def capped(cap: float, hidden: bool = False) -> Function:
    """Scores within a bound, as some models have them."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(2, 3)) * 0.25
        scores = sum(mask, torch.tanh(scores / cap) * cap)
        if hidden:
            later = torch.ones(scores.shape[-2:]).tril() == 0
            scores = scores.masked_fill(later, -INFINITY)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
        return torch.matmul(weights, v)

    return attend


def graph_on_cuda(function: Function, *inputs: Tensor) -> Graph:
    """The graph as on a GPU, which need not be there."""
    graph = make_fx(function, select_decomp_table(), "fake")(*inputs).graph
    graph.eliminate_dead_code()
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            with value.fake_mode:  # type: ignore[attr-defined]
                node.meta["val"] = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device="cuda"
                )
        node.kwargs = {
            n: torch.device("cuda") if n == "device" else v for n, v in node.kwargs.items()
        }
    return graph


Found = tuple[Region, Canonical, CudaAttention | CudaHalfAttention]


def attentions(function: Function, *inputs: Tensor) -> list[Found]:
    """Those that are one kernel."""
    found = []
    for region in partition(graph_on_cuda(function, *inputs)):
        made = canonical(region.nodes, region.outputs, "cuda")
        assert isinstance(made, Canonical), made
        analysis = analyse(made.task)
        if isinstance(analysis, CudaAttention | CudaHalfAttention):
            found.append((region, made, analysis))
    return found


A = TypeVar("A", CudaAttention, CudaHalfAttention)


def analysed_as(
    kind: type[A], function: Function, inputs: tuple[Tensor, ...]
) -> tuple[A, list[Tensor]]:
    """The one attention, and what of the inputs it reads in its order."""
    ((region, made, analysis),) = attentions(function, *inputs)
    assert isinstance(analysis, kind), analysis
    names = [n.name for n in region.nodes[0].graph.find_nodes(op="placeholder")]
    given = dict(zip(names, inputs, strict=True))
    return analysis, [given[node.name] for node in made.inputs]


def analysed(function: Function, *inputs: Tensor) -> tuple[CudaAttention, list[Tensor]]:
    return analysed_as(CudaAttention, function, inputs)


def emulated(analysis: CudaAttention, number: int, folder: Path, inputs: list[Tensor]) -> Tensor:
    source, plan = analysis.emit(schedules(analysis, DEVICE)[number], DEVICE)
    (found,) = cuda_emulator.run(source, plan, inputs, folder)
    return found


def eager(analysis: Analysis, inputs: list[Tensor]) -> Tensor:
    module = build_graph(replace(analysis.task, target="cpu"))
    (found,) = module(*inputs)
    assert isinstance(found, Tensor)
    return found


def wide(analysis: Analysis, inputs: list[Tensor]) -> Tensor:
    """As the judge's oracle has it."""
    task = replace(analysis.task, target="cpu")
    return run_oracle(task, build_graph(task), inputs).outputs[0]


def heads(count: int, shared_by: int, queries: int, keys: int, size: int) -> tuple[Tensor, ...]:
    few = (1, count // shared_by, keys, size)
    return randn(1, count, queries, size), randn(*few), randn(*few) + 0.1


def tokens(batches: int, length: int, size: int) -> tuple[Tensor, ...]:
    """Four heads of queries and two of keys and values, as views of projections."""
    shapes = ((batches, length, n, size) for n in (4, 2, 2))
    return tuple(randn(*shape).transpose(1, 2) for shape in shapes)


CASES: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "two share a head": (grouped(), heads(4, 2, 67, 67, 64)),
    "four share a head": (grouped(), heads(8, 4, 45, 71, 64)),
    "eight share a head": (grouped(), heads(8, 8, 45, 45, 128)),
    "all share one, batches": (grouped(), (randn(2, 4, 47, 64), randn(2, 1, 47, 64), randn(2, 1, 47, 64))),
    "causal": (grouped(is_causal=True), heads(4, 2, 133, 133, 64)),
    "causal, large heads": (grouped(is_causal=True), heads(4, 4, 67, 67, 128)),
    "causal, more keys": (grouped(is_causal=True), heads(8, 4, 35, 101, 64)),
    "causal, fewer keys": (grouped(is_causal=True), heads(8, 4, 101, 35, 64)),
    "tokens before heads": (grouped(is_causal=True), tokens(2, 67, 64)),
    "heads of 40, scaled": (grouped(scale=0.3), tokens(2, 67, 40)),
    "mask that is added": (grouped(), (*heads(4, 2, 67, 67, 64), randn(67, 67))),
    "mask for each head": (grouped(), (*heads(4, 2, 67, 67, 64), randn(1, 4, 67, 67))),
    "mask of keys": (grouped(), (*tokens(2, 67, 64), randn(2, 1, 1, 67))),
    "scores with a bound": (capped(3.0), heads(4, 1, 67, 67, 64)),
    "scores with a bound, causal": (capped(3.0, True), heads(4, 1, 133, 133, 128)),
    "scores with a bound and a mask": (capped(0.5), (*heads(4, 1, 67, 67, 64), randn(67, 67))),
    "by hand": (by_hand, heads(4, 2, 67, 67, 64)),
    "by hand, with a mask": (by_hand, (*heads(4, 2, 67, 67, 64), randn(67, 67))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_torch_takes_apart_is_one_kernel_as_accurate_as_eager(
    name: str, tmp_path: Path
) -> None:
    function, inputs = CASES[name]
    analysis, own = analysed(function, *inputs)
    assert (
        analysis.form.heads // analysis.form.shared_heads
        == inputs[0].shape[1] // inputs[1].shape[1]
    )
    assert [x.shape for x in own[:1]] == [inputs[0].shape] and inputs[1].shape in {
        x.shape for x in own
    }
    got = emulated(analysis, 0, tmp_path, own)
    report = compare([got], [eager(analysis, own)], [wide(analysis, own)])
    assert report.passes, report.reason
    torch.testing.assert_close(
        got.view(-1), function(*inputs).reshape(-1), rtol=1e-4, atol=1e-5, check_stride=False
    )


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("size", [64, 128])
def test_all_schedules_compute_the_same(size: int, number: int, tmp_path: Path) -> None:
    analysis, own = analysed(grouped(is_causal=True), *heads(2, 2, 100, 100, size))
    if number >= len(schedules(analysis, DEVICE)):
        pytest.skip("there are fewer")
    got = emulated(analysis, number, tmp_path, own)
    report = compare([got], [eager(analysis, own)], [wide(analysis, own)])
    assert report.passes, report.reason


@pytest.mark.parametrize("number", [0, 5])
@pytest.mark.parametrize("how", [{}, {"is_causal": True}], ids=["all keys", "causal"])
def test_what_is_not_finite_is_as_in_eager(
    how: dict[str, Any], number: int, tmp_path: Path
) -> None:
    """Also where it belongs to keys that a query does not see: minus infinity is added to what they score."""
    q, k, v = (x.clone() for x in heads(8, 2, 100, 100, 64))
    q[0, 0, 5, 2], k[0, 1, 96, 0], v[0, 2, 90, 4], v[0, 3, 7, 5] = NAN, INFINITY, INFINITY, NAN
    q[0, 1, 11], k[0, 0, 50, 3] = 3e38, 3.4e38
    analysis, own = analysed(grouped(**how), q, k, v)
    want = eager(analysis, own)
    assert want[2:6].isnan().any() and want[6:].isfinite().any()
    got = emulated(analysis, number, tmp_path, own)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-5)


def beyond_a_bound(length: int, infinite: int, none: int, dtype: torch.dtype) -> list[Tensor]:
    """Four heads of which one has products that overflow, two have keys with an infinity or without a number, and one a
    value that is infinite; of those keys the numbers are given."""
    q, k, v = (x.to(dtype) for x in map(Tensor.clone, heads(4, 1, length, length, 64)))
    q[0, 0, 5], k[0, 1, infinite, 0], k[0, 2, none, 3], v[0, 3, 7, 5] = 0.0, INFINITY, NAN, INFINITY
    q[0, 0, 5, 4] = 3e38
    return [q, k, v]


@pytest.mark.parametrize(("dtype", "kernels"), [(torch.float32, 1), (torch.float16, 0)])
def test_large_bounds_are_for_tangents_of_float32(dtype: torch.dtype, kernels: int) -> None:
    q, k, v = (x.to(dtype) for x in heads(4, 1, 67, 67, 64))
    assert len(attentions(capped(1024.0), q, k, v)) == 1
    assert len(attentions(capped(1e6), q, k, v)) == kernels


def test_factors_whose_product_float32_does_not_hold_stay_as_they_are() -> None:
    """Each by itself is one that a kernel takes; of all together it would make an infinite score."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.tanh(torch.matmul(q, k.transpose(2, 3)) * 1e-8)
        for _ in range(5):
            scores = scores * 1e8
        return torch.matmul(scores.softmax(-1), v)

    assert attentions(attend, *heads(4, 1, 67, 67, 64)) == []


@pytest.mark.parametrize("number", [0, 5])
@pytest.mark.parametrize("hidden", [False, True], ids=["all keys", "causal"])
def test_a_bound_holds_where_products_overflow(hidden: bool, number: int, tmp_path: Path) -> None:
    """An infinite product's score is the bound, that of none is none, whatever is added to hide it."""
    given = beyond_a_bound(133, 120, 100, torch.float32)
    analysis, own = analysed(capped(3.0, hidden), *given)
    assert analysis.form.cap == 3.0
    got, want = emulated(analysis, number, tmp_path, own), eager(analysis, own)
    assert want[:2].isfinite().all() and want[2].isnan().any() and want[3].isinf().any()
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("number", [0, 5])
@pytest.mark.parametrize("scale", [0.1, 2.0], ids=["tiles left out", "all tiles"])
@pytest.mark.parametrize(
    ("part", "what"), [(1, NAN), (1, INFINITY), (1, 1e38), (2, NAN), (2, -INFINITY)]
)
def test_what_lies_in_tiles_that_no_query_sees_counts_as_in_eager(
    part: int, what: float, scale: float, number: int, tmp_path: Path
) -> None:
    """A score that is no number, and minus infinity added, is none; a weight of zero times infinity is none."""
    inputs = [x.clone() for x in heads(4, 2, 133, 200, 64)]
    inputs[part][0, 1, 190, 7] = what
    inputs[0][0, 2, 20:30] *= 1e3 if what == 1e38 else 1
    analysis, own = analysed(grouped(is_causal=True, scale=scale), *inputs)
    skips = "skips = true" in analysis.emit(schedules(analysis, DEVICE)[number], DEVICE)[0]
    assert skips is (scale < 1)
    got, want = emulated(analysis, number, tmp_path, own), eager(analysis, own)
    assert want[2].isnan().any() and not want[:2].isnan().any()
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("number", [0, 5])
@pytest.mark.parametrize(
    ("function", "value"), [(grouped(), 0.0), (by_hand, NAN)], ids=["torch", "by hand"]
)
def test_a_row_of_masked_keys_is_what_eager_gives(
    function: Function, value: float, number: int, tmp_path: Path
) -> None:
    mask = torch.zeros(67, 67)
    mask[3], mask[40:, 60:], mask[66, :66] = -INFINITY, -INFINITY, -INFINITY
    analysis, own = analysed(function, *heads(4, 2, 67, 67, 64), mask)
    got = emulated(analysis, number, tmp_path, own)
    want = eager(analysis, own)
    assert torch.equal(want[:, 3].nan_to_num(7), torch.full_like(want[:, 3], value).nan_to_num(7))
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-5)


def test_a_boolean_mask_is_made_numbers_beside_it() -> None:
    inputs = (*heads(4, 2, 67, 67, 64), randn(67, 67) > 0)
    ((region, _, analysis),) = attentions(grouped(), *inputs)
    form = analysis.form
    assert form.mask is not None and not form.causal
    assert any(node.name.startswith("where") for node in region.inputs)


def triangle() -> Tensor:
    return torch.ones(67, 67).tril()


def filling(fill: float, made: Callable[[], Tensor] | None = None) -> Function:
    """By hand, with scores of hidden keys filled; made: the mask that hides where it is no input."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *masks: Tensor) -> Tensor:
        hidden, *bias = (made(), *masks) if made else masks
        scores = sum(bias, torch.matmul(q, k.transpose(2, 3)) / 8)
        return torch.matmul(torch.softmax(scores.masked_fill(hidden, fill), -1), v)

    return attend


def choosing(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    scores = torch.where(seen, torch.matmul(q, k.transpose(2, 3)) * 0.2, -INFINITY)
    return torch.matmul(torch.softmax(scores, -1), v)


FILLED: dict[str, tuple[Function, tuple[Tensor, ...], bool]] = {
    "a triangle of ones": (filling(-INFINITY, lambda: triangle() == 0), (), True),
    "a triangle above": (filling(-INFINITY, lambda: torch.ones(67, 67).triu(1).bool()), (), True),
    "a triangle and a bias": (
        filling(-INFINITY, lambda: ~triangle().bool()), (randn(1, 4, 67, 67),), True,
    ),
    "a triangle, and a number": (filling(-1e9, lambda: triangle() == 0), (), True),
    "the other triangle": (filling(-INFINITY, lambda: triangle() == 1), (), False),
    "a window": (filling(-INFINITY, lambda: triangle().triu(-9) == 0), (), False),
    "a triangle that is given": (filling(-INFINITY), (triangle() == 0,), False),
    "keys that are hidden": (filling(-1e9), ((randn(1, 1, 1, 67) > 0.5),), False),
    "keys that are seen": (choosing, ((randn(1, 1, 1, 67) < 0.5),), False),
}  # fmt: skip


@pytest.mark.parametrize("number", [0, 5])
@pytest.mark.parametrize("name", FILLED)
def test_scores_that_are_filled_are_no_more_in_memory(
    name: str, number: int, tmp_path: Path
) -> None:
    function, masks, causal = FILLED[name]
    inputs = (*heads(4, 1, 67, 67, 64), *masks)
    ((region, made, analysis),) = attentions(function, *inputs)
    assert isinstance(analysis, CudaAttention)
    assert analysis.form.causal is causal and analysis.form.fill is not None
    known = {n.name: x for n, x in zip(_placeholders(region), inputs, strict=True)}
    given = [known[n.name] if n.name in known else _constant(n) for n in made.inputs]
    got = emulated(analysis, number, tmp_path, given)
    report = compare([got], [eager(analysis, given)], [wide(analysis, given)])
    assert report.passes, report.reason
    want = function(*inputs).reshape(got.shape)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)


def _placeholders(region: Region) -> list[Node]:
    return list(region.nodes[0].graph.find_nodes(op="placeholder"))


def _constant(node: Node) -> Tensor:
    """What a graph on cuda makes of nothing that is given, on the cpu."""
    values = {read: _constant(read) for read in node.all_input_nodes}
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    return node.target(*args, **{**kwargs, **({"device": "cpu"} if "device" in kwargs else {})})  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize("number", [0, 5])
@pytest.mark.parametrize("fill", [-INFINITY, -1e9])
def test_what_is_filled_hides_what_is_not_finite_but_for_values(
    fill: float, number: int, tmp_path: Path
) -> None:
    """A score is replaced whatever it was; a weight of zero times infinity is none."""
    q, k, v = (x.clone() for x in heads(4, 1, 133, 133, 64))
    k[0, 1, 120, 0], v[0, 2, 90, 4], q[0, 3, 11, 2] = NAN, INFINITY, NAN
    hidden = filling(fill, lambda: torch.ones(133, 133).tril() == 0)
    analysis, own = analysed(hidden, q, k, v)
    got, want = emulated(analysis, number, tmp_path, own), eager(analysis, own)
    assert want[1, :120].isfinite().all() and want[2, :, 4].isnan().any()
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fill", [-INFINITY, -1e9])
def test_a_row_of_filled_scores_is_what_eager_gives(fill: float, tmp_path: Path) -> None:
    mask = torch.zeros(67, 67, dtype=torch.bool)
    mask[3], mask[40:, 60:] = True, True
    analysis, own = analysed(filling(fill), *heads(4, 1, 67, 67, 64), mask)
    got, want = emulated(analysis, 0, tmp_path, own), eager(analysis, own)
    assert want[:, 3].isnan().all() == (fill == -INFINITY)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fill", [INFINITY, NAN])
def test_scores_that_are_filled_with_no_number_make_none(fill: float, tmp_path: Path) -> None:
    mask = torch.zeros(67, 67, dtype=torch.bool)
    mask[3, 5] = True
    analysis, own = analysed(filling(fill), *heads(4, 1, 67, 67, 64), mask)
    got, want = emulated(analysis, 0, tmp_path, own), eager(analysis, own)
    assert want[:, 3].isnan().all() and want[:, 4:].isfinite().all()
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-5)


def with_softmax_joined(graph: Graph) -> Graph:
    """The graph with maximum and sum by one operator, as Inductor has them on GPUs."""
    (highest,) = graph.find_nodes(op="call_function", target=torch.ops.aten.amax.default)
    (total,) = graph.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList)
    with graph.inserting_before(highest):
        joined = graph.call_function(prepare_softmax_online, (highest.args[0], -1))
        joined.meta["val"] = (highest.meta["val"], total.meta["val"])
        for number, node in enumerate((highest, total)):
            part = graph.call_function(operator.getitem, (joined, number))
            part.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(part)
    for node in (total, highest):
        graph.erase_node(node)
    return graph


@pytest.mark.parametrize("function", [grouped(), by_hand], ids=["guarded", "by hand"])
def test_inductors_softmax_for_gpus_is_one(function: Function) -> None:
    q, k = randn(2, 8, 40, 64), randn(2, 2, 48, 64)
    (region,) = partition(with_softmax_joined(graph_on_cuda(function, q, k, k + 1)))
    made = canonical(region.nodes, region.outputs, "cuda")
    assert isinstance(made, Canonical) and len(made.inputs) == 3
    analysis = analyse(made.task)
    assert isinstance(analysis, CudaAttention)
    form = analysis.form
    assert form.batches * form.heads == 16
    assert form.shared_heads == 4


def test_what_lies_elsewhere_is_no_mask() -> None:
    q, k = randn(1, 8, 64, 64), randn(1, 2, 64, 64)
    graph = graph_on_cuda(by_hand, q, k, k + 1, torch.zeros(()))
    (mask,) = (n for n in graph.find_nodes(op="placeholder") if not n.meta["val"].dim())
    with mask.meta["val"].fake_mode:
        mask.meta["val"] = torch.zeros(())
    products = [n for n in graph.nodes if n.target is torch.ops.aten.bmm.default]
    assert not any({*products} <= {*region.nodes} for region in partition(graph))


def test_what_is_beside_the_attention_is_not_of_it() -> None:
    """Copies that something else needs are read as they are; scores that something else needs are in memory anyway."""
    attend = grouped()

    def kept(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        k = k.repeat_interleave(2, 1)
        return attend(q, k, v.repeat_interleave(2, 1)), k * 2

    def scored(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        scores = q @ k.transpose(2, 3)
        return scores.softmax(-1) @ v, scores

    inputs = heads(4, 2, 67, 67, 64)
    assert len(attentions(kept, *inputs)) == 1
    assert attentions(scored, *heads(4, 1, 67, 67, 64)) == []


def halves(*shape: int) -> tuple[Tensor, Tensor]:
    return randn(*shape).half(), (randn(*shape) * 2).half()


def softened(shape: tuple[int, ...], **how: Any) -> Function:
    """Attention whose scores are softened in another shape, or made in another way."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
        scores = torch.bmm(q, k.transpose(1, 2), **how)
        seen = scores.view(shape)
        weights = torch.softmax(sum(mask, seen), -1)
        return torch.bmm(weights.view(scores.shape), v)

    return attend


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (grouped(), heads(4, 2, 8, 300, 64)),
        (grouped(), heads(4, 2, 20, 20, 64)),
        (grouped(), heads(4, 2, 67, 67, 264)),
        (grouped(), heads(4, 2, 67, 67, 60)),
        (lambda q, k, v: (q @ k.transpose(2, 3)).softmax(-2) @ v, heads(4, 1, 67, 67, 64)),
        (lambda q, k, v: (q @ k.transpose(2, 3) * -1.0).softmax(-1) @ v, heads(4, 1, 67, 67, 64)),
        (softened((4, 64, 4, 32)), (randn(4, 64, 64), randn(4, 128, 64), randn(4, 128, 64))),
        (softened((4, 128, 64)), (randn(4, 64, 64), randn(4, 128, 64), randn(4, 128, 64), randn(64))),
        (softened((4, 64, 64), out_dtype=torch.float32), (*halves(4, 64, 64), randn(4, 64, 64))),
        (softened((4, 128, 128)), (randn(4, 128, 0), randn(4, 128, 0), randn(4, 128, 64))),
    ],
    ids=["few queries", "small", "large heads", "uneven heads", "columns", "negative",
         "groups of keys", "other rows", "of halves", "no features"],
)  # fmt: skip
def test_other_products_stay_apart(function: Function, inputs: tuple[Tensor, ...]) -> None:
    assert attentions(function, *inputs) == []


def test_only_the_mask_that_hides_later_keys_is_causal() -> None:
    def masked(offset: int, seen: bool) -> Function:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mask = torch.ones(67, 67, dtype=torch.bool)
            return grouped()(q, k, v, mask.tril(offset) if seen else ~mask.triu(offset))

        return attend

    inputs = heads(4, 2, 67, 67, 64)
    ((*_, analysis),) = attentions(masked(0, True), *inputs)
    assert analysis.form.causal and analysis.form.all_keys and analysis.form.mask is None
    ((*_, analysis),) = attentions(masked(1, False), *inputs)
    assert analysis.form.causal
    for other in (masked(1, True), masked(-1, True), masked(0, False)):
        ((*_, analysis),) = attentions(other, *inputs)
        assert not analysis.form.causal and analysis.form.mask is not None


def test_steps_of_views_that_no_strided_tensor_is() -> None:
    steps = reshaped((*steps_of((2, 3), (15, 5)), ((4, 0),), *steps_of((5, 1), (1, 1))), (2, 12, 5))
    assert steps is not None and shared(steps[1]) == 4 and single(steps[1]) is None
    back = reshaped(steps, (6, 4, 5))
    assert back is not None and [single(dim) for dim in back] == [5, 0, 1]
    assert reshaped(steps_of((6,), (1,)), (2, 3)) == (((2, 3),), ((3, 1),))
    assert reshaped(steps_of((6, 5), (7, 1)), (10, 3)) is None
    assert reshaped((), ()) == () and single(()) == 0 and shared(((2, 3),)) == 1
    graph = make_fx(lambda x: x.permute(1, 0).unsqueeze(1).expand(3, 4, 2), tracing_mode="fake")(
        randn(2, 3)
    ).graph
    own = steps_of((2, 3), (3, 1))
    for node in graph.nodes:
        if node.op == "call_function":
            own = moved(own, node)  # type: ignore[assignment]
    assert own == (((3, 1),), ((4, 0),), ((2, 3),))


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("size", [64, 128])
def test_all_schedules_compile_without_spilling(size: int, number: int, tmp_path: Path) -> None:
    analysis, _ = analysed(grouped(is_causal=True), *heads(4, 2, 300, 300, size))
    assert_compiles(analysis, number, tmp_path)


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("size", [64, 128])
def test_scores_with_a_bound_compile_and_spill_little(
    size: int, number: int, tmp_path: Path
) -> None:
    analysis, _ = analysed(capped(50.0, True), *heads(4, 1, 300, 300, size))
    assert_compiles(analysis, number, tmp_path, 16)


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("number", [0, 5])
def test_masks_of_booleans_compile_and_spill_no_more_than_numbers(
    number: int, tmp_path: Path
) -> None:
    mask = torch.ones(300, 300, dtype=torch.bool)
    analysis, _ = analysed(filling(-1e9), *heads(4, 1, 300, 300, 64), mask)
    assert_compiles(analysis, number, tmp_path, 136)


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.skipif(isinstance(find_disassembler("cuda"), Missing), reason="no nvdisasm")
def test_no_product_is_left_out_where_the_loop_over_keys_has_one_turn(tmp_path: Path) -> None:
    """On a GPU one half of the results had nothing of the first tile: the compiler took those products for dead."""
    found = set()
    for length in (45, 70, 300):
        analysis, _ = analysed(grouped(), *heads(8, 8, length, length, 128))
        candidate = generate(analysis, schedules(analysis, DEVICE)[0], DEVICE)
        assert isinstance(candidate, Candidate)
        built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
        assert isinstance(built, Compiled), built
        counts = count_instructions(built.path, "cuda")
        assert not isinstance(counts, Missing), counts
        found.add(counts["k0"]["tensor core products"])
    assert len(found) == 1


def assert_compiles(
    analysis: CudaAttention, number: int, tmp_path: Path, spilled: int = 12
) -> None:
    found = schedules(analysis, DEVICE)
    if number >= len(found):
        pytest.skip("there are fewer")
    candidate = generate(analysis, found[number], DEVICE)
    assert isinstance(candidate, Candidate)
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    # three registers of two kernels for heads of 64 are stored once
    assert all(kernel["spill_store_bytes"] <= spilled for kernel in built.facts.values())
