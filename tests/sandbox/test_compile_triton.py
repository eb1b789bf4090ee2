"""Triton source to a cubin without a GPU; and that source which does something else gains nothing."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judge_kit import spec
from test_confine import working_in
from triton_kit import (
    DESCRIBED,
    SOURCE,
    Specs,
    candidate,
    changed,
    document,
    needs_isolation,
    needs_triton,
    pointwise,
    reduction,
)

from sandbox.compile.candidate import (
    Compiled,
    CompileFailed,
    CompileTimedOut,
    Refused,
    compile_candidate,
)
from sandbox.compile.cubin import parameter_sizes, parse
from sandbox.compile.toolchain import Missing
from sandbox.compile.triton import compile_triton
from sandbox.isolation.limits import Limits
from sandbox.isolation.mechanisms import Isolation
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Plan, Scalar

pytestmark = [needs_triton, needs_isolation]
ARCH = "sm_90a"
INPUTS = (spec(128, 300), spec(300))
TASK = Specs(INPUTS, (spec(128, 300),))
SUMS = Specs(INPUTS, (spec(128),))
BOTH = Specs(INPUTS, (spec(128, 300), spec(128)))


def both() -> Candidate:
    """Two kernels in one plan."""
    second = reduction(BOTH, 512, args=["in0", "out1", {"i32": 300}], num_warps=2)
    return candidate(document(BOTH, pointwise(BOTH), second))


def one(source: str = SOURCE) -> Candidate:
    return candidate(document(TASK, pointwise(TASK)), source)


def test_a_pointwise_kernel_and_a_reduction_become_one_cubin_and_a_launch_plan(
    tmp_path: Path,
) -> None:
    made = compile_candidate(both(), tmp_path, ARCH)
    assert isinstance(made, Compiled), made
    data = made.path.read_bytes()
    assert parse(data).kernels == {"silu_bias_0", "row_sum_1"} and not parse(data).globals
    assert made.toolchain.version.startswith("triton ")
    assert made.plan is not None and Plan.from_json(made.plan.to_json()) == made.plan
    first, second = made.plan.launches()
    assert (first.grid, first.block) == ((38, 1, 1), (128, 1, 1))
    assert first.args[:5] == ("in0", "in1", "out0", Scalar("i32", 38400), Scalar("i32", 300))
    assert (second.kernel, second.block) == ("row_sum_1", (64, 1, 1))
    assert second.shared > 0  # two warps exchange their sums
    for launch in (first, second):
        assert len(parameter_sizes(data)[launch.kernel]) == len(launch.args)
        assert made.facts[launch.kernel]["registers"] > 0
    again = made.launched(both())
    assert again.plan == made.plan and again.source == both().source


def test_one_kernel_with_other_constants_is_another_and_with_the_same_ones_is_one(
    tmp_path: Path,
) -> None:
    small, large = reduction(SUMS, 512), reduction(SUMS, 1024)
    made = compile_candidate(candidate(document(SUMS, small, large, small)), tmp_path, ARCH)
    assert isinstance(made, Compiled) and made.plan is not None
    assert [ln.kernel for ln in made.plan.launches()] == ["row_sum_0", "row_sum_1", "row_sum_0"]


def test_scratch_memory_and_clusters_are_in_the_launch_plan(tmp_path: Path) -> None:
    shapes = Specs((spec(128, 512),), (spec(128),))
    step = document(shapes, reduction(shapes, 512))
    made = compile_candidate(candidate(step, DESCRIBED), tmp_path, ARCH)
    assert isinstance(made, Compiled) and made.plan is not None, made
    assert made.plan.temporary_specs[0].extent >= 128 * 128  # a descriptor has 128 bytes
    assert made.plan.launches()[0].args[-2] == "triton_scratch_0"
    two = candidate(document(TASK, pointwise(TASK, num_ctas=2)))
    made = compile_candidate(two, tmp_path, ARCH)
    assert isinstance(made, Compiled) and made.plan is not None, made
    (launch,) = made.plan.launches()
    assert (launch.grid, launch.cluster) == ((76, 1, 1), (2, 1, 1))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tl.exp(-v)", "tl.expp(-v)", "expp"),
        ("tl.sum(v, 0)", "tl.sum(v, 0", "SyntaxError"),
        (
            "def silu_bias",
            "def other",
            "no @triton.jit function 'silu_bias'; the source has: other",
        ),
        ("import triton\n", "import no_such_module\n", "No module named"),
        ("columns, stride, BLOCK", "columns, BLOCK", "gives 6 args"),
        ("BLOCK: tl.constexpr", "SIZE: tl.constexpr", "no parameter BLOCK"),
    ],
)
def test_what_is_wrong_comes_back_in_tritons_words(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    found = compile_candidate(changed(one(), old, new), tmp_path, ARCH)
    assert isinstance(found, CompileFailed) and said in found.log, found
    assert not list(tmp_path.iterdir())


def test_what_an_autotuner_would_choose_the_plan_says(tmp_path: Path) -> None:
    tuned = "@triton.autotune([triton.Config({'BLOCK': 64})], ['n'])\n@triton.jit\ndef silu_bias"
    made = compile_candidate(changed(one(), "@triton.jit\ndef silu_bias", tuned), tmp_path, ARCH)
    assert isinstance(made, Compiled), made


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ('tl.device_print("v", v)\n    tl.store(y + i', "prints on the device"),
        ("v = tl.sin(v)\n    tl.store(y + i", "tables in writable memory"),
    ],
)
def test_the_machine_code_is_held_to_the_rules_of_cuda(tmp_path: Path, new: str, said: str) -> None:
    found = compile_candidate(changed(one(), "tl.store(y + i", new), tmp_path, ARCH)
    assert isinstance(found, Refused) and said in found.reason, found


def test_functions_of_the_mathematical_library_leave_nothing_behind(tmp_path: Path) -> None:
    found = compile_candidate(changed(one(), "tl.exp(-v)", "tl.erf(-v)"), tmp_path, ARCH)
    assert isinstance(found, Compiled), found


@pytest.mark.parametrize("change", [{"language": "cuda"}, {"plan": None}, {"target": "cpu"}])
def test_language_target_and_plan_must_agree(tmp_path: Path, change: dict[str, Any]) -> None:
    if "plan" in change:
        cuda = {"kind": "launch", "kernel": "silu_bias"}
        change = {"plan": Plan.from_document(document(TASK, cuda))}
    found = compile_candidate(replace(one(), **change), tmp_path, ARCH)
    assert isinstance(found, Refused)


def test_python_is_not_imported_where_it_cannot_be_confined_nor_without_triton(
    tmp_path: Path,
) -> None:
    weak = Isolation(why="an old kernel")
    found = compile_triton(one(), tmp_path, ARCH, Limits(), isolation=weak)
    assert isinstance(found, Refused) and "an old kernel" in found.reason
    found = compile_triton(one(), tmp_path, ARCH, Limits(), toolchain=Missing("none", "install"))
    assert found == CompileFailed("none; install", passing=True)
    assert not list(tmp_path.iterdir())


def hostile(folder: Path, source: str, seconds: float = 60.0, memory: int = 8 << 30) -> Any:
    """What comes of a source that is imported within limits. The clock stops it first: processor time is twice that."""
    limits = Limits(seconds, int(2 * seconds) + 1, memory)
    return compile_triton(one(source), folder, ARCH, limits)


def said(folder: Path, expression: str) -> str:
    """The value of an expression, or the error that it raises, as the source sees it."""
    source = f"""
