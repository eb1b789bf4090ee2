"""Tensor maps in launch plans: what may be described, and what reaches the launcher."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from launch_kit import spec

from sandbox.launcher.program import steps_of
from sandbox.plan.plan import Buffer, Launch, Plan, PlanError, Scalar, TensorMap, TritonLaunch
from sandbox.sanitizer import driver as sanitized
from sandbox.sanitizer.tool import job_of

BUFFERS = (
    Buffer("x", "input", spec(1000, 64, dtype="bfloat16")),
    Buffer("o", "output", spec(100)),
    Buffer("t", "temporary", spec(4096)),
)
MAP = TensorMap("x", (64, 30, 10), (64, 6400), (64, 30, 1), 128)
OF_FLOATS = TensorMap("t", (32, 40), (64,), (32, 40))


def plan_of(*maps: TensorMap) -> Plan:
    return Plan("cuda", BUFFERS, (Launch("k", args=("x", *maps, Scalar("i32", 7))),))


def test_a_map_survives_json() -> None:
    plan = plan_of(MAP, OF_FLOATS)
    again = Plan.from_json(plan.to_json())
    assert again == plan and again.to_json() == plan.to_json()
    document = json.loads(plan.to_json())
    del document["steps"][0]["args"][2]["tensor_map"]["offset"]
    assert Plan.from_document(document) == plan  # none is 0


def test_the_launcher_is_given_bytes() -> None:
    ((*_, arguments),) = steps_of(plan_of(MAP, OF_FLOATS))
    assert arguments[:1] == [0]
    assert arguments[1] == (0, 256, 9, (64, 30, 10), (128, 12800), (64, 30, 1))
    assert arguments[2] == (2, 0, 7, (32, 40), (256,), (32, 40))


def test_the_sanitizers_job_holds_them() -> None:
    plan = plan_of(MAP)
    job = json.loads(json.dumps(job_of(plan)))
    ((*_, arguments),) = job["steps"]
    given = sanitized._argument(arguments[1])
    assert isinstance(given, tuple) and list(given[:3]) == [0, 256, 9]
    assert list(given[5]) == [64, 30, 1]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"buffer": "nobody"}, "no buffer"),
        ({"shape": (64,), "stride": (), "box": (64,)}, "1 dimensions"),
        ({"shape": (64, 1, 1, 1, 1, 1), "stride": (64,) * 5, "box": (64,) + (1,) * 5}, "6 dimensions"),
        ({"stride": (64,)}, "a stride for each"),
        ({"box": (64, 30)}, "a box"),
        ({"shape": (64, 0, 10)}, "sizes"),
        ({"stride": (64, 6404)}, "multiples of 16"),
        ({"offset": 4}, "multiples of 16"),
        ({"offset": -8}, "offset"),
        ({"box": (32, 30, 1)}, "lines of 64 bytes"),
        ({"box": (64, 257, 1)}, "at most 256"),
        ({"shape": (64, 30, 11), "offset": 0}, "beyond"),
        ({"stride": (64, 7040)}, "beyond"),
        ({"stride": (64, True)}, "sizes"),
    ],
)  # fmt: skip
def test_what_the_driver_would_refuse_or_the_buffer_does_not_hold(
    change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(PlanError, match=complaint):
        plan_of(replace(MAP, **change))


def test_some_buffers_have_no_map() -> None:
    buffers = (Buffer("x", "input", spec(64, 64, dtype="int32")), *BUFFERS[1:])
    with pytest.raises(PlanError, match="a buffer of int32"):
        Plan("cuda", buffers, (Launch("k", args=(TensorMap("x", (32, 64), (64,), (32, 64)),)),))
    cpu = (Buffer("x", "input", spec(64, 64)), *BUFFERS[1:])
    with pytest.raises(PlanError, match="no buffer"):
        Plan("cpu", cpu, (Launch("k", args=(TensorMap("x", (32, 64), (64,), (32, 64)),)),))


def test_as_many_as_the_launcher_has_room_for() -> None:
    assert plan_of(*[MAP] * 4)
    with pytest.raises(PlanError, match="5 tensor maps"):
        plan_of(*[MAP] * 5)
    with pytest.raises(PlanError, match="Triton"):
        Plan("cuda", BUFFERS, (TritonLaunch("k", args=(MAP,)),))


@pytest.mark.parametrize(
    "value",
    [None, [], {}, {"buffer": "x"}, {"buffer": "x", "shape": 3, "stride": [64], "box": [64, 1]},
     {"buffer": "x", "shape": [64, 2.0], "stride": [64], "box": [64, 1]},
     {"buffer": ["x"], "shape": [64, 2], "stride": [64], "box": [64, 1]},
     {"buffer": "x", "shape": [64, 2], "stride": [64], "box": [64, 1], "offset": "0"},
     {"buffer": "x", "shape": [64, 2], "stride": [64], "box": [64, 1], "swizzle": 128}],
)  # fmt: skip
def test_malformed_ones_are_refused(value: Any) -> None:
    document = json.loads(plan_of(MAP).to_json())
    document["steps"][0]["args"][1] = {"tensor_map": value}
    with pytest.raises(PlanError):
        Plan.from_document(document)
