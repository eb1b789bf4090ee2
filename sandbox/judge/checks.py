"""Checks of loaded candidates beside others' work, and once more alone where there was no memory for them."""

from __future__ import annotations

from sandbox.judge.session import Session
from sandbox.judge.sessions import Sessions, Trial
from sandbox.judge.verify import QUICK, Check, Checked, check_candidate
from sandbox.verdict import Outcome, lacks_memory
from sandbox.workers.supervisor import WorkerProcess


def check_trial(
    sessions: Sessions, session: Session, worker: WorkerProcess, trial: Trial, check: Check
) -> Checked:
    """Whether the candidate, which the worker has loaded, is right.

    Where there is no memory beside others' checks, it is loaded and checked again after them.
    """
    device = sessions.device
    sessions.make_room(worker)
    if session.frugal:  # each part of a large task's check takes seconds, and is a turn of its own
        found = check_candidate(session, worker, check, trial.recorded, device.shared)
    else:
        with device.shared():
            found = check_candidate(session, worker, check, trial.recorded)
    if not lacks_memory(found.outcome):
        return found
    device.release_memory()
    # a process in which a run failed is gone, and the next one has loaded nothing
    with device.turn():
        again = sessions.load(worker, trial)
        if not isinstance(again, Session):
            return Checked(again, found.draws)
        return check_candidate(again, worker, check, trial.recorded)


def check_loaded(session: Session, worker: WorkerProcess) -> Outcome:
    """Whether the candidate that a worker has loaded is right, by the quick check, in a turn that the caller holds."""
    return check_candidate(session, worker, QUICK, ()).outcome
