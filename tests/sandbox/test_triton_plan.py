"""Plans for Triton: what is read and refused, what is promised to the compiler, and the launches that come of them."""

from __future__ import annotations

from typing import Any

import pytest
from judge_kit import silu_bias, spec
from triton_kit import document, pointwise, reduction

from sandbox.compile.triton_child import Unfit, signature_of
from sandbox.compile.triton_plan import Built, lower, pointers_are_aligned, read_built, request
from sandbox.launcher.program import LoadFailed, load_program
from sandbox.plan.plan import Buffer, Launch, Plan, PlanError, Scalar
from sandbox.workers import guard_bands as guarded
from sandbox.workers import shared_memory as sharedmemory

TASK = silu_bias(100, 30)
DOCUMENT = document(TASK, pointwise(TASK))
FOUND = {"num_warps": 4, "shared": 16, "global_scratch_size": 0, "profile_scratch_size": 0}


def plan_of(**change: Any) -> Plan:
    return Plan.from_document(document(TASK, pointwise(TASK, **change)))


def test_a_plan_for_triton_survives_json() -> None:
    plan = plan_of(num_warps=8, num_stages=2, num_ctas=2, constexprs={"BLOCK": 64, "FAST": True})
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.launches() == ()
    assert '"constexprs":{"BLOCK":64,"FAST":true}' in plan.to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"num_warps": 3},
        {"num_warps": 64},
        {"num_warps": True},
        {"num_warps": [4]},
        {"num_stages": -1},
        {"num_stages": 1.5},
        {"num_ctas": 32},
        {"grid": [0, 1, 1]},
        {"grid": ["unknown", 1, 1]},
        {"grid": [1 << 31, 1, 1]},
        {"args": ["nowhere"]},
        {"args": [{"i8": 1}]},
        {"constexprs": [1]},
        {"constexprs": {"BLOCK": None}},
        {"constexprs": {"BLOCK": [1]}},
        {"constexprs": {"BLOCK": 10**400}},
        {"constexprs": {"BLOCK": float("inf")}},
        {"constexprs": {"not a name": 1}},
        {"constexprs": {f"C{i}": 1 for i in range(65)}},
        {"kernel": "not a name"},
        {"kernel": None},
        {"block": [32, 1, 1]},
        {"shared": 4},
    ],
)
def test_what_cannot_be_launched_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=r"step 0|unknown"):
        plan_of(**change)


def test_triton_is_for_cuda() -> None:
    with pytest.raises(PlanError, match=r"cpu plan|Triton is for cuda"):
        Plan.from_document({**DOCUMENT, "target": "cpu"})


def test_only_what_every_launch_keeps_is_promised() -> None:
    step, plan = plan_of().steps[0], plan_of()
    asked = request(step, plan, aligned=True)["args"]  # type: ignore[arg-type]
    pointer = {"type": "*fp32", "divisible": True}
    assert asked[:3] == [pointer] * 3
    assert asked[3] == {"type": "i32", "divisible": False}  # 3000
    assert asked[5] == {"constant": 1}
    other = plan_of(args=["in0", {"i64": 4096}, {"i32": 0}, {"f32": 1}, {"f32": 16.0}])
    asked = request(other.steps[0], other, aligned=False)["args"]  # type: ignore[arg-type]
    assert asked == [
        {"type": "*fp32", "divisible": False},
        {"type": "i64", "divisible": True},
        {"type": "i32", "divisible": True},
        {"type": "fp32", "divisible": False},
        {"type": "fp32", "divisible": False},
    ]


def test_wherever_kernels_run_their_pointers_can_be_divided_by_sixteen() -> None:
    assert pointers_are_aligned()
    assert guarded.GUARD % 16 == 0 and sharedmemory.ALIGNMENT % 16 == 0


def test_arguments_become_a_signature_by_position() -> None:
    wanted = {
        "kernel": "k",
        "args": [{"type": "*fp32", "divisible": True}, {"constant": 1}, {"type": "i32", "divisible": False}],
        "constexprs": {"BLOCK": 64},
    }  # fmt: skip
    signature, constants, attributes = signature_of(["x", "BLOCK", "s", "n"], wanted)
    assert signature == {"x": "*fp32", "BLOCK": "constexpr", "s": "constexpr", "n": "i32"}
    assert constants == {(1,): 64, (2,): 1}
    assert attributes == {(0,): [["tt.divisibility", 16]]}


