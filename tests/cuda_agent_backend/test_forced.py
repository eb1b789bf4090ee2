"""The option `cuda_agent.force`: kernels in the graph whatever their speed, and none of them anywhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from splice_kit import Capture, backend_for, cache_of, options_in
from torch import Tensor

from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.hook import forced
from cuda_agent_backend.hook.kernel_pass import KernelPass
from cuda_agent_backend.options import OptionError
from cuda_agent_backend.partition.report import HIT
from cuda_agent_backend.runtime.kernels import open_kernels
from sandbox.plan.candidate import Candidate

pytestmark = pytest.mark.usefixtures("forced_kernels_end")


def scaled(x: Tensor) -> Tensor:
    return (x * 2 + 1).relu()  # doubling is exact, so that a fused multiply-add gives the same bits


def compiled(folder: Path, count: int) -> tuple[Any, Capture]:
    """`scaled` with so many forced schedules, and what is seen of its graphs."""
    seen = Capture()
    backend = backend_for(options_in(folder, force=count), seen)
    return torch.compile(scaled, backend=backend), seen


def test_a_forced_kernel_runs_in_the_smallest_graph(tmp_path: Path) -> None:
    call, seen = compiled(tmp_path, 1)
    x = torch.randn(3, 5)
    assert torch.equal(call(x), scaled(x))
    (report,) = seen.reports
    assert [region.status for region in report.regions] == [HIT]
    (attempt,) = forced.outcome_of(report.regions[0].task).attempts  # type: ignore[union-attr]
    assert attempt.status == "covered"


CONSTANTS = {
    "a byte": torch.tensor(200, dtype=torch.uint8),
    "a few": torch.arange(5, dtype=torch.uint8),
    "many": torch.arange(15, dtype=torch.uint8).view(3, 5) * 9,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_kernel_reads_a_constant_that_its_graph_holds(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    constant = CONSTANTS[name].tolist()

    def largest(x: Tensor) -> Tensor:
        return torch.maximum(x, torch.tensor(constant, dtype=torch.uint8)).amin(1)

    seen = Capture()
    call = torch.compile(largest, backend=backend_for(options_in(tmp_path, force=1), seen))
    x = torch.arange(15, dtype=torch.uint8).view(3, 5) * 17
    assert torch.equal(call(x), largest(x))
    assert [region.status for region in seen.reports[0].regions] == [HIT]
    assert "left to Inductor" not in caplog.text


def test_a_kernel_reads_a_constant_where_inductor_had_made_a_lowering_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from torch._inductor import lowering

    op = torch.ops.cuda_agent.run_2_1.default
    monkeypatch.delitem(lowering.lowerings, op, raising=False)
    lowering.make_fallback(op, warn=False)
    test_a_kernel_reads_a_constant_that_its_graph_holds(tmp_path, "many", caplog)


def test_nothing_forced_is_kept_or_found_by_others(tmp_path: Path) -> None:
    call, seen = compiled(tmp_path, 1)
    x = torch.randn(3, 5)
    call(x)
    options = options_in(tmp_path)
    assert cache_of(options).list() == []
    torch._dynamo.reset()
    plain = Capture()
    again = torch.compile(scaled, backend=backend_for(options, plain))
    assert torch.equal(again(x), scaled(x))
    assert [region.status for region in plain.reports[0].regions] == ["miss"]
    assert plain.reports[0].regions[0].task == seen.reports[0].regions[0].task


def test_torch_keeps_nothing_of_a_forced_compilation(tmp_path: Path) -> None:
    kernels: Any = open_kernels(options_in(tmp_path).cache_dir)
    assert KernelPass(options_in(tmp_path), kernels).uuid()
    assert KernelPass(options_in(tmp_path, force=1), kernels).uuid() is None
    x = torch.randn(3, 5)
    compiled(tmp_path, 1)[0](x)
    torch._dynamo.reset()
    call, seen = compiled(tmp_path, 1)
    call(x)
    assert len(seen.reports) == 1, "the second compilation came out of a cache of torch's"


def test_a_graph_turns_to_the_second_schedule(tmp_path: Path) -> None:
    call, seen = compiled(tmp_path, 2)
    x = torch.randn(64, 65)
    want = scaled(x)
    assert torch.equal(call(x), want)
    outcome = forced.outcome_of(seen.reports[0].regions[0].task)
    assert outcome is not None
    several = len(outcome.usable) > 1
    assert forced.turn_to(1) == several
    assert torch.equal(call(x), want)
    assert forced.turn_to(0) == 0


@pytest.mark.parametrize(
    ("status", "made"),
    [
        ("does not compile", lambda c: replace(c, source="this is no C++")),
        ("left", lambda c: NotCovered("for no reason")),
    ],
)
def test_what_cannot_be_forced_is_left_to_inductor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, made: Any
) -> None:
    generate = forced.generate

    def other(analysis: Any, schedule: Any) -> Any:
        found = generate(analysis, schedule)
        assert isinstance(found, Candidate)
        return made(found)

    monkeypatch.setattr(forced, "generate", other)
    call, seen = compiled(tmp_path, 1)
    x = torch.randn(3, 5)
    assert torch.equal(call(x), scaled(x))
    (region,) = seen.reports[0].regions
    assert region.status == "left"
    outcome = forced.outcome_of(region.task)
    assert outcome is not None and outcome.attempts[0].status == status
    assert outcome.attempts[0].reason


def test_force_is_a_number_of_schedules(tmp_path: Path) -> None:
    assert options_in(tmp_path).force == 0
    wishes = options_in(tmp_path, force=2, search="search", acceptance="measure", min_bytes=9)
    assert (wishes.search, wishes.acceptance, wishes.min_bytes) == ("cached", "trust", 0)
    with pytest.raises(OptionError, match="a number of schedules"):
        options_in(tmp_path, force=True)
