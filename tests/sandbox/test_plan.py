"""Launch plans: expressions, JSON, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch_kit import buffers, cpu, cuda_plan

from sandbox import _launcher
from sandbox.launcher.program import steps_of
from sandbox.plan.expressions import ExpressionError, ceildiv, evaluate
from sandbox.plan.plan import Launch, Plan, PlanError, Scalar
from sandbox.task.specs import TensorSpec, overlaps


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n", 10),
        ("2 * n + 1", 21),
        ("-n // 3", -4),
        ("n % 4", 2),
        ("ceildiv(n, 4)", 3),
        ("max(n, 3, 12) - min(n, 3)", 9),
        (7, 7),
    ],
)
def test_an_expression_has_the_value_python_gives_it(text: str | int, value: int) -> None:
    assert evaluate(text, {"n": 10}) == value


@pytest.mark.parametrize(
    "text",
    [
        "m",
        "n / 2",
        "n ** 2",
        "1 // 0",
        "n % 0",
        "ceildiv(1, 0)",
        "ceildiv(1)",
        "min()",
        "abs(n)",
        "n.real",
        "[n]",
        "n if n else 1",
        "True",
        "1.5",
        "'a'",
        "",
        "n +",
        "max(*[1])",
        "max(n, key=n)",
        "9" * 300,
        "9" * 500,
        "__import__('os')",
        "-" * 100 + "1",
        9223372036854775808,
        True,
        1.0,
        None,
    ],
)
def test_anything_else_is_no_expression(text: Any) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, {"n": 10})


@given(st.integers(-1000, 1000), st.integers(1, 100))
def test_ceildiv_rounds_up(a: int, b: int) -> None:
    assert ceildiv(a, b) == math.ceil(a / b)


def test_a_plan_survives_json_unchanged() -> None:
    plan = cuda_plan(cluster=(2, 1, 1), shared="4 * n")
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_json(plan.to_json()).to_json() == plan.to_json()


def test_a_dependent_launch_survives_json_and_needs_one_before_it() -> None:
    first = cuda_plan().steps[0]
    assert isinstance(first, Launch)
    plan = replace(cuda_plan(), steps=(first, replace(first, dependent=True)))
    again = Plan.from_json(plan.to_json())
    assert again == plan and [launch.dependent for launch in again.launches()] == [False, True]
    with pytest.raises(PlanError, match="step 0: dependent on nothing"):
        cuda_plan(dependent=True)
    document = json.loads(plan.to_json())
    document["steps"][1]["dependent"] = "yes"
    with pytest.raises(PlanError, match="step 1: dependent 'yes'"):
        Plan.from_document(document)


def test_a_cooperative_launch_survives_json_and_others_do_not_name_it() -> None:
    plan = cuda_plan(cooperative=True)
    (launch,) = Plan.from_json(plan.to_json()).launches()
    assert launch.cooperative and '"cooperative":true' in plan.to_json()
    assert "cooperative" not in cuda_plan().to_json()
    document = json.loads(plan.to_json())
    document["steps"][0]["cooperative"] = 1
    with pytest.raises(PlanError, match="step 0: cooperative 1; true or false"):
        Plan.from_document(document)


def test_a_cooperative_launch_has_no_cluster_and_is_for_cuda() -> None:
    with pytest.raises(PlanError, match="step 0: cooperative, with a cluster"):
        cuda_plan(cooperative=True, cluster=(2, 1, 1))
    with pytest.raises(PlanError, match="step 0: cooperative launches are for cuda"):
        Plan("cpu", buffers(2, (4, 8)), (Launch("add", cooperative=True),))


def test_the_launcher_is_told_which_launches_are_cooperative() -> None:
    for cooperative in (False, True):
        ((*front, _),) = steps_of(cuda_plan(cooperative=cooperative))
        assert front[-2:] == [False, cooperative]
    kernel, grid, block, shared, _, *rest = steps_of(cuda_plan(cooperative=True))[0]
    with pytest.raises(ValueError, match="a cooperative launch with a cluster"):
        _launcher.load_cuda(b"", [(kernel, grid, block, shared, (2, 1, 1), *rest)])


@pytest.mark.parametrize("value", [0.1, -0.0, math.inf, -math.inf, math.nan, 1e-40])
def test_float_arguments_survive_json_to_the_last_bit(value: float) -> None:
    plan = cuda_plan(args=(Scalar("f32", value),))
    (launch,) = Plan.from_json(plan.to_json()).launches()
    (argument,) = launch.args
    assert isinstance(argument, Scalar) and isinstance(argument.value, float)
    assert argument.value.hex() == value.hex()


def test_launches_are_resolved_with_the_plans_sizes() -> None:
    (launch,) = cuda_plan().launches()
    assert launch.grid == (4, 1, 1)
    assert launch.args[3] == Scalar("i32", 1000)


def test_a_missing_stride_means_contiguous() -> None:
    document = json.loads(cpu().plan.to_json())
    for buffer in document["buffers"]:
        del buffer["stride"]
    assert Plan.from_document(document) == cpu().plan


def edited(path: list[str | int], value: Any) -> str:
    """A good plan's JSON with one place replaced."""
    document = json.loads(cuda_plan().to_json())
    place = document
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (["version"], 2, "version"),
        (["target"], "tpu", "target"),
        (["surprise"], 1, "unknown"),
        (["sizes"], {"n": 1.5}, "size"),
        (["sizes"], {}, "unknown size"),
        (["sizes"], [], "sizes"),
        (["steps"], [], "steps"),
        (["steps"], {}, "not a list"),
        (["steps", 0], 3, "not an object"),
        (["steps", 0, "kind"], "jump", "kind"),
        (["steps", 0], {"kind": "call", "library": "fft"}, "library"),
        (["steps", 0, "kernel"], "a b", "identifier"),
        (["steps", 0, "kernel"], 3, "identifier"),
        (["steps", 0, "grid"], [1, 1], "three"),
        (["steps", 0, "grid"], [0, 1, 1], "grid"),
        (["steps", 0, "grid"], [1, 65536, 1], "grid"),
        (["steps", 0, "grid"], ["n ** 9", 1, 1], "not allowed"),
        (["steps", 0, "grid"], [True, 1, 1], "neither"),
        (["steps", 0, "block"], [1024, 2, 1], "block"),
        (["steps", 0, "shared"], 1 << 20, "shared"),
        (["steps", 0, "shared"], -1, "shared"),
        (["steps", 0, "cluster"], [3, 1, 1], "divide"),
        (["steps", 0, "cluster"], [32, 1, 1], "cluster"),
        (["steps", 0, "args"], ["nobody"], "no buffer"),
        (["steps", 0, "args"], [{"i32": 1 << 31}], "fit"),
        (["steps", 0, "args"], [{"i64": 1.5}], "fit"),
        (["steps", 0, "args"], [{"f32": "x"}], "number"),
        (["steps", 0, "args"], [{"f32": None}], "f32"),
        (["steps", 0, "args"], [{"f64": 1.0}], "argument type"),
        (["steps", 0, "args"], [{"i32": 1, "i64": 1}], "argument"),
        (["steps", 0, "args"], [["x0"]], "argument"),
        (["buffers"], [], "inputs"),
        (["buffers", 0, "name"], "x1", "same name"),
        (["buffers", 0, "name"], "1x", "identifier"),
        (["buffers", 0, "kind"], "output", "inputs|ordered"),
        (["buffers", 0, "kind"], "mystery", "kind"),
        (["buffers", 0, "kind"], ["input"], "kind"),
        (["buffers", 0, "dtype"], "complex64", "dtype"),
        (["buffers", 0, "shape"], [10, 100], "length"),
        (["buffers", 0, "shape"], [-1], "negative"),
        (["buffers", 0, "shape"], [1 << 41], "large"),
        (["buffers", 0, "shape"], [1.0], "integers"),
        (["buffers", 2, "stride"], [0], "share memory"),
    ],
)
def test_a_malformed_plan_is_refused_with_its_reason(
    path: list[str | int], value: Any, complaint: str
) -> None:
    with pytest.raises(PlanError, match=complaint):
        Plan.from_json(edited(path, value))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100000, "{}", "3", " " * (2 << 20)])
def test_what_is_no_plan_at_all_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        Plan.from_json(text)


def test_a_cpu_plan_has_exactly_one_launch() -> None:
    plan = cpu().plan
    with pytest.raises(PlanError, match="exactly one"):
        replace(plan, steps=(Launch("add"), Launch("add")))


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((4, 8), (8, 1), False),
        ((4, 8), (1, 4), False),
        ((4, 8), (0, 1), True),
        ((4, 8), (4, 1), True),
        ((1, 8), (0, 1), False),
        ((), (), False),
        ((0, 8), (0, 0), False),
        ((2, 3), (100, 7), False),
    ],
)
def test_overlapping_layouts_are_seen(
    shape: tuple[int, ...], stride: tuple[int, ...], expected: bool
) -> None:
    assert overlaps(TensorSpec("float32", shape, stride)) is expected


def test_the_digest_names_what_runs_and_not_who_wrote_it() -> None:
    candidate = cpu()
    assert candidate.digest == replace(candidate, origin="policy", label="other").digest
    assert candidate.digest != replace(candidate, source=candidate.source + " ").digest
    other = replace(candidate.plan, steps=(Launch("other"),))
    assert candidate.digest != replace(candidate, plan=other).digest
