"""A candidate with library calls from end to end on the cpu: compiled, run in a sealed worker, judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from judge_kit import spec
from library_kit import RELU, whole

from sandbox.isolation.confine import offered
from sandbox.judge import Judge
from sandbox.judge.rounds import Effort
from sandbox.judge.settings import JudgeSettings, Timeouts
from sandbox.plan.candidate import Candidate, Origin
from sandbox.plan.plan import Buffer, Convolution, Gemm, Launch, LibraryCall, Plan
from sandbox.task.task import InputRef, Node, NodeRef, Task
from sandbox.verdict import Correct, Wrong

M, K, N = 96, 64, 80
SHORT = Effort(min_rounds=12, max_rounds=24, seconds=2.0)
PRODUCT = Task(
    "cpu",
    (spec(M, K), spec(K, N)),
    (
        Node("aten.mm.default", {"self": InputRef(0), "mat2": InputRef(1)}),
        Node("aten.relu.default", {"self": NodeRef(0)}),
    ),
    (NodeRef(1),),
    (spec(M, N),),
)


def candidate(call: LibraryCall | None = None, origin: Origin = "policy") -> Candidate:
    """relu(x @ y), the product by a library."""
    buffers = (
        Buffer("x", "input", PRODUCT.inputs[0]),
        Buffer("y", "input", PRODUCT.inputs[1]),
        Buffer("o", "output", PRODUCT.output_specs[0]),
        Buffer("t", "temporary", spec(M * N)),
    )
    call = call or Gemm(whole("x", M, K), whole("y", K, N), whole("t", M, N))
    text = RELU.replace("TYPE", "float").replace("FROM", "3").replace("TO", "2")
    # NaN must stay NaN, as in eager mode
    text = text.replace("COUNT", str(M * N)).replace("t[i] > 0 ? t[i] : 0", "t[i] < 0 ? 0 : t[i]")
    return Candidate("cpu", "c++", text, Plan("cpu", buffers, (call, Launch("relu"))), origin)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory, native_dir: Path) -> Iterator[Judge]:
    """One that may run C++ of a policy, in a worker that is sealed before it is loaded."""
    reason = offered().why_no_untrusted_code
    if reason is not None:
        pytest.skip(f"C++ of a policy: {reason}")
    folder = tmp_path_factory.mktemp("judge")
    with Judge(
        JudgeSettings(
            "cpu",
            scratch_dir=folder,
            native_dir=native_dir,
            inductor={"cpp_cache_precompile_headers": False},
            timeouts=Timeouts(run=10.0),
            consent=True,
        )
    ) as made:
        yield made


@pytest.mark.parametrize("origin", ["sketch", "policy"])
def test_a_product_of_the_library_before_a_kernel_is_correct(judge: Judge, origin: Origin) -> None:
    found = judge.verify(PRODUCT, candidate(origin=origin), thorough=True)
    assert isinstance(found, Correct), found


def test_a_call_on_other_numbers_is_wrong(judge: Judge) -> None:
    swapped = Gemm(whole("x", M, K), whole("y", K, N), whole("t", M, N))
    swapped = replace(swapped, a=replace(swapped.a, stride=(K, 0)))
    assert isinstance(judge.verify(PRODUCT, candidate(swapped)), Wrong)


def test_what_a_call_leaves_unwritten_is_found(judge: Judge) -> None:
    short = Gemm(whole("x", M - 1, K), whole("y", K, N), whole("t", M - 1, N))
    assert isinstance(judge.verify(PRODUCT, candidate(short)), Wrong)


@pytest.mark.alone  # beside others the machine may be too noisy for a verdict
def test_a_candidate_with_a_call_is_judged(judge: Judge) -> None:
    found = judge.judge(PRODUCT, candidate(), effort=SHORT)
    assert found.status in ("wins", "too_slow", "noisy"), found.reason
    assert found.accuracy is not None


def test_a_convolution_of_the_library_runs_in_a_sealed_worker(judge: Judge) -> None:
    task = Task(
        "cpu",
        (spec(2, 8, 16, 16), spec(8, 8, 3, 3)),
        (
            Node("aten.relu.default", {"self": InputRef(0)}),
            Node(
                "aten.convolution.default",
                {
                    "input": NodeRef(0), "weight": InputRef(1), "bias": None, "stride": (1, 1), "padding": (1, 1),
                    "dilation": (1, 1), "transposed": False, "output_padding": (0, 0), "groups": 1,
                },
            ),
        ),
        (NodeRef(1),),
        (spec(2, 8, 16, 16),),
    )  # fmt: skip
    shape = (2, 8, 16, 16)
    call = Convolution(
        whole("t", *shape), whole("w", 8, 8, 3, 3), whole("o", *shape),
        stride=(1, 1), padding=(1, 1), dilation=(1, 1), output_padding=(0, 0),
    )  # fmt: skip
    buffers = (
        Buffer("x", "input", task.inputs[0]),
        Buffer("w", "input", task.inputs[1]),
        Buffer("o", "output", task.output_specs[0]),
        Buffer("t", "temporary", spec(torch.empty(shape).numel())),
    )
    text = RELU.replace("TYPE", "float").replace("FROM", "0").replace("TO", "3")
    text = text.replace("COUNT", "4096").replace("t[i] > 0 ? t[i] : 0", "t[i] < 0 ? 0 : t[i]")
    plan = Plan("cpu", buffers, (Launch("relu"), call))
    found = judge.verify(task, Candidate("cpu", "c++", text, plan, "policy"))
    assert isinstance(found, Correct), found
