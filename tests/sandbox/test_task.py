"""Tasks: text form, digest, and the graph that comes back."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sandbox.graph.build import build_graph
from sandbox.task.specs import TensorSpec, contiguous_stride
from sandbox.task.task import (
    Arg,
    Device,
    DType,
    InputRef,
    MemoryFormat,
    Node,
    NodeRef,
    Task,
    TaskError,
)


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(dtype, shape, contiguous_stride(shape))


def silu_bias(target: str = "cpu") -> Task:
    return Task(
        target=target,
        inputs=(spec(4, 8), spec(8)),
        nodes=(
            Node("aten.add.Tensor", {"self": InputRef(0), "other": InputRef(1)}),
            Node("aten.sigmoid.default", {"self": NodeRef(0)}),
            Node("aten.mul.Tensor", {"self": NodeRef(0), "other": NodeRef(1)}),
        ),
        outputs=(NodeRef(2),),
        output_specs=(spec(4, 8),),
    )


def one(
    op: str,
    inputs: tuple[TensorSpec, ...],
    output: TensorSpec,
    pick: int | None = None,
    **args: Arg,
) -> Task:
    return Task("cpu", inputs, (Node(op, args),), (NodeRef(0, pick),), (output,))


def test_a_task_survives_its_text() -> None:
    task = silu_bias()
    again = Task.from_json(task.to_json())
    assert again == task
    assert again.digest == task.digest
    assert len(task.digest) == 64


def test_the_text_is_canonical() -> None:
    text = silu_bias().to_json()
    assert " " not in text
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


@given(st.floats(allow_nan=False), st.integers(), st.text(), st.booleans())
def test_scalars_survive_exactly(number: float, integer: int, text: str, flag: bool) -> None:
    scalars = (
        number,
        integer,
        text,
        flag,
        None,
        DType("bfloat16"),
        Device(),
        MemoryFormat("channels_last"),
    )
    task = Task(
        "cpu", (spec(2),), (Node("aten.add.Tensor", {"a": scalars}),), (NodeRef(0),), (spec(2),)
    )
    again = Task.from_json(task.to_json())
    assert again == task
    back = again.nodes[0].args["a"]
    assert isinstance(back, tuple)
    assert [type(item) for item in back] == [type(item) for item in scalars]


def test_an_infinite_float_survives() -> None:
    task = one("aten.full.default", (), spec(2), size=(2,), fill_value=float("-inf"))
    assert "-inf" in task.to_json()
    module = build_graph(Task.from_json(task.to_json()))
    assert module()[0].tolist() == [float("-inf")] * 2


def test_the_graph_computes_what_the_task_says_and_carries_fake_values() -> None:
    module = build_graph(silu_bias())
    x, b = torch.randn(4, 8), torch.randn(8)
    (out,) = module(x, b)
    torch.testing.assert_close(out, torch.nn.functional.silu(x + b))
    assert all("val" in node.meta for node in module.graph.nodes)


def test_results_of_multi_output_operators_can_be_picked() -> None:
    task = Task(
        "cpu",
        (spec(3, 5),),
        (
            Node(
                "aten.var_mean.correction",
                {"self": InputRef(0), "dim": (1,), "correction": 0, "keepdim": True},
            ),
            Node("aten.sub.Tensor", {"self": InputRef(0), "other": NodeRef(0, 1)}),
            Node("aten.mul.Tensor", {"self": NodeRef(1), "other": NodeRef(0, 0)}),
        ),
        (NodeRef(2), NodeRef(0, 0)),
        (spec(3, 5), spec(3, 1)),
    )
    x = torch.randn(3, 5)
    var, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
    out, picked = build_graph(task)(x)
    torch.testing.assert_close(out, (x - mean) * var)
    torch.testing.assert_close(picked, var)


def test_lists_of_tensors_and_lists_of_results_work() -> None:
    task = Task(
        "cpu",
        (spec(4, 6),),
        (
            Node("aten.split.Tensor", {"self": InputRef(0), "split_size": 2, "dim": 1}),
            Node(
                "aten.cat.default",
                {"tensors": (NodeRef(0, 2), InputRef(0), NodeRef(0, 0)), "dim": -1},
            ),
        ),
        (NodeRef(1),),
        (spec(4, 10),),
    )
    x = torch.randn(4, 6)
    assert torch.equal(
        build_graph(Task.from_json(task.to_json()))(x)[0],
        torch.cat([x[:, 4:], x, x[:, :2]], 1),
    )


def test_optional_tensors_in_a_list_work() -> None:
    task = one(
        "aten.index.Tensor",
        (spec(4, 6), spec(3, dtype="int64")),
        spec(4, 3),
        self=InputRef(0),
        indices=(None, InputRef(1)),
    )
    x, i = torch.randn(4, 6), torch.tensor([5, 0, 2])
    assert torch.equal(build_graph(task)(x, i)[0], x[:, i])


def test_dtypes_and_devices_and_skipped_defaults_are_filled_in() -> None:
    cast = one(
        "prims.convert_element_type.default",
        (spec(2),),
        spec(2, dtype="bfloat16"),
        a=InputRef(0),
        dtype=DType("bfloat16"),
    )
    assert build_graph(cast)(torch.ones(2))[0].dtype == torch.bfloat16
    full = one(
        "aten.full.default",
        (),
        spec(2),
        size=(2,),
        fill_value=1,
        dtype=DType("float32"),
        device=Device(),
    )
    assert build_graph(full)()[0].device.type == "cpu"
    summed = one(
        "aten.sum.dim_IntList",
        (spec(2, 3),),
        spec(2),
        self=InputRef(0),
        dim=(1,),
        dtype=DType("float32"),
    )
    assert build_graph(summed)(torch.ones(2, 3))[0].tolist() == [3.0, 3.0]


def test_memory_formats_and_strides_are_kept() -> None:
    strided = TensorSpec("float32", (2, 3, 4, 5), (60, 1, 15, 3))
    task = one(
        "aten.clone.default",
        (spec(2, 3, 4, 5),),
        strided,
        self=InputRef(0),
        memory_format=MemoryFormat("channels_last"),
    )
    module = build_graph(task)
    assert module(torch.randn(2, 3, 4, 5))[0].stride() == strided.stride
    assert list(module.graph.nodes)[-1].meta["val"][0].stride() == strided.stride


def test_a_cuda_task_is_built_without_a_gpu() -> None:
    module = build_graph(silu_bias("cuda"))
    assert all(node.meta["val"].device.type == "cuda" for node in list(module.graph.nodes)[:-1])


def test_inductor_accepts_the_graph() -> None:
    from torch._inductor.compile_fx import compile_fx_inner

    module = build_graph(silu_bias())
    inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    x, b = torch.randn(4, 8), torch.randn(8)
    with torch._inductor.config.patch(cpp_cache_precompile_headers=False):
        compiled = compile_fx_inner(module, inputs, is_inference=True)
    torch.testing.assert_close(compiled([x, b])[0], torch.nn.functional.silu(x + b))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"cpu"', '"tpu"', "unknown target"),
        ('{"i":1}', '{"i":2}', "input 2 of 2"),
        ('{"n":1}', '{"n":2}', "not before it"),
        ('"float32"', '"float33"', "unknown dtype"),
        ("[8,1]", "[8,-1]", "do not describe a tensor"),
        ("[8,1]", "[8]", "do not describe a tensor"),
        ("aten.add.Tensor", "os.system.default", "not an operator"),
        ('{"i":1}', '{"x":1}', "not an argument"),
        ('{"i":1}', '{"f":"zz"}', "hexadecimal"),
        ('{"i":1}', "NaN", "not JSON"),
        ('"nodes"', '"knots"', "the keys"),
        ("}", "", "not a task"),
        ('"target":"cpu"', '"target":"cpu","target":"cpu"', "twice"),
    ],
)
def test_malformed_text_is_refused_with_a_reason(old: str, new: str, reason: str) -> None:
    text = silu_bias().to_json()
    assert old in text
    with pytest.raises(TaskError, match=reason):
        Task.from_json(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (Node("aten.no_such_thing.default", {}), "no operator"),
        (Node("aten.relu.default", {"self": InputRef(0), "slope": 1}), "no argument named slope"),
        (Node("aten.add.Tensor", {"self": InputRef(0)}), "lacks the argument other"),
        (Node("aten.view.default", {"self": InputRef(0), "size": (7,)}), "does not accept"),
        (Node("aten.relu.default", {"self": InputRef(1)}), "its spec says"),
        (Node("aten.var_mean.correction", {"self": InputRef(0)}), "which result"),
    ],
)
def test_a_node_that_cannot_run_is_refused_with_a_reason(node: Node, reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        build_graph(dataclasses.replace(silu_bias(), nodes=(node,), outputs=(NodeRef(0),)))


def test_an_output_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TaskError, match="no result 7"):
        build_graph(one("aten.var_mean.correction", (spec(3, 5),), spec(), 7, self=InputRef(0)))
