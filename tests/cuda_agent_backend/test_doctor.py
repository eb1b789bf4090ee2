"""Doctor: each check on facts of machines that are not this one, and the look at this one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent_backend.cli.doctor import (
    Absent,
    Check,
    Facts,
    Found,
    diagnose,
    examine,
    judge_isolation,
    worst,
)
from sandbox.isolation.mechanisms import Isolation

GOOD = Facts(
    system="Linux",
    python=(3, 12),
    torch="2.13.0+cpu",
    threads=2,
    cores=2,
    gpu=None,
    cxx=Found("g++ 12"),
    cuda=Absent("no nvcc", "install CUDA"),
    ninja=Found("ninja"),
    launcher=Found("_launcher.so"),
    native=Found("built"),
    cache_folder=Found("kernels"),
    entry_point=Found("cuda_agent"),
)
ABSENT = Absent("it is not there", "put it there")


def check(facts: Facts, name: str) -> Check:
    return next(check for check in diagnose(facts) if check.name == name)


def test_a_sound_machine_without_a_gpu_is_all_well() -> None:
    assert worst(diagnose(GOOD)) == "ok"


@pytest.mark.parametrize(
    ("change", "name", "status"),
    [
        ({"system": "Darwin"}, "system", "fail"),
        ({"python": (3, 10)}, "python", "fail"),
        ({"python": (3, 14)}, "python", "warn"),
        ({"torch": "2.10.1"}, "torch", "fail"),
        ({"torch": "2.15.0"}, "torch", "warn"),
        ({"torch": ""}, "torch", "fail"),
        ({"threads": 4}, "OpenMP threads", "warn"),
        ({"gpu": ("V100", (7, 0))}, "GPU", "warn"),
        ({"gpu": ("H200", (9, 0))}, "CUDA compiler", "fail"),
        ({"cxx": ABSENT}, "C++ compiler", "fail"),
        ({"ninja": ABSENT}, "ninja", "warn"),
        ({"launcher": ABSENT}, "launcher extension", "fail"),
        ({"native": ABSENT}, "native operators", "warn"),
        ({"cache_folder": ABSENT}, "kernel cache folder", "fail"),
        ({"entry_point": ABSENT}, "torch.compile entry point", "warn"),
        ({"isolation": ABSENT}, "isolation of candidates", "warn"),
        ({"disassembler": ABSENT}, "disassembler", "warn"),
        ({"sanitizer": ABSENT, "gpu": ("H200", (9, 0))}, "compute-sanitizer", "warn"),
    ],
)
def test_what_is_wrong_is_graded_and_comes_with_a_remedy(
    change: dict[str, object], name: str, status: str
) -> None:
    found = check(replace(GOOD, **change), name)  # type: ignore[arg-type]
    assert found.status == status
    assert found.remedy


def test_nobody_has_to_have_triton() -> None:
    found = check(replace(GOOD, triton=ABSENT), "Triton")
    assert found.status == "ok" and ABSENT.reason in found.found


def test_without_a_gpu_nobody_misses_the_sanitizer() -> None:
    assert check(replace(GOOD, sanitizer=ABSENT), "compute-sanitizer").status == "ok"


def test_a_gpu_of_the_right_kind_is_well() -> None:
    facts = replace(GOOD, gpu=("H200", (9, 0)), cuda=Found("nvcc 13.0"))
    assert check(facts, "GPU").status == "ok"
    assert worst(diagnose(facts)) == "ok"


def test_isolation_that_lacks_something_says_what_and_what_follows() -> None:
    full = Isolation(7, True, True, True, True, "other")
    assert isinstance(judge_isolation(full), Found)
    found = judge_isolation(replace(full, files=0, why="files: not enabled"))
    assert isinstance(found, Absent)
    assert "Landlock" in found.reason and "not enabled" in found.reason
    assert "refused" in found.remedy


def test_this_machine_can_be_examined(tmp_path: Path) -> None:
    facts = examine(tmp_path / "kernels", tmp_path / "native", build=False)
    assert facts.torch
    assert facts.cache_folder == Found(str(tmp_path / "kernels"))
    assert len({check.name for check in diagnose(facts)}) == len(diagnose(facts))


def test_a_cache_folder_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    facts = examine(tmp_path / "file", tmp_path / "native", build=False)
    assert check(facts, "kernel cache folder").status == "fail"
