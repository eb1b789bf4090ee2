"""A shell for an agent's workspace: bash, confined, whose folder, variables and functions last from command to command.

Threat model: commands come from a language model, and whatever they start may be hostile: it wants to read the judge's
secrets, its caches and other workspaces, to reach the network, to disturb what is being measured, to hold on beyond
its time, or to make its own outcome look different. It is confined as everything else that handles a candidate (see
`confine`), so there is no shell where host code of a policy would be refused. It sees the system's folders, compilers
and the CUDA toolkit; it writes to the workspace and to a folder of its own for temporary files. It has no GPU unless
that is asked for.

Each command is a process of its own, which ends with all that it has started: between commands nothing runs, so
nothing disturbs a measurement and nothing changes a file while the owner looks at it. What a command leaves behind for
the next is bash's own account of its state (see `shellscript`). Status and end are the kernel's word; what is printed
cannot forge them.

Protected files are the judge's own where it is root: the shell reads them and can neither change, rename nor remove
them. Elsewhere it could, so nothing may be believed because it is in the workspace. Symbolic links in it may point
anywhere: whoever opens files there for the agent has to stay within it.

Not covered: the sum of what is written to disk (each file has a limit), and what `confine` does not cover.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sandbox import scratch
from sandbox.compile.toolchain import Toolchain, find_cuda, find_cxx
from sandbox.isolation import trees
from sandbox.isolation.confine import Policy, offered, policy
from sandbox.isolation.limits import SYSTEM_PATH
from sandbox.isolation.mechanisms import Isolation
from sandbox.isolation.privileges import hold, next_uid, release
from sandbox.isolation.views import shell_view
from sandbox.shell import keeper
from sandbox.shell.keeper import END_SECONDS, Settings, readable
from sandbox.shell.result import ShellLimits, ShellResult, lost, not_run, result_of
from sandbox.workers.protocol import receive_json, send_json

PROTECTED = ("SKILL.md", "task.*", "facts.json", "baselines.json")
GRACE_SECONDS = 60.0
"""Beyond a command's time: until then its keeper has answered, or it is broken."""


