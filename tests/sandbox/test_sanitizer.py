"""compute-sanitizer as a step before promotion: its job, its words, and what it finds on a device."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from launch_kit import CUDA_ADD, cuda, cuda_plan

from cuda_agent_backend.runtime.machine import arch_of
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.toolchain import Missing
from sandbox.launcher.program import steps_of
from sandbox.sanitizer import driver as sanitized
from sandbox.sanitizer import tool as sanitizer
from sandbox.sanitizer.tool import TOOLS, job_of, read_report, read_unfinished, sanitize, write_job

CLEAN = f"""========= COMPUTE-SANITIZER
{sanitized.FINISHED}
========= ERROR SUMMARY: 0 errors
"""
READ_BEYOND = f"""========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at add+0xb0
=========     by thread (0,0,0) in block (1,0,0)
=========     Access at 0x7f is out of bounds
=========         Host Frame: main
{sanitized.FINISHED}
========= ERROR SUMMARY: 3 errors
"""
RACE = f"""========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at add+0x90 and Read access at add+0xa0 [128 hazards]
{sanitized.FINISHED}
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
RACE_FREE = (
    f"{sanitized.FINISHED}\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
)


UNINITIALIZED = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at kernel+0xa30
"""


@pytest.mark.parametrize(
    ("tool", "output", "status"),
    [
        ("initcheck", UNINITIALIZED, "errors"),
        ("memcheck", READ_BEYOND, "errors"),
        ("racecheck", RACE, "errors"),
        ("memcheck", "========= COMPUTE-SANITIZER\n", "not run"),
        ("memcheck", "", "not run"),
    ],
)
def test_errors_count_though_the_tool_did_not_come_to_its_end(
    tool: str, output: str, status: str
) -> None:
    found = read_unfinished(tool, output, 60.0)
    assert found.status == status
    assert found.detail


@pytest.mark.parametrize(
    ("tool", "output", "status", "detail"),
    [
        ("memcheck", CLEAN, "clean", ""),
        ("memcheck", READ_BEYOND, "errors", "Invalid __global__ read of size 4 bytes\nat add+0xb0"),
        ("racecheck", RACE, "errors", "Race reported"),
        ("racecheck", RACE_FREE, "clean", ""),
        ("racecheck", CLEAN, "not run", "ERROR SUMMARY"),
        ("memcheck", CLEAN.replace(sanitized.FINISHED, ""), "not run", "0 errors"),
        ("initcheck", "========= Error: no device", "not run", "no device"),
        ("initcheck", "", "not run", "nothing"),
    ],
)
def test_the_tools_words_are_read(tool: str, output: str, status: str, detail: str) -> None:
    found = read_report(tool, output, 1.0)
    assert (found.tool, found.status, found.seconds) == (tool, status, 1.0)
    assert detail in found.detail
    assert "Host Frame" not in found.detail


def test_a_job_holds_sizes_bytes_and_launches(tmp_path: Path) -> None:
    plan = cuda_plan()
    job = job_of(plan)
    assert [entry["bytes"] for entry in job["buffers"]] == [
        b.spec.extent * b.spec.itemsize for b in plan.buffers
    ]
    assert [entry["content"] for entry in job["buffers"]] == ["input-0", "input-1", ""]
    ((kernel, grid, block, shared, cluster, *switches, arguments),) = job["steps"]
    assert (kernel, shared, cluster, switches) == ("add", 0, None, [False, False])
    assert len(grid) == len(block) == 3
    assert arguments[:3] == [0, 1, 2]
    assert all(isinstance(sanitized._argument(item), bytes) for item in arguments[3:])

    (tmp_path / "binary").write_bytes(b"cubin")
    tensors = [torch.arange(s.numel, dtype=torch.float32).view(s.shape) for s in plan.input_specs]
    folder = tmp_path / "job"
    folder.mkdir()
    write_job(folder, tmp_path / "binary", plan, tensors)
    assert json.loads((folder / "job.json").read_text()) == json.loads(json.dumps(job))
    assert (folder / "input-1").read_bytes() == tensors[1].numpy().tobytes()


def test_a_job_that_was_written_is_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both ends together, with a stand-in for the device."""
    plan, loaded = cuda_plan(), []

    class Device:
        def buffer(self, size: int, content: bytes | None) -> int:
            return size if content is None else -len(content)

        def synchronize(self) -> None: ...

    class Extension:
        def load_cuda(self, binary: bytes, steps: list[Any]) -> Any:
            loaded.append((binary, steps))
            return self

        def launch(self, addresses: list[int], stream: int, device: int) -> None:
            loaded.append(addresses)

    (tmp_path / "binary").write_bytes(b"cubin")
    tensors = [torch.zeros(s.shape) for s in plan.input_specs]
    folder = tmp_path / "job"
    folder.mkdir()
    write_job(folder, tmp_path / "binary", plan, tensors)
    monkeypatch.setattr(sanitized, "Device", Device)
    monkeypatch.setattr(sanitized, "_extension", lambda _: Extension())
    sanitized.run(folder)
    (binary, steps), addresses = loaded
    assert binary == b"cubin" and capsys.readouterr().out.strip() == sanitized.FINISHED
    assert [len(step) for step in steps] == [len(step) for step in steps_of(plan)]
    assert [list(step[-1]) for step in steps] == [list(step[-1]) for step in steps_of(plan)]
    sizes = [b.spec.extent * b.spec.itemsize for b in plan.buffers]
    assert addresses == [-sizes[0], -sizes[1], sizes[2]]


