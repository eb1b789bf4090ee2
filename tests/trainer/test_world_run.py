"""What a run does around its judge: which region it takes when, what it leaves, and what it never meets again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from world_kit import row_norm

from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from sandbox.accuracy.report import AccuracyReport, OutputReport
from sandbox.compile.candidate import Compiled
from sandbox.failures import CompileFailed, Failed, Failure
from sandbox.judge import Judge
from sandbox.judge.settings import Timeouts
from sandbox.judge.survey import Found, Surveyed
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task
from sandbox.timing.machine import Ceilings
from sandbox.timing.turns import TurnsOver
from sandbox.verdict import Baselines, Correct
from trainer.errors import CommandError
from trainer.world import measure, skipped
from trainer.world.ahead import Deadline
from trainer.world.command import _known
from trainer.world.files import read
from trainer.world.judging import judge_settings
from trainer.world.measure import AT_ONCE, TOO_LATE, DeviceLost, Here, MeasureSettings, Run
from trainer.world.rows import table_id
from trainer.world.sources import Region

HERE = Here("a card", DeviceFacts(), "2")
FIRST, SECOND, THIRD = (row_norm(rows, 2048, "cuda") for rows in (64, 128, 256))
Survey = Callable[[Task], Surveyed | Failure | None]


def works(count: int) -> Surveyed:
    """What a survey says where all candidates are right."""
    right = Correct(AccuracyReport((OutputReport(0, True, ""),)))
    found = [Found(right, [1e-3] * 4, [2e-3] * 4, check_s=0.1, time_s=0.1) for _ in range(count)]
    return Surveyed(Baselines(2e-3, 2e-3, 0.0, 0.0), "eager", found, {})


class Bench:
    """Stands for a judge. surveyed: tasks, in turn; hangs: of which compilations wait until they are ended."""

    def __init__(self, survey: Survey = lambda _: None, hangs: Task | None = None) -> None:
        self.answer, self.hangs = survey, hangs
        self.surveyed: list[Task] = []
        self.compiled = 0
        self.ended, self.interrupted = threading.Event(), threading.Event()
        self.roles = SimpleNamespace(baseline=SimpleNamespace(renew=lambda: None))

    def compile(self, candidate: Candidate) -> Compiled | Failure:
        self.compiled += 1
        if self.hangs is not None and tuple(candidate.plan.input_specs) == self.hangs.inputs:
            assert self.ended.wait(60)
        return Compiled(Path("/no/such/file"), "", 0.1, cast(Any, None))

    def survey(self, task: Task, candidates: Sequence[Candidate], *_: Any) -> Surveyed | Failure:
        self.surveyed.append(task)
        return self.answer(task) or works(len(candidates))

    def interrupt_compilers(self) -> None:
        self.ended.set()

    def interrupt(self) -> None:
        self.interrupted.set()

    def ceilings(self) -> Ceilings:
        return Ceilings(1.0, 1.0, 1.0, 1)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is prepared ahead may be ready in another order."""
    monkeypatch.setitem(measure.AHEAD, "cuda", 0)


def run(bench: Bench, folder: Path, **settings: Any) -> Run:
    wanted = MeasureSettings(folder, "cuda", "sm_90a", 4, 2, **settings)
    return Run(wanted, cast(Judge, bench), HERE)


def named(*pairs: tuple[str, Task]) -> list[Region]:
    return [Region(name, task.to_json()) for name, task in pairs]


def test_a_program_has_its_second_region_measured_after_all_first_ones(
    tmp_path: Path, one_by_one: None
) -> None:
    bench = Bench()
    found = named(("a", FIRST), ("a", SECOND), ("b", THIRD))
    progress = run(bench, tmp_path).measure(found)
    assert progress.tables == 3 and THIRD in bench.surveyed[:2]
    assert {t.source for t in read([tmp_path])} == {"a", "b"}


def test_a_region_that_is_not_ready_when_the_time_is_up_is_left_and_its_compilers_end(
    tmp_path: Path, one_by_one: None
) -> None:
    bench = Bench(hangs=SECOND)
    began = time.monotonic()
    progress = run(bench, tmp_path, deadline=Deadline(3.0)).measure(
        named(("a", FIRST), ("b", SECOND))
    )
    assert progress.tables == 1 and bench.surveyed == [FIRST] and bench.ended.is_set()
    assert time.monotonic() - began < 30 and not progress.skipped


