"""What a command of a shell came to, in words for whoever asked for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sandbox.isolation.limits import GIB
from sandbox.shell.keeper import MEMORY, PROCESSES, TIME

TIMED_OUT, NOT_RUN, KILLED = 124, 126, 128
"""Statuses as shells give them: stopped at the deadline; not run; KILLED + the signal's number."""


@dataclass(frozen=True)
class ShellResult:
    """What a command printed, stdout and stderr together, with notes on its end in brackets; its exit status.

    died: the shell did not live to leave its state: variables and folder are as before this command.
    """

    output: str
    status: int
    timed_out: bool
    seconds: float
    died: bool


@dataclass(frozen=True)
class ShellLimits:
    """Of each command. memory_bytes: of all its processes, and of the address space of each. processes: at once.

    file_bytes: of each file. output_bytes: kept of what it prints. niceness: what it yields to others by.
    """

    memory_bytes: int = 8 * GIB
    processes: int = 256
    file_bytes: int = GIB
    output_bytes: int = 16_000
    open_files: int = 1024
    niceness: int = 5


def not_run(reason: str) -> ShellResult:
    return ShellResult(f"[not run: {reason}]", NOT_RUN, timed_out=False, seconds=0.0, died=False)


def lost() -> ShellResult:
    note = "[the shell was lost, and with it variables and folder; the next command gets a new one]"
    return ShellResult(note, KILLED + 9, timed_out=False, seconds=0.0, died=True)


def result_of(answer: dict[str, Any], timeout_s: float, limits: ShellLimits) -> ShellResult:
    if answer["cannot"]:
        return not_run(f"it cannot be confined: {answer['cannot']}")
    code, why = int(answer["code"]), answer["why"]
    status = TIMED_OUT if why == TIME else code if code >= 0 else KILLED - code
    notes = _notes(answer, status, timeout_s, limits)
    output = str(answer["output"])
    if notes and output and not output.endswith("\n"):
        output += "\n"
    output += "".join(f"[{note}]\n" for note in notes)
    return ShellResult(output, status, why == TIME, float(answer["seconds"]), not answer["kept"])


def _notes(answer: dict[str, Any], status: int, timeout_s: float, limits: ShellLimits) -> list[str]:
    """What a reader has to know beyond output and status."""
    notes, why = [], answer["why"]
    if why == TIME:
        notes.append(f"stopped after {timeout_s:g} s, with all that it had started")
    elif why == MEMORY:
        notes.append(f"stopped: it used more than {limits.memory_bytes / GIB:.3g} GiB of memory")
    elif why == PROCESSES:
        notes.append(f"stopped: it had more than {limits.processes} processes")
    elif not answer["kept"]:
        notes.append(f"the command ended or replaced the shell, with status {status}")
    if not answer["kept"]:
        notes.append("the next command gets a fresh shell: folder and variables as before this one")
    if answer["left"]:
        notes.append(f"{answer['left']} processes that it left running were ended")
    if answer["stuck"]:
        notes.append(f"{answer['stuck']} processes could not be ended")
    return notes
