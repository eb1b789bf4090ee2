"""The float64 oracle and the rules for index outputs."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from judge_kit import row_mean_and_argmax, silu_bias, spec

from sandbox.accuracy.oracle import (
    Oracle,
    _attention,
    exact_operands,
    position_rules,
    run_eager,
    run_oracle,
)
from sandbox.graph.build import build_graph
from sandbox.task.task import DType, InputRef, Node, NodeRef, Task, TensorSpec


def test_the_oracle_runs_in_float64() -> None:
    task = silu_bias(8, 8)
    x, b = torch.randn(8, 8), torch.randn(8)
    found = run_oracle(task, build_graph(task), [x, b])
    assert found.outputs[0].dtype == torch.float64
    wanted = torch.nn.functional.silu(x.double() + b.double())
    torch.testing.assert_close(found.outputs[0], wanted, rtol=1e-14, atol=1e-14)
    assert found.narrow == ()


def test_conversions_to_narrow_types_become_exact() -> None:
    task = Task(
        "cpu",
        (spec(100),),
        (
            Node(
                "prims.convert_element_type.default", {"a": InputRef(0), "dtype": DType("bfloat16")}
            ),
            Node(
                "prims.convert_element_type.default", {"a": NodeRef(0), "dtype": DType("float32")}
            ),
            Node(
                "aten.full.default", {"size": (100,), "fill_value": 0.1, "dtype": DType("float32")}
            ),
            Node("aten.mul.Tensor", {"self": NodeRef(1), "other": NodeRef(2)}),
        ),
        (NodeRef(3),),
        (spec(100),),
    )
    x = torch.randn(100)
    module = build_graph(task)
    assert torch.equal(run_oracle(task, module, [x]).outputs[0], x.double() * 0.1)
    assert run_eager(module, [x])[0].dtype == torch.float32


def test_an_operator_without_a_float64_kernel_runs_in_its_own_precision() -> None:
    task = Task(
        "cpu",
        (spec(4, 4, dtype="bfloat16"), spec(4, 4, dtype="int64")),
        (
            Node("aten.gather.default", {"self": InputRef(0), "dim": 1, "index": InputRef(1)}),
            Node("aten.view.dtype", {"self": NodeRef(0), "dtype": DType("int16")}),
        ),
        (NodeRef(1),),
        (spec(4, 4, dtype="int16"),),
    )
    x, index = torch.randn(4, 4).bfloat16(), torch.zeros(4, 4, dtype=torch.int64)
    module = build_graph(task)
    found = run_oracle(task, module, [x, index])
    assert torch.equal(found.outputs[0], run_eager(module, [x, index])[0])
    assert found.narrow == ("aten.view.dtype",)


def test_positions_of_an_extremum_are_known_for_what_they_are() -> None:
    task = row_mean_and_argmax()
    rules = position_rules(task)
    assert set(rules) == {1}
    assert (rules[1].operand, rules[1].dim, rules[1].kind, rules[1].exact) == (
        InputRef(0),
        1,
        "maximum",
        True,
    )
    x = torch.randn(64, 300)
    found = run_oracle(task, build_graph(task), [x])
    assert torch.equal(found.operands[1], x.double())


def test_what_exact_positions_point_into_is_no_copy_of_the_input() -> None:
    task = row_mean_and_argmax()
    x = torch.randn(64, 300)
    found = exact_operands(task, build_graph(task), [x])
    assert found is not None and set(found) == {1} and found[1] is x
    flat = Task(
        "cpu",
        (spec(6, 5),),
        (
            Node("aten.view.default", {"self": InputRef(0), "size": (30,)}),
            Node("aten.argmax.default", {"self": NodeRef(0)}),
        ),
        (NodeRef(1),),
        (spec(dtype="int64"),),
    )
    x = torch.randn(6, 5)
    found = exact_operands(flat, build_graph(flat), [x])
    assert found is not None and found[0].data_ptr() == x.data_ptr() and found[0].shape == (30,)
    computed = Task(
        "cpu",
        (spec(6, 5),),
        (
            Node("aten.exp.default", {"self": InputRef(0)}),
            Node("aten.argmax.default", {"self": NodeRef(0), "dim": 1}),
        ),
        (NodeRef(1),),
        (spec(6, dtype="int64"),),
    )
    assert exact_operands(computed, build_graph(computed), [x]) is None


def test_positions_are_followed_through_views_and_from_pairs() -> None:
    task = Task(
        "cpu",
        (spec(6, 5),),
        (
            Node("aten.exp.default", {"self": InputRef(0)}),
            Node("aten.min.dim", {"self": NodeRef(0), "dim": 0}),
            Node("aten.unsqueeze.default", {"self": NodeRef(1, 1), "dim": 0}),
        ),
        (NodeRef(2), NodeRef(1, 0)),
        (spec(1, 5, dtype="int64"), spec(5)),
    )
    (rule,) = position_rules(task).values()
    assert (rule.operand, rule.dim, rule.kind, rule.exact) == (NodeRef(0), 0, "minimum", False)
    x = torch.randn(6, 5)
    found = run_oracle(task, build_graph(task), [x])
    assert torch.equal(found.operands[0], x.double().exp())


def test_the_bits_of_positions_are_no_positions_and_those_of_an_input_are_not_its_values() -> None:
    bits = Node("aten.view.dtype", {"self": NodeRef(0), "dtype": DType("int32")})
    argmax = Node("aten.argmax.default", {"self": InputRef(0), "dim": 1})
    after = Task("cpu", (spec(6, 5),), (argmax, bits), (NodeRef(1),), (spec(12, dtype="int32"),))
    assert position_rules(after) == {}
    first = Node("aten.view.dtype", {"self": InputRef(0), "dtype": DType("int32")})
    last = Node("aten.argmax.default", {"self": NodeRef(0), "dim": 1})
    before = Task("cpu", (spec(6, 5),), (first, last), (NodeRef(1),), (spec(6, dtype="int64"),))
    assert not position_rules(before)[0].exact


@pytest.mark.parametrize(
    ("op", "args", "known"),
    [
        ("sort.default", {"dim": 1}, True),
        ("sort.stable", {"stable": False, "dim": 1}, True),
        ("sort.stable", {"stable": True, "dim": 1}, False),
        ("topk.default", {"k": 3}, True),
        ("topk.default", {"k": 3, "sorted": False}, False),
    ],
)
def test_positions_of_sorted_elements_are_free_among_equals_unless_the_sort_is_stable(
    op: str, args: dict[str, Any], known: bool
) -> None:
    def task(*before: Node) -> Task:
        operand = NodeRef(0) if before else InputRef(0)
        node = Node(f"aten.{op}", {"self": operand, **args})
        size = args.get("k", 5)
        out = spec(6, size, dtype="int64")
        return Task("cpu", (spec(6, 5),), (*before, node), (NodeRef(len(before), 1),), (out,))

    assert [rule.kind for rule in position_rules(task()).values()] == ["order"] * known
    exp = Node("aten.exp.default", {"self": InputRef(0)})
    assert position_rules(task(exp)) == {}


@pytest.mark.parametrize("causal", [False, True])
def test_what_attention_does_not_see_is_nothing_to_it(causal: bool) -> None:
    query, key, value = torch.randn(3, 1, 2, 9, 4, dtype=torch.float64).unbind()
    plain = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    (found,) = _attention(query, key, value, causal=causal)
    torch.testing.assert_close(found, plain)
    value[0, 0, 4, 1], value[0, 0, 6, 1], value[0, 1, 3, 2] = torch.inf, -torch.inf, torch.nan
    (found,) = _attention(query, key, value, causal=causal)
    if not causal:
        expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        torch.testing.assert_close(found, expected, equal_nan=True)
        return
    assert found[0, 0, :, 1].isfinite().tolist() == [True] * 4 + [False] * 5
    assert (found[0, 0, 4:6, 1] == torch.inf).all() and found[0, 0, 6:, 1].isnan().all()
    assert found[0, 1, :, 2].isnan().tolist() == [False] * 3 + [True] * 6
    torch.testing.assert_close(found[0, 0, :4], plain[0, 0, :4])


def test_a_weight_that_vanishes_makes_nan_of_an_infinity_that_is_seen() -> None:
    query, key = torch.tensor([[[[1e4]]]]).double(), torch.tensor([[[[1.0], [-1.0]]]]).double()
    value = torch.tensor([[[[2.0], [torch.inf]]]]).double()
    (found,) = _attention(query, key, value)
    assert found.isnan().all()


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn"])
def test_attention_in_half_precision_is_widened_whichever_the_operator(name: str) -> None:
    query, *shared = (torch.randn(1, heads, 9, 8).half() for heads in (4, 2, 2))
    specs = tuple(spec(*x.shape, dtype="float16") for x in (query, *shared))
    names = {part: InputRef(i) for i, part in enumerate(("query", "key", "value"))}
    more = {} if name == "flash" else {"attn_bias": None, "compute_log_sumexp": False}

    def found(**args: Any) -> Oracle:
        node = Node(f"aten._scaled_dot_product_{name}_attention.default", {**names, **more, **args})
        out = TensorSpec("float16", query.shape, (4 * 9 * 8, 8, 4 * 8, 1))
        task = Task("cpu", specs, (node,), (NodeRef(0, 0),), (out,))
        return run_oracle(task, build_graph(task), [query, *shared])

    wide = [x.double() for x in (query, *(x.repeat_interleave(2, 1) for x in shared))]
    for causal in (False, True):
        expected = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal)
        result = found(is_causal=causal)
        torch.testing.assert_close(result.outputs[0], expected)
        assert result.narrow == ()


def test_what_exact_operands_were_asked_of_is_free_at_once() -> None:
    """And not when Python next collects garbage: on a device each draw would have held its inputs until then."""
    task = row_mean_and_argmax()
    module, x = build_graph(task), torch.randn(64, 300)
    seen = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        assert exact_operands(task, module, [x]) is not None
        del x
        assert seen() is None
    finally:
        gc.enable()