def test_a_table_that_takes_far_too_long_is_left_with_what_the_judge_still_does(
    tmp_path: Path, one_by_one: None
) -> None:
    def over(task: Task) -> None:
        if task == SECOND:
            raise TurnsOver("the time is up")

    bench = Bench(over)
    progress = run(bench, tmp_path).measure(named(("a", FIRST), ("a", SECOND)))
    assert progress.tables == 1 and bench.interrupted.is_set() and not progress.skipped


def test_all_schedules_of_a_region_are_not_begun_with_little_time(tmp_path: Path) -> None:
    bench = Bench()
    found = named(("a", FIRST), ("b", SECOND))
    progress = run(bench, tmp_path, whole=1, deadline=Deadline(200.0)).measure(found)
    assert progress.skipped == {TOO_LATE: 2} and bench.compiled == 0
    assert not (tmp_path / skipped.NAME).exists(), "a later run has more"


def test_of_a_region_with_all_its_schedules_few_are_with_the_compilers_at_once(
    tmp_path: Path,
) -> None:
    lengths: list[int] = []

    class Counting(Bench):
        def compile(self, candidate: Candidate) -> Compiled | Failure:
            lengths.append(made._compilers._work_queue.qsize())
            time.sleep(0.001)
            return super().compile(candidate)

    made = run(Counting(), tmp_path, whole=1)
    assert made.measure(named(("a", FIRST))).tables == 1
    assert len(lengths) > 2 * AT_ONCE and max(lengths) <= AT_ONCE


def test_schedules_are_enumerated_by_one_thread_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most = 0, 0
    counting = threading.Lock()

    def enumerated(*_: Any) -> NotCovered:
        nonlocal at_once, most
        with counting:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.05)
        with counting:
            at_once -= 1
        return NotCovered("of no kind")

    monkeypatch.setattr(measure, "enumerate_schedules", enumerated)
    tasks = [(f"{n}", row_norm(n, 2048, "cuda")) for n in range(64, 70)]
    progress = run(Bench(), tmp_path).measure(named(*tasks))
    assert progress.skipped == {"not covered": 6} and most == 1


def fails(_: Task) -> Failure:
    return Failed("inputs", "CUDA error: device-side assert triggered")


def raises(_: Task) -> Failure:
    raise RuntimeError("CUDA error: device-side assert triggered")


def says_little(_: Task) -> Surveyed:
    found = [Found(CompileFailed("no launcher")) for _ in range(4)]
    return Surveyed(Baselines(1.0, 1.0, 0.0, 0.0), "eager", found, {})


@pytest.mark.parametrize("survey", [fails, raises, says_little])
def test_a_region_that_costs_the_device_ends_the_run_and_is_never_met_again(
    survey: Survey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    found = named(("a", FIRST), ("b", SECOND))
    poison = table_id(FIRST.digest, "sm_90a", HERE.device_name)
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "synchronize", lost)
        with pytest.raises(DeviceLost):
            run(Bench(survey), tmp_path).measure(found[:1])
    assert skipped.known(tmp_path / skipped.NAME) == {poison}
    again = Bench()
    progress = run(again, tmp_path).measure(found)
    assert progress.tables == 1 and again.surveyed == [SECOND]
    elsewhere = Bench()
    tables, hopeless = _known([tmp_path / skipped.NAME])
    run(elsewhere, tmp_path / "other", hopeless=hopeless).measure(found)
    assert tables == [] and elsewhere.surveyed == [SECOND]


def test_a_region_that_only_fails_is_met_again(tmp_path: Path) -> None:
    found = named(("a", FIRST))
    assert run(Bench(fails), tmp_path).measure(found).skipped == {"failed": 1}
    assert run(Bench(), tmp_path).measure(found).tables == 1


def test_notes_of_regions_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError):
        _known([tmp_path / "none.jsonl"])


def test_the_judge_of_a_measurement_waits_for_little_and_keeps_much(tmp_path: Path) -> None:
    deadline, usual = Deadline(), Timeouts()
    for target in ("cuda", "cpu"):
        made = judge_settings(target, tmp_path, None, "sm_90a", tmp_path / "lock", deadline)
        limits = (made.timeouts.run, made.timeouts.prepare, made.timeouts.compile)
        expected = (
            (8.0, 90.0, 60.0) if target == "cuda" else (usual.run, usual.prepare, usual.compile)
        )
        assert limits == expected and made.timeouts.is_over == deadline.cuts
        assert made.kept_share == 1 / 16 and made.frugal_bytes is not None
