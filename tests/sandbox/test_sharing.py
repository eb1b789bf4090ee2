"""Inputs of a device, which several workers are told to draw at the same time, with workers that only keep count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from judge_kit import spec

from sandbox.accuracy.reference import Reference
from sandbox.failures import Crashed, Failed
from sandbox.judge import verify
from sandbox.judge.input_sets import InputSet, Source
from sandbox.judge.session import Session
from sandbox.judge.settings import Timeouts
from sandbox.memory.notes import Held
from sandbox.workers.supervisor import WorkerProcess

SPECS = (spec(64),)


class Worker:
    """Notes in `events`, which several share, when it is asked and when it has answered."""

    def __init__(self, role: str, events: list[str]) -> None:
        self.settings, self.events = SimpleNamespace(role=role), events
        self.generation = 1
        self.perturbations: list[list[int]] = []
        self.ill: dict[str, Any] = {}

    def ready(self) -> Any:
        return self.ill.get("ready")

    def post(self, stage: str, message: dict[str, Any], fds: Any = ()) -> Any:
        self.events.append(f"{self.settings.role} asked")
        if "post" in self.ill:
            return self.ill["post"]
        self.perturbations.append(message["perturbations"])
        return None

    def receive(self, stage: str, timeout_s: float) -> Any:
        self.events.append(f"{self.settings.role} answers")
        return self.ill.get("receive", {})


class Field:
    """A session with nothing but what sharing needs, and two workers."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.one, self.two = (Worker(role, self.events) for role in ("one", "two"))
        self.session = Session.__new__(Session)
        self.session.task = cast(
            "Any", SimpleNamespace(target="cuda", inputs=SPECS, output_specs=SPECS)
        )
        self.session.timeouts = Timeouts()
        self.session.bounds = cast("Any", (None,))
        self.session._known = {}
        self.session.held = Held()
        self.inputs = InputSet(4, SPECS, "cuda")
        self.inputs.fill(Source("normal", 3), [None])

    def share(self) -> Any:
        workers = cast("list[WorkerProcess]", [self.one, self.two])
        return self.session.share_with_all(workers, self.inputs)


@pytest.fixture
def field() -> Field:
    return Field()


BOTH = ["one asked", "two asked", "one answers", "two answers"]


def test_all_are_asked_before_any_answer_is_waited_for(field: Field) -> None:
    assert field.share() is None
    assert field.events == BOTH
    field.inputs.perturb(7)
    assert field.share() is None
    assert field.events == BOTH * 2
    assert field.one.perturbations == field.two.perturbations == [[], [7]]


def test_who_has_the_values_is_not_asked_again(field: Field) -> None:
    field.share()
    field.two.generation += 1  # a new process, which knows nothing
    field.events.clear()
    assert field.share() is None
    assert field.events == ["two asked", "two answers"]


def test_who_has_drawn_the_present_values_is_known(field: Field) -> None:
    def have() -> list[bool]:
        workers = cast("list[WorkerProcess]", [field.one, field.two])
        return [field.session.has_drawn(worker, field.inputs) for worker in workers]

    assert have() == [False, False]
    field.share()
    assert have() == [True, True]
    field.two.generation += 1
    assert have() == [True, False]
    field.inputs.perturb(7)
    assert have() == [False, False]


@pytest.mark.parametrize("where", ["ready", "post", "receive"])
@pytest.mark.parametrize("role", ["one", "two"])
def test_trouble_of_one_is_told_and_no_answer_of_the_other_is_left_waiting(
    where: str, role: str, field: Field
) -> None:
    ill, well = (field.one, field.two) if role == "one" else (field.two, field.one)
    ill.ill[where] = Crashed("draw 4", "SIGSEGV")
    assert field.share() == ill.ill[where]
    assert f"{well.settings.role} answers" in field.events
    ill.ill.clear()
    field.events.clear()
    assert field.share() is None
    assert field.events == [f"{role} asked", f"{role} answers"]


def test_an_error_of_ours_leaves_no_answer_of_a_worker_waiting(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken for a forged one, and the next candidate for a cheat."""

    def fails(session: Session, inputs: InputSet) -> Reference:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    field.session.sets = {}
    monkeypatch.setattr(Session, "reference", fails)
    sources, worker = [Source("normal", 3)], cast("WorkerProcess", field.one)
    with pytest.raises(torch.OutOfMemoryError):
        verify._check_group(field.session, worker, verify.THOROUGH, sources, 0)
    assert field.events == BOTH[::2]


def test_a_worker_that_cannot_be_started_leaves_no_answer_of_the_other_waiting(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise OSError("no room for another process")

    monkeypatch.setattr(field.two, "ready", fails)
    with pytest.raises(OSError, match="no room"):
        field.share()
    assert field.events == BOTH[::2]


def test_values_that_find_no_memory_are_a_failure(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(inputs: InputSet, source: Source) -> list[torch.Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    field.session._references = {}
    monkeypatch.setattr(InputSet, "_drawn", full)
    found = field.session.reference(field.inputs)
    assert isinstance(found, Failed) and "OutOfMemoryError" in found.message
