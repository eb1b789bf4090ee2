"""Keeps a shell: runs its commands, one after the other, and sees to it that nothing outlives them.

As a program, `python -I -S keeper.py CONTROL`: a socket of its owner, who first sends `Settings`, then requests.
It is trusted and not confined itself; each command is a process of its own, confined before it becomes bash. Whatever
a command has started ends with it, and all ends when the owner closes the socket or dies.
"""

from __future__ import annotations

import math
import os
import select
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sandbox.isolation import descendants, trees
from sandbox.isolation.confine import CANNOT, Policy, apply
from sandbox.isolation.head_tail import HeadTail
from sandbox.shell.script import COMMAND_FD, script
from sandbox.workers.protocol import receive_json, send_json, write_all

TICK_S = 0.2
"""How often memory and processes are counted, and orphans are taken note of."""
END_SECONDS = 10.0
SHARED_TASKS = 4096
"""What a fork bomb may start before it is counted, where only the user's processes together have a limit."""
CHUNK = 1 << 16
TIME, MEMORY, PROCESSES, OWNER = "time", "memory", "processes", "owner"
"""Why a command was stopped."""


@dataclass(frozen=True)
class Settings:
    """What holds for all commands of a shell. private: a folder for temporary files and the shell's state."""

    folder: str
    private: str
    bash: str
    policy: str
    environment: dict[str, str]
    memory_bytes: int
    processes: int
    output_bytes: int
    niceness: int

    def state(self, name: str) -> str:
        """Where the state is kept: `kept`, what the last command left: `new`, and the mark that it is complete."""
        return str(Path(self.private, f".state-{name}"))


def main() -> None:
    """Entry point."""
    control = int(sys.argv[1])
    os.set_inheritable(control, False)
    descendants.adopt()
    settings = Settings(**receive_json(control))
    try:
        while readable(control):
            send_json(control, run(settings, receive_json(control), control))
    except OSError:
        pass  # the owner is gone
    finally:
        descendants.end_all(END_SECONDS)
        trees.remove(settings.private)


def readable(fd: int, seconds: float | None = None) -> bool:
    """Wait until there is something to read, or the other end is closed."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if seconds is None else seconds * 1000))


def run(settings: Settings, request: dict[str, Any], control: int) -> dict[str, Any]:
    """Run a command to its end. Raises OSError when the owner goes."""
    for name in ("new", "mark"):
        _remove(settings.state(name))
    output, ours = HeadTail(settings.output_bytes), os.pipe()
    failed = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _become_bash(settings, request, ours[1], failed[1])
    os.close(ours[1])
    os.close(failed[1])
    why = _watch(child, ours[0], output, control, settings, started + request["timeout_s"])
    left = _count_left(child)
    descendants.end_group(child)  # not waited for yet, so the number is still its own
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    stuck = descendants.end_all(END_SECONDS)
    _drain(ours[0], output)
    cannot = os.read(failed[0], CHUNK).decode(errors="replace")
    for fd in (ours[0], failed[0]):
        os.close(fd)
    if why == OWNER:
        raise ConnectionError
    return {
        "output": output.text(),
        "code": code,
        "why": why,
        "left": 0 if why else left,
        "stuck": stuck,
        "kept": not why and code >= 0 and _keep_state(settings),
        "cannot": cannot,
        "seconds": time.monotonic() - started,
    }


def _watch(
    child: int, pipe: int, output: HeadTail, control: int, settings: Settings, deadline: float
) -> str:
    """Take in what the command prints until it ends by itself or has to be stopped; then say why."""
    os.set_blocking(pipe, False)
    ended = os.pidfd_open(child)
    poller = select.poll()
    for fd in (pipe, ended, control):
        poller.register(fd, select.POLLIN)
    look = 0.0
    try:
        while True:
            ready = {fd for fd, _ in poller.poll(TICK_S * 1000)}
            now = time.monotonic()
            if pipe in ready and not _take(pipe, output):
                poller.unregister(pipe)  # all ends of it are closed, which need not be the end
            if ended in ready:
                return ""
            if control in ready:
                return OWNER
            if now >= deadline:
                return TIME
            if now >= look:
                look = now + TICK_S
                descendants.reap(child)
                below = descendants.descendants(os.getpid())  # orphans among them
                if len(below) > settings.processes:
                    return PROCESSES
                if descendants.memory_of(below) > settings.memory_bytes:
                    return MEMORY
    finally:
        os.close(ended)


def _take(pipe: int, output: HeadTail) -> bool:
    """Read once. False at the end."""
    try:
        data = os.read(pipe, CHUNK)
    except BlockingIOError:
        return True
    output.feed(data)
    return bool(data)


def _drain(pipe: int, output: HeadTail) -> None:
    """What is left in the pipe, when nobody writes to it any more."""
    while readable(pipe, 0) and _take(pipe, output):
        pass


def _count_left(child: int) -> int:
    """Processes that a command left running when it ended. Those of a stopped one do not count."""
    descendants.reap(child)
    return len([pid for pid in descendants.descendants(os.getpid()) if pid != child])


def _keep_state(settings: Settings) -> bool:
    """Take over the state that the command left, if it came so far. The file is the shell's own: not opened here."""
    if not os.path.lexists(settings.state("mark")):
        return False
    with suppress(OSError):
        os.replace(settings.state("new"), settings.state("kept"))  # noqa: PTH105
        return True
    return False


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        try:
            os.unlink(path)  # noqa: PTH108
        except IsADirectoryError:
            trees.remove(path)


def _become_bash(settings: Settings, request: dict[str, Any], out: int, failed: int) -> None:
    """In the child: end as bash, confined, or with the reason on `failed`."""
    try:
        command = os.memfd_create("command")
        write_all(command, request["command"].encode())
        os.lseek(command, 0, os.SEEK_SET)
        null = os.open(os.devnull, os.O_RDONLY)
        failed = _arrange((null, out, out, command), failed)
        os.setsid()
        os.nice(settings.niceness)
        os.chdir(settings.folder)
        wanted = Policy.from_json(settings.policy)
        seconds = math.ceil(request["timeout_s"]) + 1
        limits = {"cpu": seconds * (os.cpu_count() or 1), **wanted.limits}
        if os.geteuid() != 0:  # no user of its own: what others of this user start counts too
            limits["nproc"] = descendants.tasks_of(os.geteuid()) + SHARED_TASKS
        apply(replace(wanted, limits=limits, protected=tuple(request["protected"])))
        text = script(*(settings.state(name) for name in ("kept", "new", "mark")))
        # Afterwards the environment is part of the state, without what was taken out of it.
        first = not os.path.lexists(settings.state("kept"))
        argv = ["bash", "--noprofile", "--norc", "-c", text]
        os.execve(settings.bash, argv, settings.environment if first else {})
    except BaseException as error:
        os.write(failed, f"{type(error).__name__}: {error}".encode())
    os._exit(CANNOT)


def _arrange(wanted: tuple[int, ...], also: int) -> int:
    """Make these descriptors 0, 1, 2, ... and close all others but `also`, whose new number is returned."""
    free = 100
    moved = [os.dup2(fd, free + i, inheritable=False) for i, fd in enumerate((*wanted, also))]
    for number, fd in enumerate(moved[:-1]):
        os.dup2(fd, number)
    os.closerange(len(wanted), moved[-1])
    os.closerange(moved[-1] + 1, 1 << 16)
    return moved[-1]


assert COMMAND_FD == 3, "the fourth of what `_arrange` is given"


if __name__ == "__main__":
    main()
