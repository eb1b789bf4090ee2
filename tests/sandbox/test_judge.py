"""The judge on real candidates: good, wrong and hostile ones. No assertion here is about a time."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from judge_kit import (
    ROW_MEAN_AND_ARGMAX,
    candidate,
    row_mean_and_argmax,
    silu_bias,
    silu_candidate,
    sized,
    spec,
)
from kit.processes import family, gone

from sandbox.compile.disassembly import Inspection
from sandbox.failures import CompileFailed, Crashed, Failed, Noisy, Refused, TimedOut
from sandbox.judge import Judge, checks, glance, race
from sandbox.judge.rounds import Effort, Stopwatch
from sandbox.judge.session import Session
from sandbox.judge.sessions import Trial
from sandbox.judge.settings import JudgeSettings
from sandbox.judge.verify import QUICK, Checked, check_candidate
from sandbox.task.task import Arg, DType, InputRef, Node, NodeRef, Task
from sandbox.timing import decision as timing
from sandbox.timing.decision import SpeedReport
from sandbox.verdict import Baselines, Correct, Outcome, Unchecked, Wrong, reward
from sandbox.workers.supervisor import WorkerProcess

TASK = silu_bias()
SHORT = Effort(min_rounds=12, max_rounds=24, seconds=2.0)


def verify(judge: Judge, **change: str) -> Outcome:
    return judge.verify(TASK, silu_candidate(TASK, **change))


def test_a_good_kernel_is_correct(judge: Judge) -> None:
    found = verify(judge)
    assert isinstance(found, Correct), found
    assert found.accuracy.error_ratio < 4


def test_a_good_kernel_passes_the_thorough_check_with_recorded_inputs(judge: Judge) -> None:
    recorded = [torch.rand(256, 512), torch.rand(512)]
    found = judge.verify(TASK, silu_candidate(TASK), recorded_inputs=[recorded], thorough=True)
    assert isinstance(found, Correct), found


def test_recorded_inputs_are_used(judge: Judge) -> None:
    spoilt = silu_candidate(TASK, special="float v = => float v = (b[0] == 0.12345f) + ")
    assert isinstance(judge.verify(TASK, spoilt), Correct)
    recorded = [torch.rand(256, 512), torch.full((512,), 0.12345)]
    found = judge.verify(TASK, spoilt, recorded_inputs=[recorded])
    assert isinstance(found, Wrong)
    assert "recorded" in found.where


@pytest.mark.parametrize(
    "change",
    [
        "1.0f + => 1.0001f +",
        "i < ROWS => i < ROWS - 1",
        "j < COLUMNS => j < COLUMNS - 1",
        "b[j] => b[j + 1 < COLUMNS ? j + 1 : 0]",
        "= v / => = 0 * v /",
        "std::exp(-v) => std::exp(-(float)(_Float16)v)",
        "= v / => = v != v ? 0 : v /",
    ],
    ids=[
        "factor",
        "last row missing",
        "last column missing",
        "shifted",
        "zero",
        "half precision",
        "NaN swallowed",
    ],
)
def test_a_wrong_kernel_is_wrong(judge: Judge, change: str) -> None:
    found = verify(judge, change=change)
    assert isinstance(found, Wrong), found
    assert found.where
    assert found.how_much


def test_the_second_output_and_ties_are_checked(judge: Judge) -> None:
    task = row_mean_and_argmax()
    source = sized(ROW_MEAN_AND_ARGMAX, task)
    assert isinstance(judge.verify(task, candidate(task, source)), Correct)
    last = source.replace("v > b", "v >= b")
    assert isinstance(judge.verify(task, candidate(task, last)), Correct)
    wrong = source.replace("= best;", "= best / 2;")
    found = judge.verify(task, candidate(task, wrong))
    assert isinstance(found, Wrong)
    assert "output 1" in found.how_much


def test_a_write_out_of_bounds_is_seen(judge: Judge) -> None:
    beyond = verify(judge, change="#pragma => y[ROWS * COLUMNS + 3] = 1;\n  #pragma")
    assert isinstance(beyond, Wrong)
    assert "wrote beyond output 0" in beyond.how_much
    before = verify(judge, change="#pragma => y[-1] = 1;\n  #pragma")
    assert isinstance(before, Wrong)
    assert "wrote before output 0" in before.how_much


def test_a_write_beyond_a_temporary_is_seen(judge: Judge) -> None:
    source = sized(silu_candidate(TASK).source, TASK).replace(
        "#pragma", "((float*)p[3])[100] = 1;\n  #pragma"
    )
    assert isinstance(judge.verify(TASK, candidate(TASK, source, temporary=101)), Correct)
    found = judge.verify(TASK, candidate(TASK, source, temporary=100))
    assert isinstance(found, Wrong)
    assert "temporary 0" in found.how_much


def test_a_write_to_an_input_is_a_crash(judge: Judge) -> None:
    found = verify(judge, change="#pragma => ((float*)x)[0] = 1;\n  #pragma")
    assert isinstance(found, Crashed)
    assert found.how in ("SIGSEGV", "SIGBUS")


def test_a_crash_is_a_value_and_the_next_candidate_is_judged_right(judge: Judge) -> None:
    found = verify(judge, change="#pragma => *(volatile int*)0 = 1;\n  #pragma")
    assert isinstance(found, Crashed)
    assert found.how == "SIGSEGV"
    assert isinstance(verify(judge), Correct)


def test_a_hang_is_a_value_and_the_next_candidate_is_judged_right(judge: Judge) -> None:
    found = verify(judge, change="#pragma => for (volatile long k = 0; k >= 0;) k = 1;\n  #pragma")
    assert isinstance(found, TimedOut)
    assert isinstance(verify(judge), Correct)


def test_an_early_exit_is_a_crash_whatever_its_status(judge: Judge) -> None:
    found = verify(
        judge,
        change="#include <cmath> => #include <cmath>\n#include <cstdlib>\n#define done std::_Exit(0)",
        now="#pragma => done;\n  #pragma",
    )
    assert isinstance(found, Crashed)
    assert found.how == "exit status 0"


def test_source_that_does_not_compile_fails_with_the_log(judge: Judge) -> None:
    found = verify(judge, change="float v => floaty v")
    assert isinstance(found, CompileFailed)
    assert "floaty" in found.log
    assert "error" in found.reason


def test_a_plan_for_other_shapes_is_refused(judge: Judge) -> None:
    other = silu_bias(128, 512)
    found = judge.verify(TASK, silu_candidate(other))
    assert isinstance(found, Refused)


NOTHING = 'extern "C" void kernel(void* const* p) {}'


def test_a_task_that_eager_cannot_run_is_no_fault_of_the_candidate(judge: Judge) -> None:
    far: dict[str, Arg] = {"size": (4, 1), "fill_value": 99, "dtype": DType("int64")}
    task = Task(
        "cpu",
        (spec(4, 4),),
        (
            Node("aten.full.default", far),
            Node("aten.gather.default", {"self": InputRef(0), "dim": 1, "index": NodeRef(0)}),
        ),
        (NodeRef(1),),
        (spec(4, 1),),
    )
    found = judge.verify(task, candidate(task, NOTHING))
    assert isinstance(found, Failed)
    assert "99" in found.reason
    assert judge.judge(task, candidate(task, NOTHING)).reward is None


def test_a_task_that_torch_does_not_know_is_refused(judge: Judge) -> None:
    node = Node("aten.no_such_thing.default", {"self": InputRef(0)})
    task = Task("cpu", (spec(4),), (node,), (NodeRef(0),), (spec(4),))
    found = judge.verify(task, candidate(task, NOTHING))
    assert isinstance(found, Refused)
    assert "no_such_thing" in found.reason


def test_a_task_for_another_target_is_refused(judge: Judge) -> None:
    import dataclasses

    found = judge.baselines(dataclasses.replace(TASK, target="cuda"))
    assert isinstance(found, Refused)


def test_baselines_are_measured(judge: Judge) -> None:
    found = judge.baselines(TASK)
    assert isinstance(found, Baselines), found
    assert min(found.eager_seconds, found.inductor_seconds, found.floor_seconds) > 0
    assert found.overhead_seconds < found.best_seconds
    assert judge.baselines(TASK) is found


def test_what_says_there_is_no_room_is_measured_again(
    tmp_path: Path, native_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandbox.timing import machine

    rates = iter((1e3, 1e15, 1.001e15, 1e16))
    monkeypatch.setattr(machine, "ceilings", lambda target: machine.Ceilings(*[next(rates)] * 3, 0))
    with Judge(JudgeSettings("cpu", scratch_dir=tmp_path, native_dir=native_dir)) as judge:
        found = judge.baselines(TASK)
        assert isinstance(found, Baselines), found
        assert found.room > 1 and judge.ceilings().bytes_per_s == 1e15
        for _ in range(2):  # what the next one finds is nothing new, so it is the last
            assert judge.device.ceilings(again=True).bytes_per_s == 1.001e15


@pytest.fixture
def disagreeing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs never agree so well that fewer are enough, as a quiet machine's do."""
    monkeypatch.setattr(glance, "agree", lambda ratios: False)


