"""Put isolation in force for this process, before any thread is started and anything of a candidate is seen.

As a program: `python -I -S confine.py POLICY COMMAND...` becomes the command, confined; `... --probe` says what works
on this machine. A mechanism that the policy demands and that cannot be had ends the process.

Threat model: the process will handle code that wants to read the judge's secrets and its files, to reach others on the
machine or the network, and to outlive its trial. Not covered: flaws of the kernel and of the GPU's driver, whose
interface a worker for cuda can reach; what can be learnt from timing; that files exist (stat is not refused); load on
the machine below the limits. What one process can do to another of the same user is prevented by Landlock 6, or by a
user of its own where the judge is root.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sandbox.isolation import landlock, privileges, seccomp
from sandbox.isolation.landlock import View
from sandbox.isolation.mechanisms import Isolation

CANNOT = 125
"""Exit status of the program where the policy cannot be put in force."""
PROBE = "--probe"
PROBE_SECONDS = 30


@dataclass(frozen=True)
class Policy:
    """What to put in force.

    view: None leaves files unguarded. uid: whom to become, None to stay. keep_search: read what the view holds whatever
    the files' modes say. filter: of system calls, with what CUDA needs if for_cuda. limits: see `limit_resources`.
    protected: files and folders in folders to write that stay this process's own, where it may become somebody else.
    """

    view: View | None = None
    uid: int | None = None
    keep_search: bool = False
    filter: bool = False
    for_cuda: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    protected: tuple[str, ...] = ()

    def to_json(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Policy:
        """What `to_json` gave."""
        found: dict[str, Any] = json.loads(text)
        view, protected = found.pop("view"), tuple(found.pop("protected", ()))
        made = None if view is None else View(**{k: tuple(paths) for k, paths in view.items()})
        return cls(view=made, protected=protected, **found)


def policy(offered: Isolation, view: View, limits: Mapping[str, int], uid: int | None) -> Policy:
    """The strictest policy on a machine that offers so much. uid: an unused one, None where none can be taken."""
    guarded = offered.files > 0
    open_to_all = privileges.reachable((*view.read, *view.write))
    if not offered.user.startswith("other") or not (guarded or open_to_all):
        uid = None
    private = {"nproc": max(512, 8 * (os.cpu_count() or 1))} if uid is not None else {}
    return Policy(
        view=view if guarded else None,
        uid=uid,
        keep_search=uid is not None and not open_to_all,
        filter=offered.syscalls,
        limits={**limits, **private},
    )


def apply(wanted: Policy) -> Isolation:
    """Put the policy in force. Raises OSError where it cannot be."""
    privileges.die_first()
    if wanted.uid is not None and wanted.view is not None:
        privileges.own(wanted.view.write, wanted.uid)
        privileges.keep(wanted.protected)
    with ExitStack() as stack:
        abi = landlock.version() if wanted.view is not None else 0
        rules = -1
        if wanted.view is not None:
            rules = stack.enter_context(landlock.ruleset(wanted.view, abi))
        user = _change_user(wanted)
        privileges.limit_resources(wanted.limits)
        seccomp.set_no_new_privileges()
        if wanted.view is not None:
            landlock.restrict(rules)
    if wanted.filter:
        seccomp.install(seccomp.work_rules(wanted.for_cuda), seccomp.ALLOW)
    return Isolation(
        files=abi,
        network=wanted.filter or abi >= 4,
        signals=abi >= 6 or wanted.uid is not None,
        syscalls=wanted.filter,
        privileges=True,
        user=user,
    )


def _change_user(wanted: Policy) -> Any:
    if wanted.uid is not None:
        privileges.become(wanted.uid, wanted.keep_search)
        return "other, reads past modes" if wanted.keep_search else "other"
    privileges.drop_capabilities()
    return "own" if os.geteuid() == 0 else "own, no rights"


def seal(control_fd: int) -> None:
    """From here on this process computes and does nothing else: see RUN in `seccomp`. Raises OSError."""
    seccomp.install(seccomp.run_rules(os.getpid(), control_fd), seccomp.refuse())


@lru_cache
def offered() -> Isolation:
    """What this machine offers, tried out in a child once per process."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", __file__, PROBE, str(privileges.next_uid() or "")],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            env={},
            check=False,
        )
        return Isolation.from_dict(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as error:
        return Isolation(why=f"the trial failed: {error}")


def confined(command: Sequence[str], wanted: Policy) -> list[str]:
    """The command line that runs `command` under the policy."""
    return [sys.executable, "-I", "-S", __file__, wanted.to_json(), *command]


def _probe(uid: int | None) -> Isolation:
    """Try each mechanism in a child of its own, so that one failure does not hide another."""
    everything = View(read=("/",), write=())
    tries = {
        "files": Policy(view=everything),
        "syscalls": Policy(filter=True),
        "user": Policy(uid=uid),
    }
    found, reasons = Isolation(), []
    for name, wanted in tries.items():
        result = _try(wanted)
        if not isinstance(result, Isolation):
            reasons.append(f"{name}: {result}")
            continue
        value = getattr(result, name)
        found = replace(
            found,
            **{name: value},
            network=found.network or result.network,
            signals=found.signals or result.signals,
            privileges=True,
        )
    return replace(found, why="; ".join(reasons))


def _try(wanted: Policy) -> Isolation | str:
    if wanted.view is not None and not landlock.version():
        return "the kernel has no Landlock, or it is not enabled"
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = json.dumps(apply(wanted).to_dict())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer.startswith("{"):
        return answer or "the process was killed"
    return Isolation.from_dict(json.loads(answer))


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    first, *rest = arguments
    if first == PROBE:
        uid = int(rest[0]) if rest and rest[0] else None
        print(json.dumps(_probe(uid).to_dict()))
        return 0
    try:
        apply(Policy.from_json(first))
        os.execvp(rest[0], rest)
    except FileNotFoundError as error:
        print(f"{rest[0]}: {error}", file=sys.stderr)
        return 127
    except (OSError, KeyError, ValueError) as error:
        print(f"cannot be confined: {error}", file=sys.stderr)
        return CANNOT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
