"""Canonical tasks: the same computation has the same digest, another one has another."""

import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node

from cuda_agent_backend.graph.canonical import Canonical, NotATask, canonical, graph_digest, linear
from cuda_agent_backend.runtime.child_process import child_environment
from sandbox.graph.build import build_graph
from sandbox.task.task import Task

aten = torch.ops.aten
BINARY = [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.maximum.default]
UNARY = [aten.exp.default, aten.neg.default, aten.tanh.default, aten.relu.default]
Recipe = list[tuple[int, int, int]]


def call(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call with its fake value."""
    node = graph.call_function(target, args, kwargs)
    values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
    node.meta["val"] = target(*values[0], **values[1])
    return node


def placeholder(graph: Graph, fake: FakeTensorMode, *shape: int, name: str = "x") -> Node:
    node = graph.placeholder(name)
    with fake:
        node.meta["val"] = torch.empty(*shape)
    return node


def build(
    recipe: Recipe, inputs: int, order: random.Random | None = None, twice: bool = False
) -> Any:
    """A graph from a recipe: each step is (operator, operand, operand). Returns its task's digest.

    order: inputs are made in another order and nodes wherever their operands allow. twice: every node is made twice,
    and users take either.
    """
    graph, fake = Graph(), FakeTensorMode()
    made: dict[int, list[Node]] = {}
    numbers = list(range(inputs))
    if order:
        order.shuffle(numbers)
    for number in numbers:
        made[number] = [
            placeholder(
                graph,
                fake,
                4,
                8,
                name=f"arg{order.random() if order else number}".replace(".", "_"),
            )
        ]
    waiting = list(range(len(recipe)))
    body: list[Node] = []
    while waiting:
        ready = [s for s in waiting if all(operand(recipe, s, i, inputs) in made for i in (1, 2))]
        step = order.choice(ready) if order else ready[0]
        waiting.remove(step)
        kind = recipe[step][0]
        for _ in range(2 if twice else 1):
            pick = order.choice if order else (lambda nodes: nodes[0])
            left, right = (pick(made[operand(recipe, step, i, inputs)]) for i in (1, 2))
            target = (BINARY + UNARY)[kind % 8]
            node = call(graph, target, left, right) if kind % 8 < 4 else call(graph, target, left)
            made.setdefault(inputs + step, []).append(node)
            body.append(node)
    used = {
        operand(recipe, s, i, inputs)
        for s in range(len(recipe))
        for i in (1, 2)
        if i == 1 or recipe[s][0] % 8 < 4
    }
    outputs = [made[inputs + s][0] for s in range(len(recipe)) if inputs + s not in used]
    form = canonical(body, outputs, "cpu")
    assert isinstance(form, Canonical)
    return form


def operand(recipe: Recipe, step: int, which: int, inputs: int) -> int:
    return recipe[step][which] % (inputs + step)


recipes = st.lists(st.tuples(*[st.integers(0, 63)] * 3), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None)
@given(recipes, st.integers(1, 3), st.randoms(use_true_random=False))
def test_renaming_and_reordering_keep_the_digest(
    recipe: Recipe, inputs: int, order: random.Random
) -> None:
    assert build(recipe, inputs).task.digest == build(recipe, inputs, order).task.digest


@settings(max_examples=30, deadline=None)
@given(recipes, st.integers(1, 3), st.randoms(use_true_random=False))
def test_computing_a_value_twice_keeps_the_digest(
    recipe: Recipe, inputs: int, order: random.Random
) -> None:
    assert build(recipe, inputs).task.digest == build(recipe, inputs, order, twice=True).task.digest


@settings(max_examples=30, deadline=None)
@given(recipes, st.integers(1, 3))
def test_a_task_replays_to_what_the_graph_computes(recipe: Recipe, inputs: int) -> None:
    form = build(recipe, inputs)
    again = Task.from_json(form.task.to_json())
    module = build_graph(again)
    assert again.digest == form.task.digest
    values = [torch.randn(4, 8) for _ in form.inputs]
    known = dict(zip(form.inputs, values, strict=True))
    for node in form.outputs[0][0].graph.nodes:
        if node.op == "call_function" and all(n in known for n in node.all_input_nodes):
            known[node] = node.target(*torch.fx.node.map_arg(node.args, lambda n: known[n]))
    for group, result in zip(form.outputs, module(*values), strict=True):
        torch.testing.assert_close(known[group[0]], result, equal_nan=True)


def softmax_like(shape: tuple[int, ...] = (4, 8), dim: int = -1, scale: Any = 2.0) -> Task:
    graph, fake = Graph(), FakeTensorMode()
    x = placeholder(graph, fake, *shape)
    top = call(graph, aten.amax.default, x, [dim], True)
    body = [
        top,
        down := call(graph, aten.sub.Tensor, x, top),
        call(graph, aten.mul.Tensor, down, scale),
    ]
    form = canonical(body, [body[-1]], "cpu")
    assert isinstance(form, Canonical)
    return form.task


@pytest.mark.parametrize(
    "other",
    [
        lambda: softmax_like((4, 9)),
        lambda: softmax_like(dim=0),
        lambda: softmax_like(scale=2),
        lambda: softmax_like(scale=float("nan")),
        lambda: softmax_like(scale=2.0000000000000004),
    ],
)
def test_another_shape_argument_or_type_of_number_changes_the_digest(
    other: Callable[[], Task],
) -> None:
    assert other().digest != softmax_like().digest


def test_a_default_spelled_out_is_left_out() -> None:
    graph, fake = Graph(), FakeTensorMode()
    x = placeholder(graph, fake, 4, 8)
    plain, spelled = call(graph, aten.add.Tensor, x, x), call(graph, aten.add.Tensor, x, x, alpha=1)
    forms = [canonical([node], [node], "cpu") for node in (plain, spelled)]
    assert all(isinstance(form, Canonical) for form in forms)
    assert forms[0].task.digest == forms[1].task.digest  # type: ignore[union-attr]


def test_two_and_two_point_zero_are_not_one_value() -> None:
    graph, fake = Graph(), FakeTensorMode()
    x = placeholder(graph, fake, 4)
    nodes = [call(graph, aten.mul.Tensor, x, number) for number in (2, 2.0, True)]
    form = canonical(nodes, nodes, "cpu")
    assert isinstance(form, Canonical) and len(form.outputs) == 3


def test_symbolic_sizes_are_a_reason() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    fake = FakeTensorMode(shape_env=ShapeEnv())
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = fake.from_tensor(torch.randn(5, 8), static_shapes=False)
    y = call(graph, aten.exp.default, x)
    assert canonical([y], [y], "cpu") == NotATask("symbolic sizes")


def test_an_operator_of_another_library_is_a_reason() -> None:
    graph, fake = Graph(), FakeTensorMode()
    x = placeholder(graph, fake, 4)
    y = graph.call_function(len, (x,))
    y.meta["val"] = x.meta["val"]
    form = canonical([y], [y], "cpu")
    assert isinstance(form, NotATask) and "len" in form.reason


def test_a_linear_task_keeps_the_order_of_the_graph() -> None:
    graph, fake = Graph(), FakeTensorMode()
    x, y = placeholder(graph, fake, 4), placeholder(graph, fake, 4, name="y")
    a, b = call(graph, aten.exp.default, y), call(graph, aten.neg.default, x)
    task = linear([a, b], [x, y], [b, a], "cpu")
    assert isinstance(task, Task)
    assert [node.op for node in task.nodes] == ["aten.exp.default", "aten.neg.default"]


DIGESTS = """
import sys; sys.path.insert(0, sys.argv[1])
import test_canonical as t
form = t.build([(0, 1, 0), (4, 2, 0), (2, 3, 1)], 2)
print(form.task.digest, t.graph_digest(form.outputs[0][0].graph))
"""


def test_another_process_gets_the_same_digests() -> None:
    form = build([(0, 1, 0), (4, 2, 0), (2, 3, 1)], 2)
    here = [form.task.digest, graph_digest(form.outputs[0][0].graph)]
    folder = str(__import__("pathlib").Path(__file__).parent)
    there = subprocess.run(
        [sys.executable, "-c", DIGESTS, folder],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split() == here
