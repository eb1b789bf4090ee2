"""Beginning an episode with a record: a new one, or going on with one of the same task whose process was killed.

A policy is brought to where it was by the conversation alone. A policy that is a pure function of the messages needs
nothing. A policy with a state has a method ``resume(messages, schemas)``, which answers "" or why it cannot be where it
was. For a policy that always decides the same, that method is `policies.rebuild.decide_again`. A policy whose allowance
holds for the whole episode has a method ``spent(usages)``, which is told what each recorded turn took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent_backend import log
from cuda_agent_backend.agent.protocol import Policy, Schema, closed
from cuda_agent_backend.agent.trajectories.events import Ended, Header, Trajectory
from cuda_agent_backend.agent.trajectories.file import Recorder
from cuda_agent_backend.agent.trajectories.store import new_path, of_task

MAX_AGE_S = 7 * 86400.0
"""What was measured longer ago is measured anew."""
MAX_FRUITLESS = 3
"""Processes that an episode may kill one after another before it is let go."""


@dataclass(frozen=True)
class Begun:
    """A policy, where it writes, and what it goes on with. record: None where the folder takes no file."""

    policy: Policy
    record: Recorder | None
    past: Trajectory | None = None


def begin(
    folder: Path, header: Header, make: Callable[[], Policy], schemas: Sequence[Schema]
) -> Begun:
    """Go on with an unfinished episode in `folder` that `header` continues, or begin a new one.

    make: gives a new policy. Files that are damaged or being written are passed by.
    """
    for path in of_task(folder, header.task_digest):
        begun = _take_up(path, header, make, schemas)
        if begun is not None:
            return begun
    policy = make()
    try:
        record = Recorder.create(new_path(folder, header), header)
    except OSError as error:
        log.once("search", f"trajectories are not recorded: {error}")
        return Begun(policy, None)
    return Begun(policy, record)


def _take_up(
    path: Path, header: Header, make: Callable[[], Policy], schemas: Sequence[Schema]
) -> Begun | None:
    try:
        opened = Recorder.reopen(path)
    except OSError as error:
        opened = None
        log.once("search", f"{path.name} is left as it is: {error}")
    if not isinstance(opened, tuple):
        return None
    record, past = opened
    if unfit(past, header, time.time()):
        record.close()
        return None
    policy = make()
    why = rebuild(policy, past, schemas)
    if not why:
        return Begun(policy, record, past)
    reason = f"the policy goes another way now: {why}"
    with closed(policy), record:
        record.write(Ended("bug", reason, len(past.turns), past.used, None))
    return None


def unfit(past: Trajectory, header: Header, now: float) -> str:
    """Why an episode is not one to go on with under `header`; "" where it is."""
    if past.finished:
        return "it has ended"
    if not past.header.continues(header):
        return "it ran under other conditions"
    if now - past.header.started > MAX_AGE_S:
        return "it is too old"
    if past.fruitless >= MAX_FRUITLESS:
        return f"it was taken up {past.fruitless} times in vain"
    return ""


def rebuild(policy: Policy, past: Trajectory, schemas: Sequence[Schema]) -> str:
    """Bring a new policy to where it was; "" or why that cannot be."""
    resume = getattr(policy, "resume", None)
    why = "" if resume is None else str(resume(past.messages, schemas))
    spent = getattr(policy, "spent", None)
    if spent is not None and not why:
        spent([turn.usage for turn in past.turns if turn.usage is not None])
    return why