@pytest.mark.parametrize(
    ("names", "said"), [(["x", "s"], "BLOCK"), (["x", "s", "n", "more", "BLOCK"], "gives 3 args")]
)
def test_a_plan_that_does_not_fit_the_source_is_told_so(names: list[str], said: str) -> None:
    argument = {"type": "i32", "divisible": False}
    wanted = {"kernel": "k", "args": [argument] * 3, "constexprs": {"BLOCK": 64}}
    with pytest.raises(Unfit, match=said):
        signature_of(names, wanted)


def test_a_compiled_kernel_is_launched_as_triton_would() -> None:
    plan = plan_of(num_ctas=2)
    built = [Built("silu_bias_0", 128, 512, 0)]
    for hidden in (0, 1, 2):
        lowered = lower(plan, built, {"silu_bias_0": (8, 8, 8, 4, 4) + (8,) * hidden})
        null = (Scalar("i64", 0),) * hidden
        sizes = (Scalar("i32", 3000), Scalar("i32", 30))
        args = ("in0", "in1", "out0", *sizes, *null)
        assert lowered.steps == (
            Launch("silu_bias_0", (6, 1, 1), (128, 1, 1), 512, args, (2, 1, 1)),
        )
        assert lowered.buffers == plan.buffers


def test_scratch_memory_is_a_temporary_of_the_plan() -> None:
    plan = Plan.from_document(document(TASK, pointwise(TASK, num_ctas=2)))
    lowered = lower(plan, [Built("k", 128, 0, 256)], {"k": (8, 8, 8, 4, 4, 8, 8)})
    space = Buffer("triton_scratch_0", "temporary", spec(256 * 6, dtype="uint8"))
    assert lowered.buffers[-1] == space
    assert lowered.launches()[0].args[-2:] == ("triton_scratch_0", Scalar("i64", 0))
    with pytest.raises(PlanError, match="no parameter for its scratch"):
        lower(plan, [Built("k", 128, 0, 256)], {"k": (8, 8, 8, 4, 4)})


@pytest.mark.parametrize(
    "sizes", [(), (8, 8, 8, 4), (8, 8, 8, 8, 4), (8, 8, 8, 4, 4, 4), (8, 8, 8, 4, 4, 8, 8, 8)]
)
def test_machine_code_that_takes_other_parameters_is_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(PlanError, match="takes parameters"):
        lower(plan_of(), [Built("k", 128, 0, 0)], {"k": sizes})


@pytest.mark.parametrize(
    "change",
    [
        {"num_warps": "4"},
        {"num_warps": None},
        {"shared": -1},
        {"shared": True},
        {"global_scratch_size": 1 << 40},
        {"profile_scratch_size": 8},
        {"launch_cooperative_grid": True},
        {"launch_pdl": True},
        {"tmem_size": 512},
        {"tensordesc_meta": True},
    ],
)
def test_what_the_child_says_is_checked(change: dict[str, Any]) -> None:
    assert read_built(FOUND, "k") == Built("k", 128, 16, 0)
    with pytest.raises(PlanError):
        read_built({**FOUND, **change}, "k")


@pytest.mark.parametrize(("threads", "shared"), [(0, 0), (2048, 0), (128, 1 << 29)])
def test_forged_numbers_meet_the_limits_of_every_plan(threads: int, shared: int) -> None:
    built = Built("k", threads, shared, 0)
    with pytest.raises(PlanError, match="step 0"):
        lower(plan_of(), [built], {"k": (8, 8, 8, 4, 4)})


def test_a_plan_that_was_not_compiled_is_not_launched(tmp_path: Any) -> None:
    found = load_program(tmp_path / "none", Plan.from_document(document(TASK, reduction(TASK, 32))))
    assert isinstance(found, LoadFailed) and "Triton" in found.reason