class Shell:
    """One shell in `folder`; a context manager. Commands are run one at a time, whichever thread asks.

    protected: names and patterns of what the shell may not change at the top of the folder, folders with all that is
    in them, or what gives these for each command. read: more folders and files that it may read. gpu: whether it may
    use the GPU. turn: entered for each command, for owners who measure. isolation: what this machine offers, tried out
    where it is not given.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        protected: Sequence[str] | Callable[[], Iterable[str]] = PROTECTED,
        read: Sequence[Path] = (),
        gpu: bool = False,
        limits: ShellLimits | None = None,
        turn: Callable[[], AbstractContextManager[Any]] = nullcontext,
        isolation: Isolation | None = None,
    ) -> None:
        self.folder = Path(folder).resolve()
        self.isolation = isolation or offered()
        self.limits = limits or ShellLimits()
        self._protected = protected
        self._read, self._gpu, self._turn = tuple(read), gpu, turn
        self._bash = shutil.which("bash", path=SYSTEM_PATH)
        self._compilers = [t.path for t in (find_cxx(), find_cuda()) if isinstance(t, Toolchain)]
        self._uid = next_uid([*map(str, self._compilers), self._bash or ""])
        hold(self._uid)
        self._alone = threading.Lock()
        self._closed = False
        self._keeper: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._private: Path | None = None
        if self.why_not is None:
            self._start()

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def why_not(self) -> str | None:
        """Why no command can be run; None where they can."""
        if self._closed:
            return "the shell is closed"
        if self._bash is None:
            return "this machine has no bash"
        return self.isolation.why_no_untrusted_code

    @property
    def protects(self) -> bool:
        """Whether protected files are out of the shell's reach; otherwise they are as any other file."""
        return self._policy().uid is not None

    def run(self, command: str, timeout_s: float = 60.0) -> ShellResult:
        """Run a command, which reads nothing from stdin. All failures are in the result."""
        if "\0" in command:
            return not_run("a command cannot hold a NUL character")
        try:
            command.encode()
        except UnicodeEncodeError:
            return not_run("a command cannot hold half a character (a lone surrogate)")
        with self._alone, self._turn():
            refusal = self.why_not
            if refusal is not None:
                return not_run(refusal)
            if self._keeper is None:
                self._start()
            answer = self._ask(command, timeout_s)
        return result_of(answer, timeout_s, self.limits) if answer else lost()

    def close(self) -> None:
        """End the shell with all that it runs. Another thread's command ends as lost."""
        self._closed = True
        control = self._control
        if control is not None:
            with suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)  # ends the command of another thread, too
        with self._alone:
            self._end()
            release(self._uid)

    def _policy(self) -> Policy:
        limits, private = self.limits, [self._private] if self._private else []
        view = shell_view([self.folder, *private], self._compilers, self._gpu, self._read)
        resources = {"core": 0, "fsize": limits.file_bytes, "nofile": limits.open_files}
        if not self._gpu:  # the driver maps far more than it uses
            resources["as"] = limits.memory_bytes
        found = policy(self.isolation, view, resources, self._uid)
        counted = {"nproc": limits.processes} if found.uid is not None else {}
        return replace(found, for_cuda=self._gpu, limits={**found.limits, **counted})

    def _settings(self) -> Settings:
        system = SYSTEM_PATH.split(":")
        folders = [str(path.parent) for path in self._compilers if str(path.parent) not in system]
        environment = {
            "PATH": ":".join(dict.fromkeys([*folders, *system])),
            "HOME": str(self._private),
            "TMPDIR": str(self._private),
            "TMP": ".",  # see `limits`
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PAGER": "cat",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # as in a worker: our package is not to be seen
        }
        if not self._gpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        return Settings(
            folder=str(self.folder),
            private=str(self._private),
            bash=str(self._bash),
            policy=self._policy().to_json(),
            environment=environment,
            memory_bytes=self.limits.memory_bytes,
            processes=self.limits.processes,
            output_bytes=self.limits.output_bytes,
            niceness=self.limits.niceness,
        )

    def _start(self) -> None:
        self._private = scratch.make("shell")
        self._private.chmod(0o755)  # who may enter is for the view to say
        ours, theirs = socket.socketpair()
        with theirs:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, str(theirs.fileno())],
                env={"PATH": SYSTEM_PATH},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._control = ours
        with suppress(OSError):
            send_json(ours.fileno(), asdict(self._settings()))

    def _ask(self, command: str, timeout_s: float) -> dict[str, Any] | None:
        """The keeper's answer; None where it is gone. Whatever interrupts this ends the shell."""
        assert self._control is not None
        given = self._protected
        names = given() if callable(given) else given
        # Below the top, paths would be the shell's to redirect: there whole folders are protected.
        patterns = tuple(dict.fromkeys(name.partition("/")[0] for name in names))
        protected = protected_files(self.folder, patterns)
        request = {"command": command, "timeout_s": timeout_s, "protected": protected}
        done = False
        try:
            fd = self._control.fileno()
            send_json(fd, request)
            if readable(fd, timeout_s + GRACE_SECONDS):
                answer = receive_json(fd)
                done = True
                return answer
        except OSError:
            pass
        finally:
            if not done:
                self._end()
        return None

    def _end(self) -> None:
        keeper, control, private = self._keeper, self._control, self._private
        self._keeper = self._control = self._private = None
        if control is not None:
            control.close()
        if keeper is not None:
            try:
                keeper.wait(END_SECONDS + 5)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()
        if private is not None:
            trees.remove(private)


def protected_files(folder: Path, patterns: Sequence[str]) -> list[str]:
    """What is there under these names, and what a pattern takes if it is this process's own: the shell may call its
    files as it likes."""
    mine, found = os.geteuid(), set()
    for pattern in patterns:
        for path in folder.glob(pattern):
            with suppress(OSError):
                if path.name == pattern or path.lstat().st_uid == mine:
                    found.add(str(path))
    return sorted(found)
