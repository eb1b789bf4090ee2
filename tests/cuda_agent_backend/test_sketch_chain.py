"""Launches that overlap: every kernel waits by itself, and results are as one after the other."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, sample

from cuda_agent_backend.codegen import api
from cuda_agent_backend.codegen.cuda.common.dependent_launch import FOLLOW, KERNEL, chain_launches
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.disassembly import find_disassembler
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Launch


def of_two_kernels() -> Sample:
    x = torch.randn(70, 300, generator=torch.Generator().manual_seed(0))
    it = sample(lambda x: (x.sum(0) * 2, (x - x.amax(1, keepdim=True)).exp()), x)
    return dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))


def made_for(it: Sample, arch: str) -> Candidate:
    found = api.generate(it.analysis, it.analysis.schedules()[0], DeviceFacts(arch=arch))
    assert isinstance(found, Candidate), found
    return found


def dependent(candidate: Candidate) -> list[bool]:
    return [step.dependent for step in candidate.plan.steps if isinstance(step, Launch)]


def test_all_launches_but_the_first_are_dependent_and_all_kernels_wait_first(
    tmp_path: Path,
) -> None:
    it = of_two_kernels()
    made = made_for(it, "sm_90a")
    first, *others = dependent(made)
    assert not first and others and all(others)
    beginnings = [made.source[found.end() :].lstrip() for found in KERNEL.finditer(made.source)]
    assert len(beginnings) == len(re.findall("__global__", made.source)) >= len(dependent(made))
    assert all(text.startswith(FOLLOW) for text in beginnings)
    results = cuda_emulator.run(made.source, made.plan, it.inputs, tmp_path)
    for got, want in zip(results, it.want, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_older_devices_launch_one_after_the_other(arch: str) -> None:
    made = made_for(of_two_kernels(), arch)
    assert not any(dependent(made)) and FOLLOW not in made.source.split("extern", 1)[1]


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.skipif(isinstance(find_disassembler("cuda"), Missing), reason="no nvdisasm")
def test_compilers_move_no_access_before_the_wait(tmp_path: Path) -> None:
    """Loads past the caches are assembly that a compiler may move: it has not been seen to."""
    x = torch.randn(4096, 1024)
    it = sample(lambda x, y: (x.sum(0) * 2, (x.sum() * y).exp()), x, x + 1)
    it = dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))
    made = made_for(it, "sm_90a")
    *_, last = made.source.split('extern "C"')
    assert "load_once" in last and dependent(made)[-1]
    compiled = compile_candidate(made, tmp_path, "sm_90a")
    assert isinstance(compiled, Compiled), compiled
    listing = subprocess.run(
        [str(find_disassembler("cuda")), "-c", str(compiled.path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    kernels = listing.split(".section\t.text.")[1:]
    assert len(kernels) == len(dependent(made))
    for text in kernels:
        first = re.search(r"\b(LDG|STG|LDGSTS|ATOMG?|RED|ACQBULK)\b", text)
        assert first is not None and first.group() == "ACQBULK"


def test_a_kernel_whose_beginning_is_not_found_is_refused() -> None:
    made = made_for(of_two_kernels(), "sm_90a")
    hidden = made.source.replace('extern "C" __global__ void', 'extern "C" void __global__', 1)
    with pytest.raises(Unsupported, match="would have to wait"):
        chain_launches(hidden, made.plan, DeviceFacts(arch="sm_90a"))


def test_a_single_launch_stays_as_it_is() -> None:
    it = sample(lambda x: x.sin() + 1, torch.randn(70, 300))
    it = dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))
    made = made_for(it, "sm_90a")
    assert dependent(made) == [False] and FOLLOW not in made.source.split("extern", 1)[1]
