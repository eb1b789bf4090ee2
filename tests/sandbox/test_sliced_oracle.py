"""The oracle in slices is the oracle: the same numbers, whatever is cut, and less memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from sandbox.accuracy.oracle import _interpreter, run_written_out, widen
from sandbox.accuracy.report import AccuracyReport
from sandbox.accuracy.rule import Draw, compare_draws
from sandbox.accuracy.sliced_oracle import SlicedOracle
from sandbox.accuracy.written_out import written_out

aten: Any = torch.ops.aten
BUDGET = 1 << 10


def graph_of(call: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = call(*tensors)
        return tuple(found) if isinstance(found, tuple | list) else (found,)

    return make_fx(flat, tracing_mode="fake", decomposition_table={})(*inputs)


def put_together(
    oracle: SlicedOracle, like: list[torch.Tensor], *inputs: torch.Tensor
) -> list[Any]:
    found = [torch.full_like(tensor, 77) for tensor in like]
    for piece in oracle.pieces(inputs):
        piece.of(found[piece.number]).copy_(piece.oracle)
    return found


def softmax(x: torch.Tensor) -> Any:
    return aten._softmax.default(x, -1, False)


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    flat = aten.view.default(x, [x.shape[0] * x.shape[1], x.shape[2]])
    made = aten.addmm.default(b, flat, aten.permute.default(w, [1, 0]))
    return aten.view.default(made, [x.shape[0], x.shape[1], w.shape[0]])


def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
    return aten.mean.default(aten.pow.Tensor_Scalar(aten.sub.Tensor(x, y), 2))


def scaled(x: torch.Tensor) -> Any:
    total = aten.sum.dim_IntList(aten.mul.Tensor(x, x), [0, 1])
    return aten.div.Tensor(x, aten.sqrt.default(total))


def norm(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    variance, mean = aten.var_mean.correction(x, [1], correction=0, keepdim=True)
    made = aten.mul.Tensor(
        aten.sub.Tensor(x, mean), aten.rsqrt.default(aten.add.Tensor(variance, 1e-5))
    )
    return aten.mul.Tensor(made, w), aten.squeeze.dim(mean, 1)


def grouped(x: torch.Tensor) -> Any:
    view = aten.view.default(x, [x.shape[0], 2, x.shape[1] // 2, x.shape[2]])
    least = aten.amin.default(view, [2, 3], True)
    return aten.view.default(aten.sub.Tensor(view, least), list(x.shape))


def selected(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = aten.topk.default(x, 3)
    return values, places


def entropy(x: torch.Tensor, at: torch.Tensor) -> Any:
    return aten.neg.default(
        aten.mean.default(aten.gather.default(aten._log_softmax.default(x, 1, False), 1, at))
    )


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    score = aten.bmm.default(q, aten.transpose.int(k, 1, 2))
    return aten.bmm.default(softmax(score), v)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "pointwise": (lambda x, b: aten.mul.Tensor(aten.sigmoid.default(x), b), (draw(40, 30), draw(30))),
    "half": (
        lambda x: aten.exp.default(aten._to_copy.default(x, dtype=torch.float32)),
        (draw(900, dtype=torch.bfloat16),),
    ),
    "column": (lambda x, b: aten.add.Tensor(x, b), (draw(40, 30), draw(40, 1))),
    "strides": (lambda x: aten.neg.default(aten.permute.default(x, [2, 0, 1])), (draw(12, 9, 8),)),
    "softmax": (softmax, (draw(50, 20),)),
    "softmax of columns": (lambda x: aten._softmax.default(x, 0, False), (draw(20, 50),)),
    "linear": (linear, (draw(20, 6, 10), draw(12, 10), draw(12))),
    "loss": (loss, (draw(60, 20), draw(60, 20))),
    "loss of one line": (loss, (draw(2000), draw(2000))),
    "largest": (lambda x: (aten.amax.default(x), aten.amin.default(x, [0])), (draw(50, 30),)),
    "whole scale": (scaled, (draw(50, 30),)),
    "norm": (norm, (draw(60, 20), draw(20))),
    "groups": (grouped, (draw(10, 8, 15),)),
    "top": (selected, (draw(60, 12),)),
    "attention": (attention, (draw(8, 9, 4), draw(8, 9, 4), draw(8, 9, 4))),
    "convolution": (
        lambda x, w: aten.convolution.default(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        (draw(6, 3, 9, 9), draw(4, 3, 3, 3)),
    ),
    "pooling": (lambda x: aten.avg_pool2d.default(x, [2, 2]), (draw(5, 6, 8, 8),)),
    "embedding": (lambda w, at: aten.embedding.default(w, at), (draw(30, 8), torch.arange(90).view(30, 3) % 30)),
    "scan": (lambda x: aten.cumsum.default(x, 1), (draw(30, 20),)),
    "scan of columns": (lambda x: aten.cumsum.default(x, 0), (draw(30, 20),)),
    "joined": (lambda x, y: aten.cat.default([x, y], 1), (draw(30, 10), draw(30, 14))),
    "expanded": (lambda x: aten.expand.default(aten.unsqueeze.default(x, 1), [30, 5, 10]), (draw(30, 10),)),
    "filled": (lambda x: aten.add.Tensor(aten.full.default([40, 20], 2.0), x), (draw(20),)),
    "counted": (lambda x: aten.any.default(aten.gt.Scalar(x, 3.0)), (draw(60, 30),)),
    "no rule": (lambda x: aten.roll.default(x, [3], [0]), (draw(60, 30),)),
    "product": (lambda x, y: aten.mm.default(x, y), (draw(40, 20), draw(20, 30))),
    "square": (lambda x: aten.mm.default(x, x), (draw(30, 30),)),
    "reversed": (lambda x: torch.ops.prims.rev(x, [1]), (draw(60, 30),)),
    "split": (
        lambda x: aten.mul.Tensor(*aten.split.Tensor(x, 16, 1)),
        (draw(60, 32),),
    ),
    "uneven split": (lambda x: tuple(aten.split.Tensor(x, 20, 1)), (draw(60, 50),)),
    "looked up": (lambda x, at: aten.index.Tensor(x, [None, at]), (draw(40, 30, 9), torch.arange(24).view(6, 4))),
    "looked up first": (
        lambda x, at: aten.neg.default(aten.index.Tensor(x, [at])),
        (draw(40, 30), torch.arange(90).view(45, 2) % 40),
    ),
    "two indices": (
        lambda x, at, to: aten.index.Tensor(x, [at, to]),
        (draw(40, 30, 8), torch.arange(50).view(50, 1) % 40, torch.arange(3)),
    ),
    "cross entropy": (entropy, (draw(64, 50), torch.arange(64).view(64, 1) % 50)),
    "moments": (lambda x: aten.sub.Tensor(x, aten.var_mean.correction(x, [1, 2], keepdim=True)[1]), (draw(9, 8, 40),)),
    "deviation of columns": (lambda x: aten.var.correction(x, [0]), (draw(300, 6),)),
    "two sizes": (lambda x, y: (aten.neg.default(x), aten.neg.default(y)), (draw(60, 30), draw(25, 40))),
    "one slice": (lambda x: aten.neg.default(x), (draw(1, 1, 700),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_slices_put_together_are_the_oracle(name: str) -> None:
    call, inputs = CASES[name]
    module = graph_of(call, *inputs)
    oracle = SlicedOracle(module, BUDGET)
    wanted = list(_interpreter(module, set()).run(*map(widen, inputs)))
    found = put_together(oracle, wanted, *inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert oracle.narrow == set()


WHOLE = {"no rule", "square", "embedding", "filled", "joined"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in WHOLE])
def test_what_has_rules_is_cut(name: str) -> None:
    call, inputs = CASES[name]
    module = graph_of(call, *inputs)
    assert SlicedOracle(module, BUDGET).held_bytes < SlicedOracle(module, 1 << 40).held_bytes


@pytest.mark.parametrize(
    ("shape", "call", "wanted"),
    [
        ((40, 10, 9), torch.sin, 0),
        ((40, 10, 9), lambda x: aten.permute.default(torch.sin(x), [2, 1, 0]), 2),
        ((40, 10, 9), lambda x: softmax(x.sin().transpose(0, 2)), 1),
        ((4, 20, 30), torch.sin, 1),
        ((40, 300, 3), torch.sin, 1),
    ],
    ids=["rows", "columns of a transpose", "not along what is needed whole", "few", "long rows"],
)
def test_it_is_cut_along_the_outermost_dimension_whose_slices_fit(
    shape: tuple[int, ...], call: Callable[[torch.Tensor], torch.Tensor], wanted: int
) -> None:
    """By another one a slice is many pieces of memory, and what is copied for it takes many times as long."""
    oracle = SlicedOracle(graph_of(call, torch.randn(shape)), 2 * BUDGET)
    assert oracle.dims == [wanted]


def test_outputs_that_are_not_wanted_are_not_computed() -> None:
    call, inputs = CASES["top"]
    oracle = SlicedOracle(graph_of(call, *inputs), BUDGET, without={1})
    assert {piece.number for piece in oracle.pieces(inputs)} == {0}


def test_a_comparison_says_the_same_of_pieces_as_of_the_whole() -> None:
    call, inputs = CASES["norm"]
    module = graph_of(call, *inputs)
    exact = call(*(widen(tensor) for tensor in inputs))
    eager = [tensor.float() for tensor in exact]
    oracle = SlicedOracle(module, BUDGET)

    def reports(*found: torch.Tensor) -> list[AccuracyReport]:
        def nearby() -> Iterator[Any]:
            yield [tensor * (1 + 1e-7) for tensor in eager], list(exact)

        def in_pieces() -> Iterator[Any]:
            yield [tensor * (1 + 1e-7) for tensor in eager], oracle.pieces(inputs)

        whole = compare_draws([Draw(found, eager, exact)], nearby)
        cut = Draw(found, eager, [], pieces=lambda: oracle.pieces(inputs))
        return [whole, compare_draws([cut], in_pieces)]

    first, second = eager
    spoilt, lost = first.clone(), second.clone()
    spoilt[37, 11] += 0.1
    lost[5] = math.nan
    for found in (eager, [spoilt, second], [first, lost], [first * 1.001, second]):
        whole, cut = reports(*found)
        assert cut.passes == whole.passes == (found is eager)
        for one, other in zip(whole.outputs, cut.outputs, strict=True):
            assert (one.passes, one.reason) == (other.passes, other.reason)
            assert other.rms_error == pytest.approx(one.rms_error, rel=1e-9)
            assert other.max_allowed == pytest.approx(one.max_allowed, rel=1e-9)
            if one.misses is not None and other.misses is not None and one.misses.count:
                assert other.misses.first[0].index == one.misses.first[0].index


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_so_in_slices(value: float) -> None:
    x = draw(50, 30)
    x[31, 7] = value
    for call in (scaled, lambda x: aten.mean.default(x), lambda x: aten.amax.default(x)):
        wanted = [call(x.double())]
        oracle = SlicedOracle(graph_of(call, x), BUDGET)
        torch.testing.assert_close(put_together(oracle, wanted, x), wanted, equal_nan=True)


def test_what_is_written_out_comes_beside_it() -> None:
    x = draw(60, 20)
    x[11, 3] = math.inf
    module = graph_of(norm, x, draw(20))
    other = written_out(module)
    assert other is not None
    wanted = run_written_out(module, [x, draw(20)])
    found = [torch.zeros_like(tensor) for tensor in wanted]
    for piece in SlicedOracle(module, BUDGET, other).pieces([x, draw(20)], written_out=True):
        assert piece.written_out is not None
        piece.of(found[piece.number]).copy_(piece.written_out)
    torch.testing.assert_close(found, wanted, equal_nan=True)


def test_a_full_device_is_not_taken_for_an_operator_without_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sandbox.accuracy import oracle as module_under_test

    def full(*args: Any, **kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    call, inputs = CASES["pointwise"]
    graph = graph_of(call, *inputs)
    node = next(n for n in graph.graph.nodes if n.op == "call_function")
    node.target = full
    monkeypatch.setattr(module_under_test, "_attention_in", lambda *_: None)
    narrow: set[str] = set()
    with pytest.raises(torch.OutOfMemoryError):
        module_under_test.call_wide(node, ((inputs[0].double(),), {}), lambda n: n, narrow)
    assert narrow == set()
