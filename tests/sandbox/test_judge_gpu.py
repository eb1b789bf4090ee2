"""The judge on a CUDA device."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from judge_kit import silu_bias

from cuda_agent_backend.runtime.machine import arch_of
from sandbox.compile.candidate import Compiled
from sandbox.compile.toolchain import Missing
from sandbox.failures import Crashed, Refused, TimedOut
from sandbox.judge import Judge
from sandbox.judge.glance import FIRST_GLANCES
from sandbox.judge.judgement import sanitize
from sandbox.judge.rounds import Effort
from sandbox.judge.session import Session
from sandbox.judge.settings import JudgeSettings, Timeouts
from sandbox.plan.candidate import Candidate, Origin
from sandbox.plan.plan import Buffer, Launch, Plan, Scalar
from sandbox.sanitizer.tool import find_sanitizer
from sandbox.task.specs import TensorSpec
from sandbox.task.task import Task
from sandbox.verdict import Baselines, Correct, Outcome, Unchecked, Wrong

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

ROWS, COLUMNS = 2048, 4096
TASK = dataclasses.replace(silu_bias(ROWS, COLUMNS), target="cuda")
SOURCE = """
extern "C" __global__ void kernel(const float* x, const float* b, float* y, long n, long columns) {
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) {
    const float v = x[i] + b[i % columns];
    y[i] = v / (1.0f + expf(-v));
  }
}
"""


def candidate(change: str = "", task: Task = TASK, origin: Origin = "sketch") -> Candidate:
    """The good kernel, or one spoilt by "old => new"."""
    source = SOURCE
    if change:
        old, new = change.split(" => ")
        assert old in source
        source = source.replace(old, new)
    inputs = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(task.inputs)]
    outputs = [Buffer(f"out{i}", "output", spec) for i, spec in enumerate(task.output_specs)]
    rows, columns = task.inputs[0].shape
    sizes = (Scalar("i64", rows * columns), Scalar("i64", columns))
    launch = Launch("kernel", (1024, 1, 1), (256, 1, 1), args=("in0", "in1", "out0", *sizes))
    return Candidate("cuda", "cuda", source, Plan("cuda", (*inputs, *outputs), (launch,)), origin)


@pytest.fixture(scope="module")
def gpu_judge(tmp_path_factory: pytest.TempPathFactory, native_dir: Path) -> Iterator[Judge]:
    arch = arch_of("cuda")
    folder = tmp_path_factory.mktemp("judge")
    timeouts = Timeouts(run=10.0)
    with Judge(
        JudgeSettings(
            "cuda", scratch_dir=folder, native_dir=native_dir, arch=arch, timeouts=timeouts
        )
    ) as made:
        yield made


def verify(judge: Judge, change: str = "") -> Outcome:
    return judge.verify(TASK, candidate(change))


def test_a_good_kernel_is_correct(gpu_judge: Judge) -> None:
    found = verify(gpu_judge)
    assert isinstance(found, Correct), found


def test_recorded_inputs_are_used_and_drawn_ones_afterwards(gpu_judge: Judge) -> None:
    recorded = [[torch.rand(ROWS, COLUMNS), torch.rand(COLUMNS)] for _ in range(2)]
    for _ in range(2):
        found = gpu_judge.verify(TASK, candidate(), recorded_inputs=recorded, thorough=True)
        assert isinstance(found, Correct), found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("1.0f + => 1.0001f +", "error"),
        ("i < n => i < n - 1", ""),
        ("const float v => if (i == 0) y[n + 3] = 1; const float v", "wrote beyond output 0"),
        ("const float v => if (i == 0) ((float*)x)[5] = 1; const float v", "wrote to input 0"),
    ],
)
def test_a_wrong_kernel_is_wrong(gpu_judge: Judge, change: str, reason: str) -> None:
    found = verify(gpu_judge, change)
    assert isinstance(found, Wrong), found
    assert reason in found.how_much


def test_a_fault_is_a_value_and_the_next_candidate_is_judged_right(gpu_judge: Judge) -> None:
    found = verify(gpu_judge, "const float v => if (i == 7) *(volatile int*)8 = 1; const float v")
    assert isinstance(found, Crashed), found
    assert isinstance(verify(gpu_judge), Correct)
    assert gpu_judge.roles.scratch.facts["device_memory"]["free_bytes"] > 0


@pytest.mark.parametrize(
    ("change", "found_by"),
    [
        ("", None),
        ("const float v = x[i] => const float v = 0.f * x[i + n] + x[i]", "memcheck"),
        ("const float v = x[i] => const float v = 0.f * y[i] + x[i]", "initcheck"),
    ],
)
def test_a_winner_is_sanitized(gpu_judge: Judge, change: str, found_by: str | None) -> None:
    if isinstance(find_sanitizer(), Missing):
        pytest.skip("no compute-sanitizer on this machine")
    small = dataclasses.replace(silu_bias(64, 256), target="cuda")  # initcheck tells of every read
    mine, evidence = candidate(change, small, "policy"), dict[str, Any]()
    session, compiled = gpu_judge.sessions.open(small), gpu_judge.compile(mine)
    assert isinstance(session, Session) and isinstance(compiled, Compiled)
    refusal = sanitize(gpu_judge.device, session, mine, compiled, evidence)
    bad = [r["tool"] for r in evidence["sanitizer"] if r["status"] == "errors"]
    assert (found_by in bad) if found_by else not bad, evidence
    assert isinstance(refusal, Refused) is bool(found_by)
    evidence.clear()
    sketched = dataclasses.replace(mine, origin="sketch")
    assert sanitize(gpu_judge.device, session, sketched, compiled, evidence) is None
    assert {r["status"] for r in evidence["sanitizer"]} == {"not run"}


def test_a_hang_is_a_value_and_the_next_candidate_is_judged_right(gpu_judge: Judge) -> None:
    endless = "const float v => while (*(volatile const float*)x != 12345.678f) {} const float v"
    found = verify(gpu_judge, endless)
    assert isinstance(found, TimedOut), found
    assert isinstance(verify(gpu_judge), Correct)


def test_baselines_and_a_verdict(gpu_judge: Judge) -> None:
    baselines = gpu_judge.baselines(TASK)
    assert isinstance(baselines, Baselines), baselines
    assert baselines.floor_seconds < 1.5 * baselines.best_seconds
    found = gpu_judge.judge(TASK, candidate(), effort=Effort(12, 24, 5.0))
    assert found.status in ("wins", "too_slow", "noisy"), found.reason
    assert found.evidence["machine"]["gpu"]


def test_outputs_go_through_locked_pages(gpu_judge: Judge) -> None:
    assert isinstance(verify(gpu_judge), Correct)
    session = gpu_judge.sessions.current
    assert session is not None
    assert session._outputs["scratch"]._locked is not None


def test_a_profile_of_what_is_far_behind_ends_soon_and_draws_nothing_in_the_judge(
    gpu_judge: Judge,
) -> None:
    gpu_judge.rest()  # a judgement draws, to compare
    slow = candidate(
        "const float v => for (int k = 0; k < 64; ++k) __nanosleep(1000); const float v"
    )
    found = gpu_judge.profile(TASK, slow, worth=1.0)
    assert isinstance(found, Unchecked), found
    assert found.speed.speedup.pairs == FIRST_GLANCES
    session = gpu_judge.sessions.current
    assert session is not None
    assert all(inputs._values is None for inputs in session.timed)
    assert any(inputs.perturbations for inputs in session.timed)


def test_timed_runs_are_compared_with_values_that_are_had_again(gpu_judge: Judge) -> None:
    """A candidate that is right is right by values that the judge made anew, after all changes of the race."""
    found = gpu_judge.judge(TASK, candidate(), effort=Effort(24, 24, 5.0))
    assert found.status in ("wins", "too_slow", "noisy"), found.reason
    assert found.evidence["checked_runs"] >= 1
    assert sum(inputs["stirs"] for inputs in found.evidence["timed_inputs"]) >= 24
    assert all(seconds for seconds in found.evidence["samples"]["wall"]["candidate"])


CLOCKS = """
extern "C" __global__ void kernel(const float* x, const float* b, float* y, float* t, long n, long columns) {
  const bool again = t[0] == x[0] && t[1] == x[n / 2] && t[2] == x[n - 1], known = t[3] == 12345.0f;
  const long end = known && !again ? FIRST_CALL : n;
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < end; i += (long)gridDim.x * blockDim.x) {
    const float v = x[i] + b[i % columns];
    y[i] = v / (1.0f + expf(-v));
  }
}
extern "C" __global__ void mark(const float* x, float* t, long n) {
  t[0] = x[0]; t[1] = x[n / 2]; t[2] = x[n - 1]; t[3] = 12345.0f;
}
"""
"""Knows inputs again by marks in a temporary: in a race, those of a call by wall time."""


def by_clock(first_call: str) -> Candidate:
    """Does so much in the first call on any inputs, which is the one that the device times."""
    plain = candidate()
    marks = Buffer("t", "temporary", TensorSpec("float32", (3 << 18,), (1,)))  # nobody else's size
    count, columns = Scalar("i64", ROWS * COLUMNS), Scalar("i64", COLUMNS)
    args = ("in0", "in1", "out0", "t", count, columns)
    steps = (
        Launch("kernel", (1024, 1, 1), (256, 1, 1), args=args),
        Launch("mark", (1, 1, 1), (1, 1, 1), args=("in0", "t", count)),
    )
    plan = Plan("cuda", (*plain.plan.buffers, marks), steps)
    source = CLOCKS.replace("FIRST_CALL", first_call)
    return dataclasses.replace(plain, source=source, plan=plan)


def test_who_leaves_out_work_in_calls_that_the_device_times_is_wrong(gpu_judge: Judge) -> None:
    honest = gpu_judge.judge(TASK, by_clock("n"), effort=Effort(12, 24, 5.0))
    assert honest.status in ("wins", "too_slow", "noisy"), honest.reason
    assert all(honest.evidence["checked_calls"][clock] >= 1 for clock in ("device", "wall"))
    assert all(seconds for seconds in honest.evidence["samples"]["wall"]["candidate"])
    hostile = gpu_judge.judge(TASK, by_clock("n / 2"), effort=Effort(12, 24, 5.0))
    assert hostile.status == "wrong", hostile.reason
    assert "a timed run" in hostile.reason


def test_who_writes_to_an_input_in_timed_runs_is_wrong_though_outputs_are_right(
    gpu_judge: Judge,
) -> None:
    """By a rounding, in calls that find their marks of an earlier one, which guarded runs do not."""
    writer = by_clock("n")
    seen = "t[0] = x[0];"
    written = "if (t[3] == 12345.0f) ((float*)x)[7] = nextafterf(x[7], 100.0f); " + seen
    hostile = dataclasses.replace(writer, source=writer.source.replace(seen, written))
    assert hostile.source != writer.source
    found = gpu_judge.judge(TASK, hostile, effort=Effort(12, 24, 5.0))
    assert found.status == "wrong", found.reason
    assert "a timed run: wrote to input 0" in found.reason


def test_what_fork_servers_import_leaves_the_driver_asleep() -> None:
    """Otherwise every worker would import it all anew: 10 s instead of one."""
    code = (
        "import os; from sandbox.workers import fork_server as f; os.environ[f.ASK_NVML] = '1'\n"
        "for name in f.PRELOADED: __import__(name)\n"
        "print(f.cuda_is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
