"""What goes wrong in the code generator: values for what is expected, a counted bug for all else."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from sketch_kit import sample

from cuda_agent_backend import log
from cuda_agent_backend.codegen import api, bugs
from cuda_agent_backend.codegen.api import generate, schedules
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported, attempt
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.task.task import Task


@pytest.fixture(autouse=True)
def _none_before() -> Iterator[None]:
    bugs.forget()
    log.forget()
    yield
    bugs.forget()


@pytest.fixture(scope="module")
def task() -> Task:
    return sample(torch.relu, torch.empty(4, 4)).task


class Failing:
    """A covered task whose family raises what it is given."""

    family = "failing"

    def __init__(self, task: Task, error: Exception) -> None:
        self.task, self.error = task, error

    def schedules(self, device: object = None) -> list[Schedule]:
        raise self.error

    def emit(self, schedule: Schedule, device: object = None) -> tuple[str, object]:
        raise self.error


def test_an_early_exit_is_a_reason_and_no_bug(task: Task) -> None:
    def give_up() -> int:
        raise Unsupported("too many rows")

    assert attempt(give_up) == NotCovered("too many rows")
    assert bugs.attempt_for(task, "trying", give_up) == NotCovered("too many rows")
    assert bugs.count() == 0


@pytest.mark.parametrize(
    "error", [KeyError("rows"), ZeroDivisionError("x"), TypeError("y"), ValueError("z")]
)
def test_any_other_exception_is_a_bug_with_the_task(
    task: Task, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    failing, schedule = Failing(task, error), Schedule.of({"rows": 1})
    with caplog.at_level(logging.WARNING, "cuda_agent.codegen"):
        found = generate(failing, schedule)  # type: ignore[arg-type]
        again = generate(failing, Schedule.of({"rows": 2}))  # type: ignore[arg-type]
    assert isinstance(found, bugs.Bug) and found == again
    assert found.task == task.digest and type(error).__name__ in found.error
    assert bugs.count() == 2 and bugs.found() == {found: 2}
    assert [task.digest in line for line in caplog.messages] == [True]


def test_a_family_that_fails_at_schedules_has_none(task: Task) -> None:
    assert schedules(Failing(task, IndexError("z"))) == []  # type: ignore[arg-type]
    assert bugs.count() == 1


def test_a_family_that_gives_up_at_schedules_has_none_and_is_no_bug(task: Task) -> None:
    assert schedules(Failing(task, Unsupported("z"))) == []  # type: ignore[arg-type]
    assert bugs.count() == 0


def test_bugs_beyond_those_kept_are_counted(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bugs, "MOST_KEPT", 1)
    for number in range(3):
        generate(Failing(task, KeyError(number)), Schedule.of({}))  # type: ignore[arg-type]
    assert len(bugs.found()) == 1 and bugs.count() == 3


def test_a_family_that_fails_to_match_is_a_bug(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(task: Task) -> object:
        raise IndexError("list index out of range")

    monkeypatch.setattr(api, "loop_nests_of", fail)
    assert isinstance(api.as_it_stands(task), bugs.Bug) and bugs.count() == 1
