"""A session that is sparing of the device's memory says of candidates what any other does, with less memory."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from judge_kit import (
    ROW_MEAN_AND_ARGMAX,
    candidate,
    row_mean_and_argmax,
    silu_bias,
    silu_candidate,
    sized,
)

from sandbox.accuracy import inputs as drawing
from sandbox.accuracy.perturb_inputs import CHUNK, _roll
from sandbox.failures import Failed, NoMemory, Refused
from sandbox.isolation.mechanisms import Isolation
from sandbox.judge import Judge, checks, input_sets, spot_check
from sandbox.judge.input_sets import InputSet, Source
from sandbox.judge.race import count_of_sets
from sandbox.judge.rounds import Effort
from sandbox.judge.session import Session
from sandbox.judge.settings import JudgeSettings, Timeouts
from sandbox.judge.spot_check import SpotCheck
from sandbox.judge.verify import QUICK, Checked, check_candidate
from sandbox.memory.device import Room, Unlimited
from sandbox.memory.footprint import FRUGAL_BYTES, bytes_of, kept_bytes
from sandbox.memory.leases import SPARE_BYTES, Leases
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Node, NodeRef, Task
from sandbox.timing.device_lock import DeviceLock
from sandbox.timing.machine import Ceilings, ceilings_bytes
from sandbox.verdict import Correct, Wrong, lacks_memory
from sandbox.workers import loop
from sandbox.workers.guard_bands import COPIED, _Known
from sandbox.workers.loop import Worker
from sandbox.workers.supervisor import Trouble, WorkerProcess

TASK = silu_bias()
SHORT = Effort(min_rounds=12, max_rounds=24, seconds=2.0)


@pytest.fixture
def frugal(judge: Judge) -> Iterator[Judge]:
    """The judge of this folder, sparing of memory."""
    usual = judge.sessions.settings
    judge.rest()
    judge.sessions.settings = replace(usual, frugal_from=0)
    yield judge
    judge.rest()
    judge.sessions.settings = usual


@pytest.fixture
def leases(judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Leases:
    """Those that the judge takes, on a device with room for anything."""
    made = Leases(tmp_path / "lock", Unlimited(), in_turn=lambda: judge.device.lock.in_turn)
    monkeypatch.setattr(judge.device, "leases", made)
    return made


def test_a_good_kernel_is_correct(frugal: Judge) -> None:
    recorded = [torch.rand(256, 512), torch.rand(512)]
    good = silu_candidate(TASK)
    found = frugal.verify(TASK, good, recorded_inputs=[recorded], thorough=True)
    assert isinstance(found, Correct), found
    assert frugal.sessions.current is not None and frugal.sessions.current.frugal


@pytest.mark.parametrize(
    "change",
    [
        "1.0f + => 1.0001f +",
        "i < ROWS => i < ROWS - 1",
        "std::exp(-v) => std::exp(-(float)(_Float16)v)",
        "= v / => = v != v ? 0 : v /",
    ],
    ids=["factor", "last row missing", "half precision", "NaN swallowed"],
)
def test_a_wrong_kernel_is_wrong(frugal: Judge, change: str) -> None:
    found = frugal.verify(TASK, silu_candidate(TASK, change=change))
    assert isinstance(found, Wrong), found
    assert found.accuracy is not None
    misses = found.accuracy.outputs[0].misses
    assert "not finite" in found.how_much or (misses is not None and misses.count > 0)


def test_outputs_that_are_positions_are_checked(frugal: Judge) -> None:
    task = row_mean_and_argmax()
    source = sized(ROW_MEAN_AND_ARGMAX, task)
    assert isinstance(frugal.verify(task, candidate(task, source)), Correct)
    wrong = frugal.verify(task, candidate(task, source.replace("= best;", "= best / 2;")))
    assert isinstance(wrong, Wrong) and "output 1" in wrong.how_much


@pytest.fixture(params=["at once", "later"])
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """When outputs of timed runs are compared: those that are too large to wait, or others."""
    if request.param == "at once":
        monkeypatch.setattr(spot_check, "KEPT_BYTES", 0)
    return str(request.param)


def test_a_judgement_looks_at_outputs_of_timed_runs(
    frugal: Judge, leases: Leases, looks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, alone = list[str](), list[bool]()
    frugal.take_notes()
    compare = SpotCheck._compare

    def compared(check: SpotCheck, one: Any) -> Any:
        alone.append(getattr(frugal.device.lock._thread, "held", None) == fcntl.LOCK_EX)
        return compare(check, one)

    monkeypatch.setattr(SpotCheck, "_compare", compared)
    monkeypatch.setattr(frugal.device, "lock", DeviceLock(tmp_lock(leases)))
    check = check_candidate

    def checked(*arguments: Any) -> Checked:
        seen.extend(lease.what for lease in leases.known())
        return check(*arguments)

    monkeypatch.setattr(checks, "check_candidate", checked)
    found = frugal.judge(TASK, silu_candidate(TASK), effort=SHORT)
    assert found.status in ("wins", "too_slow", "noisy"), found.reason
    assert (
        len(alone) >= found.evidence["checked_runs"] >= 1
    )  # on a busy machine there are several races
    assert set(alone) == {looks == "at once"}, (
        "others have the device while what can wait is compared"
    )
    assert seen == ["race"] and leases.known() == []
    (race,) = frugal.take_notes().values()
    session = frugal.sessions.current
    assert session is not None and race["allowed"] == session.footprint().allowed
    assert race["asked"] == session.footprint().of("race") and race["known"] == 0
    assert frugal.take_notes() == {}


def tmp_lock(leases: Leases) -> Path:
    """Beside the leases."""
    assert leases.folder is not None
    return leases.folder.with_name("lock")


def test_a_kernel_that_is_wrong_only_when_timed_is_caught(frugal: Judge, looks: str) -> None:
    counting = "static long calls = 0; static const long least = 40;\nextern"
    change = {
        "before": f"extern => {counting}",
        "half": "i < ROWS => i < (++calls > least ? ROWS / 2 : ROWS)",
    }
    late = silu_candidate(TASK, **change)
    found = frugal.judge(TASK, late, effort=Effort(min_rounds=48, max_rounds=48, seconds=2.0))
    assert (found.status, "timed run" in found.reason) == ("wrong", True), found.reason


class Full:
    """A device with room for so many bytes."""

    def __init__(self, room: int) -> None:
        self.bytes = room

    def room(self) -> Room:
        return Room(self.bytes + SPARE_BYTES, self.bytes + SPARE_BYTES)


def test_what_does_not_fit_at_all_is_told_with_its_bytes(
    frugal: Judge, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases.memory = Full(1000)
    for found in (
        frugal.verify(TASK, silu_candidate(TASK)),
        frugal.profile(TASK, silu_candidate(TASK)),
        frugal.baselines(TASK),
    ):
        assert isinstance(found, NoMemory) and found.needed > 1000
        assert f"{found.needed:,} bytes" in found.reason
    verdict = frugal.judge(TASK, silu_candidate(TASK), effort=SHORT)
    assert (verdict.status, verdict.reward) == ("no_memory", None)
    assert "bytes of the device's memory" in verdict.reason


def test_a_task_that_a_device_has_no_room_for_is_told_before_anything_is_tried(
    judge: Judge, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = replace(silu_bias(1 << 17, 1 << 13), target="cuda")
    session = Session(large, {}, Timeouts(), FRUGAL_BYTES)
    monkeypatch.setattr(judge.sessions, "open", lambda _: session)
    needed = session.footprint().of("race")
    leases.memory = Full(needed)
    assert judge.no_room(large) is None
    leases.memory = Full(needed - 1)
    monkeypatch.setattr(judge, "settings", replace(judge.settings, memory=leases.memory))
    found = judge.no_room(large)
    assert isinstance(found, NoMemory) and f"{needed:,} bytes" in found.reason


def test_temporaries_that_no_device_has_room_for_are_the_candidates_fault(
    frugal: Judge, leases: Leases
) -> None:
    session = frugal.sessions.open(TASK)
    assert isinstance(session, Session)
    leases.memory = Full(session.footprint().of("check") + 1000)
    mine = candidate(TASK, silu_candidate(TASK).source, temporary=10_000)
    found = frugal.verify(TASK, mine)
    assert isinstance(found, Refused) and "40,000 bytes" in found.reason
    assert isinstance(frugal.verify(TASK, silu_candidate(TASK)), Correct)


def test_what_ran_out_of_memory_is_done_again_without_other_leases(
    judge: Judge, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Failed("eager mode", "OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB")
    seen = list[str]()

    def check(session: Session, *more: Any) -> Checked:
        (mine,) = leases.known()
        seen.append(mine.what)
        return Checked(full) if mine.what == "check" else check_candidate(session, *more)

    monkeypatch.setattr(checks, "check_candidate", check)
    assert isinstance(judge.verify(TASK, silu_candidate(TASK)), Correct)
    assert seen == [
        "check",
        "check",
        "check, again",
    ]  # beside others' turns, alone, and without other leases


def test_memory_that_runs_out_in_the_judges_own_process_is_no_error(
    judge: Judge, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[str]()

    def check(session: Session, *more: Any) -> Checked:
        (mine,) = leases.known()
        seen.append(mine.what)
        if mine.what == "check":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        return check_candidate(session, *more)

    monkeypatch.setattr(checks, "check_candidate", check)
    assert isinstance(judge.verify(TASK, silu_candidate(TASK)), Correct)
    assert seen == ["check", "check, again"] and leases.known() == []


def test_what_measures_the_ceilings_counts_in_a_lease_until_they_are_known(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ceilings_bytes("cpu") == 0 and ceilings_bytes("cuda") > 4 << 30
    session = judge.sessions.open(TASK)
    assert isinstance(session, Session)
    own = session.footprint().of("race")
    assert judge._needed(session, "race") == own < ceilings_bytes("cuda")
    monkeypatch.setattr(judge.device, "target", "cuda")
    monkeypatch.setattr(judge.device, "_ceilings", None)
    assert judge._needed(session, "race") == ceilings_bytes("cuda")
    assert judge._needed(session, "check") == session.footprint().of("check")
    monkeypatch.setattr(judge.device, "_ceilings", Ceilings(1.0, 1.0, 1.0, 1))
    assert judge._needed(session, "race") == own


def test_what_runs_out_of_memory_alone_too_is_a_failure_that_may_pass(
    judge: Judge, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Failed("eager mode", "OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB")
    monkeypatch.setattr(checks, "check_candidate", lambda *_: Checked(full))
    found = judge.verify(TASK, silu_candidate(TASK))
    assert found == full and lacks_memory(found)


def test_a_session_is_frugal_from_a_size_on_a_gpu_and_never_on_cpu(tmp_path: Path) -> None:
    assert JudgeSettings("cuda", scratch_dir=tmp_path).frugal_bytes == FRUGAL_BYTES
    assert JudgeSettings("cpu", scratch_dir=tmp_path).frugal_bytes is None
    moved = 2 * 256 * 512 * 4 + 512 * 4
    for least, frugal in ((None, False), (moved, True), (moved + 1, False)):
        assert Session(TASK, {}, Timeouts(), least).frugal is frugal


def test_inputs_far_larger_than_the_cache_have_one_set() -> None:
    assert count_of_sets(6 << 30, 50 << 20) == 1
    assert count_of_sets(100 << 20, 50 << 20) == 3


class Role:
    """A worker process that notes what it is asked."""

    def __init__(self, answer: dict[str, Any] | Trouble) -> None:
        self.settings = SimpleNamespace(role="baseline")
        self.running, self.generation = True, 1
        self.answer, self.asked = answer, list[str]()

    def ask(self, stage: str, message: dict[str, Any], timeout: float) -> dict[str, Any] | Trouble:
        self.asked.append(message["do"])
        return self.answer


def test_a_worker_that_holds_values_is_asked_to_shed_them_once() -> None:
    session = Session(replace(TASK, target="cuda"), {}, Timeouts(), 0)
    role = Role({})
    worker = cast("WorkerProcess", role)
    assert session.shed(worker) is None and role.asked == []
    slot, drawn = ("baseline", "slot 1"), ("baseline", "draw 0")
    session._known |= {slot: (1, "x"), drawn: (1, 5), ("candidate", "draw 0"): (1, 5)}
    assert session.shed(worker) is None and role.asked == ["shed"]
    assert set(session._known) == {slot, ("candidate", "draw 0")}
    assert session.shed(worker) is None and role.asked == ["shed"]
    trouble = Failed("shed", "it died")
    session._known[drawn] = 1, 5
    assert session.shed(cast("WorkerProcess", ill := Role(trouble))) == trouble and ill.asked


def test_a_worker_sheds_values_and_keeps_what_it_compiled() -> None:
    worker = Worker(-1, Isolation())
    worker.sets[0], worker.drawn[0] = [torch.zeros(4)], ((1, "normal"), [])
    worker.slots[1] = lambda inputs: inputs
    worker.outputs = [torch.ones(2)]
    assert worker.answer({"do": "shed"}, []) == {"peak": 0}
    assert (worker.sets, worker.drawn, list(worker.outputs)) == ({}, {}, [])
    assert list(worker.slots) == [1]


def test_values_that_were_released_are_drawn_again_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(InputSet, "_device", lambda _: "cpu")
    spec = TensorSpec("float32", (40, 50), (50, 1))
    inputs = InputSet(0, [spec], "cuda")
    inputs.fill(Source("normal", 5), [None])
    inputs.perturb(7)
    inputs.perturb(8)
    before = inputs.snapshot()
    inputs.release()
    assert inputs._values is None
    torch.testing.assert_close(inputs.tensors, before, rtol=0, atol=0)
    recorded = [torch.rand(40, 50)]
    inputs.fill(Source("recorded 0", 0, recorded), [None])
    inputs.release()
    torch.testing.assert_close(inputs.tensors, recorded, rtol=0, atol=0)


def released(monkeypatch: pytest.MonkeyPatch, draws: Any, gives_back: Any) -> list[str]:
    """For which targets a module gives memory back, where one draws tensors without memory."""
    found = list[str]()

    def made(specs: Any, *_: Any) -> list[torch.Tensor]:
        return [torch.empty(spec.shape, device="meta") for spec in specs]

    monkeypatch.setattr(draws, "make_inputs", made)
    monkeypatch.setattr(gives_back, "release_memory", found.append)
    return found


def test_what_drawing_a_large_set_took_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    found = released(monkeypatch, input_sets, input_sets)
    for size, wanted in ((1 << 10, []), (FRUGAL_BYTES // 4, ["cuda"])):
        inputs = InputSet(0, [TensorSpec("float32", (size,), (1,))], "cuda")
        inputs.fill(Source("normal", 5), [None])
        assert inputs.tensors[0].numel() == size and found == wanted


def test_a_worker_gives_back_what_drawing_took_but_not_between_calls_that_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = released(monkeypatch, drawing, loop)
    worker = Worker(-1, Isolation())
    worker.target = "cuda"
    message: dict[str, Any] = {"number": 0, "distribution": "normal", "bounds": [None]}
    message |= {"specs": [["float32", [FRUGAL_BYTES // 4], [1]]], "perturbations": []}
    for seed in (1, 1, 2):
        assert worker.draw({**message, "seed": seed}, []) == {}
    assert found == ["cuda"]
    small = [["float32", [8], [1]]]
    assert worker.draw({**message, "number": 1, "seed": 3, "specs": small}, []) == {}
    assert found == ["cuda"]


@pytest.mark.parametrize("count", [2, 1001, 2 * CHUNK // (1 << 14) + 3])
def test_a_large_tensor_is_moved_in_place_as_a_small_one_is(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandbox.accuracy import perturb_inputs

    monkeypatch.setattr(perturb_inputs, "CHUNK", 100)
    for by in {1, count // 3, count - 1} - {0}:
        line = torch.arange(float(count))
        wanted = line.roll(-by)
        _roll(line, by)
        assert torch.equal(line, wanted)


@pytest.mark.parametrize("size", [100, COPIED // 4 + 1])
def test_a_write_to_an_input_is_seen_whatever_its_size(size: int) -> None:
    x = torch.zeros(size)
    x[3] = torch.nan
    known = _Known(x)
    assert known.still(x)
    x[size // 2] = 1e-30
    assert not known.still(x)


@pytest.fixture
def large_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    memory = SimpleNamespace(total_memory=141 * 10**9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    kept_bytes.cache_clear()
    yield
    kept_bytes.cache_clear()


@pytest.mark.usefixtures("large_device")
def test_a_session_keeps_more_between_candidates_where_it_is_told_a_larger_share() -> None:
    """And a lease counts what it keeps beyond what any other session does."""
    whole = TensorSpec("bfloat16", (1 << 13, 1 << 13), (1 << 13, 1))  # 128 MiB
    exp = Node("aten.exp.default", {"self": InputRef(0)})
    task = Task("cuda", (whole,), (exp,), (NodeRef(0),), (whole,))
    usual = Session(task, {}, Timeouts())
    more = Session(task, {}, Timeouts(), kept_share=1 / 16)
    three, twenty, one = QUICK.distributions, ("normal",) * 20, ("normal",)
    assert not usual.keeps(three) and more.keeps(three) and not more.keeps(twenty)
    assert (usual.kept_beyond(three), more.kept_beyond(twenty)) == (0, 0)
    assert more.kept_beyond(three) == 3 * (5 + 1) * bytes_of([whole])
    assert not Session(task, {}, Timeouts(), 0, kept_share=1 / 16).keeps(three), "it is frugal"
    assert more.kept_beyond(one) == 0 and usual.keeps(one), "any session keeps that"


@pytest.mark.usefixtures("large_device")
@pytest.mark.parametrize(
    ("elements", "draws", "usual_keeps", "more_keeps", "counts"),
    [
        (1 << 23, 24, True, True, False),  # 24 draws are within the usual share
        (1 << 26, 9, True, True, True),
        (1 << 28, 9, False, True, True),
        (1 << 29, 9, False, False, False),  # three draws would have room, all nine have not
    ],
)
def test_what_is_kept_of_a_task_with_small_outputs_is_counted_by_all_its_draws(
    elements: int, draws: int, usual_keeps: bool, more_keeps: bool, counts: bool
) -> None:
    whole = TensorSpec("bfloat16", (elements,), (1,))
    total = Node("aten.sum.default", {"self": InputRef(0)})
    result = TensorSpec("bfloat16", (), ())
    task = Task("cuda", (whole,), (total,), (NodeRef(0),), (result,))
    usual = Session(task, {}, Timeouts())
    more = Session(task, {}, Timeouts(), kept_share=1 / 16)
    assert (usual.keeps(QUICK.distributions), more.keeps(QUICK.distributions)) == (
        usual_keeps,
        more_keeps,
    )
    assert usual.kept_beyond(QUICK.distributions) == 0
    kept = draws * (2 * bytes_of([whole]) + 4 * bytes_of([result]))
    assert more.kept_beyond(QUICK.distributions) == (kept if counts else 0)


def test_sessions_and_leases_of_a_judge_have_its_share(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = replace(judge.settings, kept_share=0.25)
    monkeypatch.setattr(judge.sessions, "settings", told)
    session = judge.sessions.open(silu_bias(8, 48))
    assert isinstance(session, Session) and session.kept_share == 0.25
    usual = judge._needed(session, "check")
    monkeypatch.setattr(session, "kept_beyond", lambda names: 1000 * len(names))
    assert judge._needed(session, "check") == usual + 1000 * len(QUICK.distributions)
