"""Library calls in launch plans: JSON, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from launch_kit import spec
from library_kit import convolution_plan, gemm_plan, whole

from sandbox.launcher.library import cudnn_flags
from sandbox.plan.plan import Buffer, Convolution, Launch, Plan, PlanError, View
from sandbox.task import flags

CALL = Convolution(
    whole("t", 2, 4, 7, 6), whole("w", 6, 2, 3, 3), View("o", (2, 6, 7, 3), (126, 1, 18, 6)), whole("b", 6),
    (1, 2), (1, 1), (1, 1), 2, output_padding=(0, 0), benchmark=True,
)  # fmt: skip
SHAPES = {"x": (2, 4, 7, 6), "w": (6, 2, 3, 3), "b": (6,)}


@pytest.mark.parametrize(
    "plan", [gemm_plan(), gemm_plan(c=whole("z", 4)), convolution_plan(CALL, SHAPES)]
)
def test_calls_survive_json_and_their_text_is_stable(plan: Plan) -> None:
    again = Plan.from_json(plan.to_json())
    assert again == plan and again.to_json() == plan.to_json()
    assert len(again.calls) == 1 and len(again.launches()) == 1


def test_what_has_a_default_may_be_left_out() -> None:
    plan = convolution_plan(
        replace(CALL, stride=(1, 1), groups=1, benchmark=False, weight=whole("w", 6, 4, 3, 3),
                padding=(0, 0), out=whole("o", 2, 6, 5, 4), bias=None),
        {"x": (2, 4, 7, 6), "w": (6, 4, 3, 3)},
    )  # fmt: skip
    document = json.loads(plan.to_json())
    call = document["steps"][1]
    document["steps"][1] = {key: call[key] for key in ("kind", "library", "x", "weight", "out")}
    for view in ("x", "weight", "out"):
        del document["steps"][1][view]["stride"], document["steps"][1][view]["offset"]
    assert Plan.from_document(document) == plan


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"out": whole("x", 6, 4)}, "step 0: out is the input 'x'"),
        ({"out": whole("nobody", 6, 4)}, "no buffer named 'nobody'"),
        ({"a": whole("x", 6, 5, offset=1)}, "a: reaches element 30 of 'x', which has 30"),
        ({"out": whole("t", 6, 4, offset=77)}, "reaches element 100 of 't', which has 100"),
        ({"a": View("x", (6, 5), (5, 2))}, "a: reaches element 33"),
        ({"out": View("t", (6, 4), (3, 1))}, "elements of out share memory"),
        ({"out": View("t", (6, 4), (0, 1))}, "elements of out share memory"),
        ({"a": whole("t", 6, 5), "out": whole("t", 6, 4, offset=29)}, "out and a lie in the same part"),
        ({"c": whole("t", 6, 4)}, "out and c lie in the same part"),
        ({"b": whole("y", 4, 5)}, r"\[m, k\], \[k, n\]"),
        ({"a": whole("x", 1, 6, 5)}, r"\[m, k\], \[k, n\]"),
        ({"a": whole("x", 30), "b": whole("y", 20), "out": whole("t", 1)}, r"\[m, k\], \[k, n\]"),
        ({"c": whole("z", 4, 1)}, "does not expand"),
        ({"c": whole("x", 1, 6, 4)}, "does not expand"),
        ({"a": View("x", (0, 5), (5, 1))}, "sizes are 1 to"),
        ({"a": View("x", (2**31, 5), (0, 1))}, "sizes are 1 to"),
        ({"a": View("x", (6, 5), (5, -1))}, "none is negative"),
        ({"a": View("x", (6, 5), (5, 1), -1)}, "none is negative"),
        ({"a": View("x", (6, 5), (5,))}, "differ in length"),
    ],
)  # fmt: skip
def test_a_product_that_is_no_product_or_leaves_its_buffers_is_refused(
    changes: dict[str, View], complaint: str
) -> None:
    with pytest.raises(PlanError, match=complaint):
        gemm_plan(**changes)


def test_more_work_than_any_call_should_have_is_refused() -> None:
    n = 2**20
    with pytest.raises(PlanError, match="multiplications"):
        plan = gemm_plan()
        large = Buffer("t", "temporary", spec(n * n))
        buffers = (*plan.buffers[:-1], large)
        call = replace(
            plan.calls[0], a=View("x", (n, n), (0, 0)), b=View("y", (n, n), (0, 0)), out=whole("t", n, n)
        )  # fmt: skip
        replace(plan, buffers=buffers, steps=(call, plan.steps[1]))


@pytest.mark.parametrize("dtype", ["int32", "float8_e5m2", "bool"])
def test_only_floating_dtypes_are_multiplied(dtype: str) -> None:
    with pytest.raises(PlanError, match=f"{dtype}; known: float64"):
        gemm_plan(dtype=dtype)


def test_dtypes_are_equal() -> None:
    plan = gemm_plan()
    other = replace(plan.buffers[1], spec=spec(5, 4, dtype="float64"))
    with pytest.raises(PlanError, match=r"dtypes differ.*b float64"):
        replace(plan, buffers=(plan.buffers[0], other, *plan.buffers[2:]))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"stride": (1,)}, "stride .*2 numbers"),
        ({"stride": (0, 2)}, "stride .*2 numbers, 1 to"),
        ({"padding": (-1, 0)}, "padding"),
        ({"dilation": (2**20, 1)}, "dilation"),
        ({"groups": 0}, "groups 0"),
        ({"groups": 4}, "4 groups"),
        ({"output_padding": (1, 0)}, "output_padding"),
        ({"padding": (0, 0)}, "the convolution gives"),
        ({"bias": whole("b", 5)}, "bias"),
        ({"out": View("o", (2, 6, 7, 3), (126, 21, 1, 7))}, "without gaps"),
        ({"out": whole("t", 2, 6, 7, 3)}, "out and x lie in the same part"),
        ({"out": whole("x", 2, 6, 7, 3)}, "out is the input"),
        ({"x": whole("t", 2, 4, 42)}, "3 to 5 dimensions"),
        ({"transposed": True}, "2 groups for 4 channels"),
    ],
)
def test_a_convolution_that_is_none_is_refused(changes: dict[str, Any], complaint: str) -> None:
    plan = convolution_plan(CALL, SHAPES)
    with pytest.raises(PlanError, match=complaint):
        replace(plan, steps=(plan.steps[0], replace(CALL, **changes)))


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("library",), "fft", "library must be one of"),
        (("alpha",), 2, "unknown"),
        (("a",), "x", "step 0: a: not an object"),
        (("a", "shape"), [6, "5"], "not integers"),
        (("a", "offset"), "0", "offset '0'"),
        (("a", "buffer"), 1, "buffer 1; a name"),
        (("out",), None, "step 0: out: not an object"),
    ],
)
def test_a_malformed_call_is_refused(path: tuple[str, ...], value: Any, complaint: str) -> None:
    document = json.loads(gemm_plan().to_json())
    place = document["steps"][0]
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(PlanError, match=complaint):
        Plan.from_document(document)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_plan_has_a_kernel(target: str) -> None:
    plan = gemm_plan(target=target)
    with pytest.raises(PlanError, match=r"exactly one launch|library calls only"):
        replace(plan, steps=plan.calls)


def test_a_launch_that_starts_early_does_not_follow_a_call() -> None:
    plan = gemm_plan(target="cuda")
    first = Launch("relu", args=("x", "o"))
    with pytest.raises(PlanError, match="step 2: dependent on a library call"):
        replace(plan, steps=(first, plan.calls[0], replace(first, dependent=True)))


@pytest.mark.parametrize(
    ("given", "measured", "deterministic"),
    [
        ({}, True, True),
        ({"cudnn_deterministic": True}, False, True),
        ({"cudnn_benchmark": True}, True, False),
        ({"deterministic": True}, False, True),
        ({"deterministic": True, "cudnn_benchmark": True}, True, True),
    ],
)
def test_what_a_call_has_measured_is_kept_apart_from_the_users_algorithms(
    given: dict[str, bool], measured: bool, deterministic: bool
) -> None:
    """Under one key torch keeps one algorithm, whoever was first to ask."""
    with flags.applied(given):
        assert cudnn_flags(CALL)[:2] == (measured, deterministic)
        plain = cudnn_flags(replace(CALL, benchmark=False))
        asked = given.get("deterministic", False) or given.get("cudnn_deterministic", False)
        assert plain[:2] == (given.get("cudnn_benchmark", False), asked)
        assert plain[2] is cudnn_flags(CALL)[2] is flags.current()["cudnn_allow_tf32"]
