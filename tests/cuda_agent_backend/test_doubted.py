"""Records of kernels that were verified with another compiler, with other libraries where their plans call them, or,
where all blocks are on the device at once, on a larger one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sketch_kit import randn, sample

from cuda_agent_backend.runtime import machine
from cuda_agent_backend.runtime.machine import (
    LIBRARIES,
    PROCESSORS,
    key_of,
    libraries,
    toolchain_of,
    why_doubted,
)
from cuda_agent_backend.search.outcome import SearchResult
from cuda_agent_backend.search.promotion import is_usable, record_of
from kernel_cache import Record
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Buffer, Gemm, Launch, Plan, View
from sandbox.task.specs import TensorSpec
from sandbox.verdict import Verdict


def record(calls: bool) -> Record:
    """Of relu(x @ y), as if it had won."""
    task = sample(lambda x, y: (x @ y).relu(), randn(20, 32), randn(32, 24)).task
    views = (
        View("in0", (20, 32), (32, 1)),
        View("in1", (32, 24), (24, 1)),
        View("out0", (20, 24), (24, 1)),
    )
    buffers = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(task.inputs)]
    buffers.append(Buffer("out0", "output", task.output_specs[0]))
    steps = (*((Gemm(*views),) if calls else ()), Launch("kernel"))
    candidate = Candidate("cpu", "c++", "", Plan("cpu", tuple(buffers), steps), "sketch", "by hand")
    verdict = Verdict("wins", "2.00x", 3.0, None, None, {"verifier": "test", "samples": []})
    found = SearchResult(candidate, verdict, b"code", str(toolchain_of("cpu")), "by hand", "won", 1)
    return record_of(key_of(task), task, found, 1000.0)


def test_evidence_names_libraries_where_the_plan_calls_them() -> None:
    assert record(calls=True).evidence[LIBRARIES] == libraries()
    assert torch.__version__ in libraries()
    assert LIBRARIES not in record(calls=False).evidence


def test_a_kernel_with_calls_is_doubted_where_the_libraries_are_others() -> None:
    known = record(calls=True)
    assert why_doubted(known) is None
    assert is_usable(known)
    other = replace(known, evidence={**known.evidence, LIBRARIES: "torch 1.13.0"})
    assert why_doubted(other) == f"verified with torch 1.13.0, this machine has {libraries()}"
    assert not is_usable(other)


@pytest.mark.parametrize("calls", [False, True])
def test_a_kernel_is_doubted_where_the_compiler_is_another(calls: bool) -> None:
    known = record(calls)
    other = replace(known, evidence={**known.evidence, "toolchain": "g++ 1"})
    assert "g++ 1" in str(why_doubted(other))


def cooperative() -> SearchResult:
    """A kernel whose blocks wait for each other, as if it had won."""
    x = Buffer("x", "input", TensorSpec("float32", (8,), (1,)))
    buffers = (x, replace(x, name="o", kind="output"))
    plan = Plan("cuda", buffers, (Launch("k", (4, 1, 1), args=("x", "o"), cooperative=True),))
    candidate = Candidate("cuda", "cuda", "", plan, "sketch", "by hand")
    verdict = Verdict("wins", "2.00x", 3.0, None, None, {"verifier": "test", "samples": []})
    compiler = str(toolchain_of("cuda") or "nvcc")
    return SearchResult(candidate, verdict, b"code", compiler, "by hand", "won", 1)


def test_a_kernel_whose_blocks_are_there_at_once_is_doubted_on_a_smaller_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = sample(lambda x: x.relu(), randn(8)).task
    key = replace(key_of(task), target="cuda", arch="sm_90a")
    monkeypatch.setattr(machine, "processors", lambda: 132)
    known = record_of(key, task, cooperative(), 1000.0)
    assert known.evidence[PROCESSORS] == 132 and why_doubted(known) is None
    assert PROCESSORS not in record(calls=False).evidence
    monkeypatch.setattr(machine, "processors", lambda: 0)  # nothing runs there
    assert why_doubted(known) is None
    monkeypatch.setattr(machine, "processors", lambda: 114)
    assert why_doubted(known) == "verified on 132 multiprocessors, this device has 114"