def test_a_profile_has_pairs_against_the_faster_baseline(judge: Judge, disagreeing: None) -> None:
    baselines = judge.baselines(TASK)
    assert isinstance(baselines, Baselines)
    eager_wins = baselines.eager_seconds < baselines.inductor_seconds
    found = judge.profile(TASK, silu_candidate(TASK), pairs=8)
    assert isinstance(found, Correct), found
    assert found.speed is not None
    assert found.speed.baseline == ("eager" if eager_wins else "inductor")
    assert found.speed.speedup.pairs == 8
    assert set(found.speed.seconds) == {found.speed.baseline, "candidate"}


def test_what_is_too_slow_to_matter_is_not_checked(judge: Judge) -> None:
    found = judge.profile(TASK, silu_candidate(TASK), pairs=8, worth=1e9)
    assert isinstance(found, Unchecked) and found.speed.speedup.pairs == 4
    assert "not checked" in found.reason and reward(found) is None


def test_what_may_matter_is_timed_to_the_end(judge: Judge, disagreeing: None) -> None:
    found = judge.profile(TASK, silu_candidate(TASK), pairs=8, worth=1e-6)
    assert isinstance(found, Correct), found
    assert found.speed is not None and found.speed.speedup.pairs == 8


def test_a_judgement_has_the_device_alone_while_it_times_and_shares_it_before_and_after(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    from sandbox.judge.race import Race
    from sandbox.judge.rounds import Stopwatch
    from sandbox.judge.spot_check import SpotCheck
    from sandbox.timing.device_lock import DeviceLock

    lock, held = DeviceLock(tmp_path / "lock"), dict[str, set[int | None]]()

    def watch(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def watched(*args: Any, **named: Any) -> Any:
            held.setdefault(name, set()).add(getattr(lock._thread, "held", None))
            return method(*args, **named)

        monkeypatch.setattr(owner, name, watched)

    monkeypatch.setattr(judge.device, "lock", lock)
    watch(Stopwatch, "once")
    watch(Race, "equip")
    watch(Race, "decide")
    watch(SpotCheck, "compare")
    candidate = silu_candidate(TASK, comment="#include => // judged\n#include")
    judge.rest()
    found = judge.judge(TASK, candidate, effort=SHORT)
    assert found.status in ("wins", "too_slow", "noisy"), found.reason
    alone, shared = {fcntl.LOCK_EX}, {fcntl.LOCK_SH}
    assert held["once"] == alone
    assert held["decide"] == held["compare"] == shared
    assert shared <= held["equip"]


def test_nothing_changed_is_timed_and_does_not_win(judge: Judge) -> None:
    found = judge.judge_baseline(TASK, effort=SHORT)
    assert isinstance(found, SpeedReport | Noisy), found.reason
    assert not getattr(found, "wins", False)


def test_a_profile_says_what_rates_were_reached(judge: Judge) -> None:
    found = judge.profile(TASK, silu_candidate(TASK), pairs=8)
    assert isinstance(found, Correct) and found.achieved is not None
    rates = found.achieved
    assert rates.bytes == 4 * (2 * 256 * 512 + 512)
    assert rates.bytes_per_s == pytest.approx(rates.bytes / rates.seconds)
    assert rates.of_memory > 0
    assert rates.operations == 0


def test_machine_code_is_inspected(judge: Judge) -> None:
    found = judge.inspect(silu_candidate(TASK))
    assert isinstance(found, Inspection)
    assert found.why_not or found.instructions["code"]["instructions"] > 10
    broken = judge.inspect(silu_candidate(TASK, special="float v = => float v = oops + "))
    assert isinstance(broken, CompileFailed)


def test_a_verdict_carries_its_evidence_as_json(judge: Judge) -> None:
    found = judge.judge(TASK, silu_candidate(TASK), effort=SHORT)
    assert found.status in ("wins", "too_slow", "noisy"), found.reason
    evidence = json.loads(found.to_json())["evidence"]
    assert evidence["verifier"]
    assert set(evidence["seconds"]) == {"check", "race"}
    assert evidence["task"] == TASK.digest
    assert evidence["machine"]["cpu"]
    assert len(evidence["samples"]["wall"]["candidate"]) >= 12
    assert {draw["sources"][0]["distribution"] for draw in evidence["draws"]} >= {"normal", "edges"}
    assert len({source["seed"] for draw in evidence["draws"] for source in draw["sources"]}) > 5
    if found.status != "noisy":
        assert found.reward in (1, 2, 3)
        assert found.speed is not None
        assert found.speed.control is not None


def test_what_finds_no_memory_beside_others_is_done_once_more_alone(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    from sandbox.judge.race import Race
    from sandbox.judge.spot_check import SpotCheck
    from sandbox.timing.device_lock import DeviceLock

    lock, refused = DeviceLock(tmp_path / "lock"), list[str]()
    full = "CUDA out of memory. Tried to allocate 20 GiB"

    def is_shared() -> bool:
        return getattr(lock._thread, "held", None) == fcntl.LOCK_SH

    def equip(race: Race) -> Any:
        if is_shared():
            refused.append("equip")
            raise torch.OutOfMemoryError(full)
        return equipped(race)

    def compare(check: SpotCheck, *taken: Any) -> Any:
        if is_shared():
            refused.append("compare")
            return Failed("eager mode", f"OutOfMemoryError: {full}")
        return compared(check, *taken)

    equipped, compared = Race.equip, SpotCheck._compare
    monkeypatch.setattr(judge.device, "lock", lock)
    monkeypatch.setattr(Race, "equip", equip)
    monkeypatch.setattr(SpotCheck, "_compare", compare)
    judge.rest()
    found = judge.judge(TASK, silu_candidate(TASK), effort=SHORT)
    assert set(refused) == {"equip", "compare"}
    assert found.status in ("wins", "too_slow", "noisy"), found.reason
    assert found.evidence["checked_runs"] >= 1


@pytest.mark.parametrize("profile", [False, True])
def test_a_check_that_found_no_memory_is_made_again_though_its_process_is_gone(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, profile: bool
) -> None:
    made = list[Outcome]()

    def check(session: Session, worker: WorkerProcess, *more: Any) -> Checked:
        if not made:
            made.append(worker._raised(Failed("run", "OutOfMemoryError: CUDA out of memory")))
            return Checked(made[0])
        found = check_candidate(session, worker, *more)
        made.append(found.outcome)
        return found

    monkeypatch.setattr(checks, "check_candidate", check)
    if profile:
        assert isinstance(judge.profile(TASK, silu_candidate(TASK), pairs=8), Correct)
    else:
        verdict = judge.judge(TASK, silu_candidate(TASK), effort=SHORT)
        assert verdict.status in ("wins", "too_slow", "noisy"), verdict.reason
    assert [type(outcome) for outcome in made] == [Crashed, Correct]


def test_a_candidate_that_cannot_be_loaded_again_is_told_so(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Crashed("run", "OutOfMemoryError: CUDA out of memory")
    trouble = Failed("load", "it is gone")
    session = judge.sessions.open(TASK)
    assert isinstance(session, Session)
    monkeypatch.setattr(checks, "check_candidate", lambda *_: Checked(full, [{"seen": 1}]))
    monkeypatch.setattr(judge.sessions, "load", lambda *_: trouble)
    trial = Trial(TASK, silu_candidate(TASK))
    found = checks.check_trial(judge.sessions, session, judge.roles.scratch, trial, QUICK)
    assert found == Checked(trouble, [{"seen": 1}])


def test_trouble_before_a_race_is_told_as_it_was(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandbox.judge.race import Race

    trouble = Failed("inputs 3", "RuntimeError: of its own")
    monkeypatch.setattr(Race, "line_up", lambda race: trouble)
    found = judge.judge(TASK, silu_candidate(TASK), effort=SHORT)
    assert (found.status, found.reason) == ("failed", trouble.reason)


def test_what_eager_really_runs_can_be_given(judge: Judge) -> None:
    task = silu_bias(64, 64)
    fused = Task(
        "cpu",
        task.inputs,
        (
            Node("aten.add.Tensor", {"self": InputRef(0), "other": InputRef(1)}),
            Node("aten.silu.default", {"self": NodeRef(0)}),
        ),
        (NodeRef(1),),
        task.output_specs,
    )
    assert isinstance(judge.baselines(task, eager_task=fused), Baselines)


def test_a_wrong_kernel_gets_minus_one(judge: Judge) -> None:
    found = judge.judge(TASK, silu_candidate(TASK, change="1.0f + => 1.01f +"), effort=SHORT)
    assert (found.status, found.reward) == ("wrong", -1)
    assert not found.wins


def test_a_kernel_that_is_wrong_only_when_timed_is_caught(judge: Judge) -> None:
    # Right for the first calls, as many as a check makes; then it leaves the last row out.
    counting = silu_candidate(
        TASK,
        count='extern "C" => static long calls = 0;\nextern "C"',
        skip="i < ROWS => i < ROWS - (calls > 30)",
        step="#pragma => ++calls;\n  #pragma",
    )
    found = judge.judge(TASK, counting, effort=Effort(24, 24, 5.0))
    assert found.status in ("wrong", "noisy"), found.reason


def test_a_time_below_the_roofline_is_refused(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandbox.timing import roofline

    monkeypatch.setattr(roofline, "floor_seconds", lambda task, ceilings: 1e3)
    found = judge.judge(TASK, silu_candidate(TASK), effort=SHORT)
    assert found.status in ("refused", "noisy")
    if found.status == "refused":
        assert "impossible" in found.reason
        assert found.reward == -1


def test_closing_leaves_no_process(judge: Judge) -> None:
    judge.start()
    pids = [
        pid
        for worker in (judge.roles.baseline, judge.roles.candidate)
        if worker.pid is not None
        for pid in family(worker.pid)
    ]
    assert len(pids) >= 2
    judge.close()
    assert gone(pids)
    assert isinstance(verify(judge), Correct)


@pytest.mark.slow
def test_inductor_compiles_in_its_default_configuration(tmp_path: Path) -> None:
    # Precompiled headers, which the other tests do without, are made in temporary folders.
    with Judge(JudgeSettings("cpu", scratch_dir=tmp_path)) as default:
        found = default.baselines(TASK)
    assert isinstance(found, Baselines), found


def test_a_control_that_scatters_is_asked_for_longer(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Effort] = []
    rounds = Stopwatch.rounds

    def noted(watch: Stopwatch, field: Any, effort: Effort, *more: Any, **named: Any) -> Any:
        asked.append(effort)
        # As many each time: how soon a control is sure hangs on the machine.
        fewer = replace(effort, min_rounds=12, max_rounds=12)
        return rounds(watch, field, fewer, *more, **named)

    monkeypatch.setattr(Stopwatch, "rounds", noted)
    lengths = []
    for wide in (False, True):
        monkeypatch.setattr(timing, "is_wide", lambda _, wide=wide: wide)
        asked.clear()
        found = judge.judge(TASK, silu_candidate(TASK), effort=SHORT)
        long, usual = asked.count(race.LONG_CONTROL), asked.count(race.CONTROL)
        assert usual >= 2 and (long == usual / 2 if wide else long == 0)
        lengths.append(len(found.evidence["control"]["A"]))
        assert found.status in (("wins", "noisy") if wide else ("wins", "too_slow", "noisy"))
    assert lengths[1] > lengths[0]


def test_a_judge_at_rest_holds_nothing_of_its_task_and_goes_on_with_the_same_workers(
    judge: Judge,
) -> None:
    candidate = silu_candidate(TASK)
    assert isinstance(judge.profile(TASK, candidate, pairs=8), Correct)
    before = [worker.pid for worker in judge.roles.all]
    assert judge.sessions.current is not None
    judge.rest()
    judge.rest()
    assert judge.sessions.current is None and [worker.pid for worker in judge.roles.all] == before
    refused = judge.roles.scratch.ask("run", {"do": "guarded", "set": 0, "poison": 0}, 20.0)
    assert isinstance(refused, Failed), "the worker still has what it would run on"
    assert isinstance(judge.profile(TASK, candidate, pairs=8), Correct)


@pytest.mark.parametrize(("each_s", "races"), [(10.0, 3), (70.0, 1)])
def test_a_noisy_race_is_run_again_while_there_is_time(
    each_s: float, races: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, begun = [0.0], list[float]()

    def timed(*_: Any) -> Noisy:
        begun.append(now[0])
        now[0] += each_s
        return Noisy("others work here")

    judge = Judge(JudgeSettings("cpu", scratch_dir=tmp_path, native_dir=tmp_path))
    monkeypatch.setattr(judge.measurements, "race", lambda *_: None)
    monkeypatch.setattr(judge.measurements, "run", timed)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    unused: Any = None
    found = judge.measurements.race_until_sure(unused, None, SHORT, {})
    assert isinstance(found, Noisy) and len(begun) == races


def raced(target: str, races: list[float | None], folder: Path) -> tuple[Any, int]:
    """What comes of races by their speed-ups, None for a noisy one, and how many of them were run."""
    left = list(races)

    def timed(*_: Any) -> SpeedReport | Noisy:
        found = left.pop(0)
        samples = {"inductor": [found or 0.0] * 12, "candidate": [1.0] * 12}
        return timing.report(samples) if found else Noisy("others work here")

    judge = Judge(JudgeSettings(target, scratch_dir=folder, native_dir=folder))
    measurements = judge.measurements
    measurements.race = lambda *_: None  # type: ignore[method-assign, assignment, return-value]
    measurements.run = timed  # type: ignore[method-assign]
    unused: Any = None
    return measurements.race_until_sure(unused, None, SHORT, {}), len(races) - len(left)


@pytest.mark.parametrize(
    ("target", "races", "expected", "run"),
    [
        ("cpu", [1.1, 1.2], 1.2, 2),
        ("cpu", [1.1, 1.0], 1.0, 2),
        ("cpu", [1.0, 1.1], 1.0, 1),
        ("cpu", [1.5, 1.5], 1.5, 1),
        ("cpu", [1.1, None, 1.1], 1.1, 3),
        ("cpu", [None, None, 1.1], None, 3),
        ("cuda", [1.1, 1.1], 1.1, 1),
        ("cuda", [None, 1.1], 1.1, 2),
    ],
)
def test_on_cpu_a_small_lead_has_to_be_won_twice(
    target: str, races: list[float | None], expected: float | None, run: int, tmp_path: Path
) -> None:
    found, count = raced(target, races, tmp_path)
    assert count == run
    if expected is None:
        assert found == Noisy("a small lead was won only once")
    else:
        assert found.speedup.median == expected and found.wins is (expected > 1.05)