import os, socket, pathlib, sys, ctypes
try:
    found = repr({expression})
except BaseException as error:
    found = type(error).__name__
print("found", found)
sys.exit(1)
"""
    found = hostile(folder, source)
    assert isinstance(found, CompileFailed), found
    return found.log.split("found ", 1)[1].splitlines()[0]


def test_secrets_are_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_TOKEN", "s3cret")
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    paths = [secret, "/etc/passwd", Path.home(), f"/proc/{os.getpid()}/environ", __file__]
    for number, path in enumerate(paths):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = said(folder, f"open({str(path)!r}).read()")
        assert found in ("PermissionError", "IsADirectoryError"), (path, found)
    folder = tmp_path / "environment"
    folder.mkdir()
    assert "s3cret" not in said(folder, "dict(os.environ)")


def test_there_is_no_network_and_nobody_to_signal(tmp_path: Path) -> None:
    for name, expression in (
        ("network", "socket.create_connection(('127.0.0.1', 9))"),
        ("unix", "socket.socket(socket.AF_UNIX)"),
        ("signal", f"os.kill({os.getpid()}, 9)"),
        ("parent", "os.kill(os.getppid(), 9)"),
    ):
        (tmp_path / name).mkdir()
        assert said(tmp_path / name, expression) == "PermissionError"


def test_what_it_forks_ends_with_it(tmp_path: Path) -> None:
    source = """