def test_without_the_tool_nothing_is_run_and_why_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: Missing("no tool", "install it"))
    found = sanitize(tmp_path / "binary", cuda_plan(), list)
    assert [report.tool for report in found] == list(TOOLS)
    assert {report.status for report in found} == {"not run"}
    assert found[0].detail == "no tool; install it"


def test_a_tool_runs_confined_in_the_jobs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the tool, as there is no device here."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        "#!/bin/sh\ntest -s job.json || exit 1\n"
        "cat /etc/passwd >/dev/null 2>&1 && echo 'ERROR SUMMARY: 1 error' && exit 1\n"
        "echo $CUDA_VISIBLE_DEVICES | grep -q 7 || exit 1\n"
        f"echo '{sanitized.FINISHED}'\n"
        'echo "========= ERROR SUMMARY: 0 errors"\n'
        'echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"\n'
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: tool)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    (tmp_path / "binary").write_bytes(b"cubin")
    plan = cuda_plan()
    inputs = [torch.zeros(s.shape) for s in plan.input_specs]
    found = sanitize(tmp_path / "binary", plan, lambda: inputs)
    assert [(report.tool, report.status) for report in found] == [(t, "clean") for t in TOOLS], (
        found
    )


def test_each_tool_has_a_folder_of_its_own_that_its_user_reads(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        (tmp_path / "kernel.cubin").write_bytes(b"code")
        places = [sanitizer._linked(tmp_path, name) for name in TOOLS]
    finally:
        os.umask(before)
    assert len(set(places)) == len(TOOLS)
    for place in places:
        file = place / "kernel.cubin"
        assert file.read_bytes() == b"code" and file.stat().st_mode & 0o444 == 0o444


def test_inputs_that_cannot_be_had_are_no_error_of_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw() -> list[torch.Tensor]:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: tmp_path / "tool")
    (tmp_path / "binary").write_bytes(b"cubin")
    found = sanitize(tmp_path / "binary", cuda_plan(), draw)
    assert {report.status for report in found} == {"not run"}
    assert "not enough memory" in found[0].detail
    monkeypatch.setattr(sanitizer, "MAX_INPUT_BYTES", 1)
    assert "at most 1" in sanitize(tmp_path / "binary", cuda_plan(), draw)[0].detail


def test_a_machine_without_a_driver_is_no_error_of_the_candidate(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a driver")
    with pytest.raises(OSError, match="libcuda"):
        sanitized.Device()


def built(source: str, folder: Path) -> Path:
    made = compile_candidate(cuda(source), folder, arch_of("cuda"))
    assert isinstance(made, Compiled), made
    return made.path


GUARD = "if (i < n) o[i] = x[i] + scale * y[i];"


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("change", "tool"),
    [
        (GUARD, None),
        ("if (i < n) o[i] = x[i] + scale * y[i] + 0.f * x[i + 64];", "memcheck"),
        (
            "__shared__ float s[32]; s[threadIdx.x % 32] = x[i % 32];"
            "if (i < n) o[i] = s[(threadIdx.x + 1) % 32];",
            "racecheck",
        ),
        ("if (i < n) o[i] = o[i] * 0.f + x[i];", "initcheck"),
    ],
)
def test_what_the_tools_find_on_a_device(tmp_path: Path, change: str, tool: str | None) -> None:
    if isinstance(sanitizer.find_sanitizer(), Missing):
        pytest.skip("no compute-sanitizer on this machine")
    plan = cuda_plan()
    inputs = [torch.rand(s.shape) for s in plan.input_specs]
    found = sanitize(built(CUDA_ADD.replace(GUARD, change), tmp_path), plan, lambda: inputs)
    assert "not run" not in {report.status for report in found}, found
    assert [report.tool for report in found if report.status == "errors"] == (
        [tool] if tool else []
    )