import os, time
for _ in range(10):
    if os.fork() == 0:
        os.setsid()
        time.sleep(300)
os._exit(0)
"""
    assert isinstance(hostile(tmp_path, source), CompileFailed)
    deadline = time.monotonic() + 10
    while (left := working_in(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def test_time_and_memory_are_limited(tmp_path: Path) -> None:
    for name in ("time", "memory"):
        (tmp_path / name).mkdir()
    endless = hostile(tmp_path / "time", "while True: pass", seconds=1.0)
    assert isinstance(endless, CompileTimedOut)
    large = hostile(tmp_path / "memory", "x = bytearray(4 << 30)", memory=2 << 30)
    assert isinstance(large, CompileFailed) and "MemoryError" in large.log


PTX = """
.version 8.0
.target sm_90a
.address_size 64
.global .align 4 .b8 kept[64];
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 d, .param .u32 e) {
  .reg .b64 %r<9>;
  mov.b64 %r1, kept; st.global.b64 [%r1], %r1;
  ret;
}
"""
ANSWER: dict[str, Any] = {
    **dict.fromkeys(("shared", "global_scratch_size", "profile_scratch_size"), 0),
    "name": "k",
    "num_warps": 4,
    "ptx": PTX,
}
HONEST = {**ANSWER, "ptx": PTX.replace("mov.b64 %r1, kept; st.global.b64 [%r1], %r1;", "")}


def forged(folder: Path, *kernels: Any) -> Any:
    """What comes of a source that answers in Triton's place."""
    answer = json.dumps({"kernels": kernels})
    return hostile(folder, f"import os; open('answer', 'w').write({answer!r}); os._exit(0)")


def test_an_answer_in_tritons_place_is_no_more_than_cuda_source_could_be(tmp_path: Path) -> None:
    for name in ("honest", "hostile"):
        (tmp_path / name).mkdir()
    made = forged(tmp_path / "honest", HONEST)
    assert isinstance(made, Compiled), made
    assert made.plan is not None and made.plan.launches()[0].block == (128, 1, 1)
    found = forged(tmp_path / "hostile", ANSWER)
    assert isinstance(found, Refused) and "kept" in found.reason


@pytest.mark.parametrize(
    "change",
    [
        {"num_warps": 64},
        {"shared": 1 << 25},
        {"shared": "0"},
        {"name": "elsewhere"},
        {"name": None},
        {"ptx": "no PTX"},
        {"ptx": 5},
        {"ptx": PTX.replace("sm_90a", "sm_80")},
        {"ptx": HONEST["ptx"].replace(", .param .u32 e", "")},
        {"ptx": HONEST["ptx"].replace(".param .u32 e", ".param .u32 e, .param .b8 f[64]")},
        {"ptx": HONEST["ptx"].replace(".visible .entry k", "/* .entry k( */ .visible .entry m")},
        {"global_scratch_size": 1 << 20},
    ],
)
def test_forged_facts_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    found = forged(tmp_path, {**HONEST, **change})
    assert isinstance(found, CompileFailed | Refused), found


@pytest.mark.parametrize(
    "source",
    [
        "os.symlink('/etc/shadow', 'answer')",
        "os.symlink('/dev/zero', 'answer')",
        "os.mkfifo('answer')",
        "os.mkdir('answer')",
        "open('answer', 'w').truncate(80 << 20)",
        "open('answer', 'w').write('[' * 1000000)",
        "open('answer', 'w').write('{\"kernels\": []}')",
        "open('answer', 'w').write('{\"kernels\": [5]}')",
        "open('kernel.cubin', 'w').write('no cubin')",
    ],
)
def test_an_answer_that_is_none_is_a_failure(tmp_path: Path, source: str) -> None:
    found = hostile(tmp_path, f"import os\n{source}\nos._exit(0)")
    assert isinstance(found, CompileFailed), found
    assert "root:" not in found.log


def test_a_socket_of_the_judge_is_not_inherited(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        os.set_inheritable(theirs.fileno(), True)
        assert said(tmp_path, f"os.fstat({theirs.fileno()})") == "OSError"
