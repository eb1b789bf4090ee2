"""Run a round, and say what was wrong afterwards: lost, remembered for good, left behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chaos import faults
from chaos.actors import TELLS
from chaos.plan import FOLDERS, MODELS, WINNERS, Fault, Plan, User, plan_of
from chaos.warm_fork import ADDRESS, MODULES, Warm, WarmPopen
from kernel_cache import KernelCache, Record
from sandbox import scratch

PATIENCE_S, WHOLE_PATIENCE_S = 180.0, 360.0
"""For a round's users, and for the one that looks what is left of it."""
TELLING_S = 1.0
LEFT_S = 10.0
"""After so long nothing may be left."""
LATER_S = 7200.0
"""By which the clock of the user that looks is ahead: what waits to be tried again does not wait any more."""
HEADERS = "headers"
"""The folder of `Ground.shared` with what Inductor keeps among temporary files."""
LOG = "log"
"""The file of a round with all that its processes said."""
KEEP = ("PATH", "LD_LIBRARY_PATH", "LANG", "HOME", "CC", "CXX", "CUDA_HOME", "PYTHONPATH")


@dataclass
class Ground:
    """Where rounds take place, one after another: a folder, and a warm process of its own.

    shared: what rounds begin with, of one or several grounds: Inductor's code for the models, its header, which takes
    longer to compile than the rest of a round, and the operator library.
    """

    folder: Path
    shared: Path
    warm: Warm = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.shared.mkdir(parents=True, exist_ok=True)
        self.warm = Warm(self.folder)

    def prepare(self) -> None:
        """Make what rounds begin with, where that is not there. Raises RuntimeError where that fails."""
        self.warm.ready()
        if (self.shared / "inductor").is_dir():
            return
        place, all_models = self.folder / "first", [User("search", "measure", MODELS)]
        told = _undisturbed(self, place, plan_of(0), all_models, PATIENCE_S * 5)
        if told.problems:
            said = (place / LOG).read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{told.problems}: {said} {self.warm.log.read_text()[-1000:]}")
        shutil.rmtree(place / "inductor" / "fxgraph", ignore_errors=True)
        shutil.rmtree(place / "inductor" / "aotautograd", ignore_errors=True)
        for made in (place / "tmp").glob("torchinductor_*/precompiled_headers"):
            headers = self.shared / HEADERS / made.relative_to(place / "tmp")
            headers.parent.mkdir(parents=True, exist_ok=True)
            made.rename(headers)
        (place / "inductor").rename(self.shared / "inductor")
        shutil.rmtree(place, ignore_errors=True)

    def close(self) -> None:
        """End the warm process."""
        self.warm.stop()


@dataclass
class Seen:
    """What was seen in a round. problems: what must not be."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run_round(ground: Ground, seed: int) -> dict[str, Any]:
    """The round of a seed, as `run_plan`."""
    return run_plan(ground, plan_of(seed))


def run_plan(ground: Ground, plan: Plan) -> dict[str, Any]:
    """One round: what was done, what was seen, and what was wrong."""
    started = time.monotonic()
    place = ground.folder / f"round-{plan.seed}"
    seen = Seen()
    users = _begin(ground, place, plan)
    patience_s = WHOLE_PATIENCE_S if plan.whole else PATIENCE_S
    threads = [
        threading.Thread(target=_go_wrong, args=(place, fault, plan.seed + n, users, seen))
        for n, fault in enumerate(plan.faults)
    ]
    for thread in threads:
        thread.start()
    for user in users:
        _await(place, user, patience_s, seen, plan)
    for thread in threads:
        thread.join()
    looked = _undisturbed(ground, place, plan, _looks(plan), patience_s)
    seen.problems += looked.problems
    seen.notes += looked.notes
    if any(fault.do == faults.READ_ONLY for fault in plan.faults):
        scratch.sweep(place / "tmp")  # as the next process does: nobody can remove anything there
    seen.problems += _what_is_left(place)
    seen.problems += _lost(place)
    row = {
        "seed": plan.seed,
        "done": describe(plan),
        "notes": seen.notes,
        "problems": seen.problems,
        "seconds": round(time.monotonic() - started, 2),
    }
    if seen.problems:
        told = any("not done" in problem for problem in seen.problems)
        row["log"] = (place / LOG).read_text(errors="replace")[-60_000 if told else -4000 :]
    else:
        shutil.rmtree(place, ignore_errors=True)
    return row


def describe(plan: Plan) -> str:
    """A round on a line."""
    users = ", ".join(
        f"{u.mode}/{u.acceptance} {'+'.join(u.models)}"
        + (f" clock {u.clock:+.0f} {u.jump:+.0f}" if u.clock or u.jump else "")
        for u in plan.users
    )
    wrong = ", ".join(
        f"{f.do} {f.target or 'folders'} at {f.delay_s:g} s"
        + ("" if f.do.startswith("SIG") else f" for {f.lasts_s:g} s")
        for f in plan.faults
    )
    return f"{'whole: ' if plan.whole else ''}{users}; {wrong}"


def _begin(ground: Ground, place: Path, plan: Plan) -> list[WarmPopen]:
    shutil.rmtree(place, ignore_errors=True)
    for name in ("tmp", "cache", "pids", "promoted"):
        (place / name).mkdir(parents=True)
    for template, name in (
        (ground.shared / "inductor", "inductor"),
        (ground.shared / HEADERS, "tmp"),
    ):
        if template.is_dir():
            shutil.copytree(template, place / name, copy_function=os.link, dirs_exist_ok=True)
    users = []
    for user in sorted(plan.users, key=lambda u: u.start_after_s):
        wait_s = user.start_after_s - (users[-1][0].start_after_s if users else 0.0)
        time.sleep(wait_s)
        users.append((user, _start(ground, place, plan, [user], look=False)))
    return [process for _, process in users]


def _start(
    ground: Ground, place: Path, plan: Plan, users: Sequence[User], look: bool, clock: float = 0.0
) -> WarmPopen:
    first = users[0]
    env = {name: os.environ[name] for name in KEEP if name in os.environ}
    env |= {
        ADDRESS: ground.warm.address,
        faults.FOLDER: str(place),
        faults.CLOCK: f"{clock or first.clock},{first.jump if not look else 0},{first.jump_after_s}",
        "TMPDIR": str(place / "tmp"),
        "CUDA_AGENT_CACHE_DIR": str(place / "cache" / "kernels"),
        "CUDA_AGENT_NATIVE_DIR": str(ground.shared / "native"),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
        "XDG_CACHE_HOME": str(ground.shared / "xdg"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "KINETO_LOG_LEVEL": "99",  # the profiler, asked again and again, would fill the log
        "CUDA_VISIBLE_DEVICES": "",
        **({"CHAOS_WHOLE": "1"} if plan.whole else {}),
        **({"CHAOS_FORGETS": "1"} if plan.forgets else {}),
        **({} if look else {"CHAOS_SEARCH_S": str(plan.search_s)}),
    }
    budget = {"budget_s": 40.0} if plan.whole else {}
    wishes = [
        json.dumps(
            {"mode": u.mode, "acceptance": u.acceptance, "models": u.models, "look": look} | budget
        )
        for u in users
    ]
    with (place / LOG).open("ab") as log:
        command = ["python", "-m", "user", *wishes]
        return WarmPopen(command, env=env, kind="user", stderr=log.fileno())


def _looks(plan: Plan) -> list[User]:
    """The undisturbed users that look: all models, in each way in which a user of the round compiled."""
    names = tuple(sorted({name for user in plan.users for name in user.models}))
    ways = dict.fromkeys((user.mode, user.acceptance) for user in plan.users)
    return [User(mode, how, names) for mode, how in ways]


def _ended(
    place: Path, user: WarmPopen, who: str, patience_s: float, seen: Seen
) -> tuple[int, list[dict[str, Any]]]:
    """Wait for a user, who is killed where that takes too long, once the log has where all processes of the
    round are: its exit status, and what it told."""
    try:
        code = user.wait(patience_s)
    except subprocess.TimeoutExpired:
        seen.problems.append(f"{who} was not done after {patience_s:g} s")
        for kind in ("user", "search", "acceptance"):
            for pid in _registered(place, kind):
                with suppress(OSError):
                    os.kill(pid, TELLS)
        time.sleep(TELLING_S)
        with suppress(ProcessLookupError):
            os.killpg(user.pid, signal.SIGKILL)
        code = user.wait()
    told = [json.loads(line) for line in user.stdout.read().splitlines() if line.startswith("{")]
    user.stdin.close()
    user.stdout.close()
    return code, told


def _await(place: Path, user: WarmPopen, patience_s: float, seen: Seen, plan: Plan) -> None:
    code, told = _ended(place, user, "a user", patience_s, seen)
    signals = {f.do for f in plan.faults if f.target == "user" and f.do.startswith("SIG")}
    ended = {0, *(-getattr(signal, name) for name in signals)}
    ended |= {130} if "SIGINT" in signals else set()
    if code not in ended:
        seen.problems.append(f"a user ended with status {code}")
    seen.problems += [f"{t['model']} is not eager's" for t in told if t.get("equal") is False]
    for why in (t["torchs_own"] for t in told if "torchs_own" in t):
        excused = _wanted_files(plan)
        (seen.notes if excused else seen.problems).append(f"torch could not compile: {why}")
    seen.problems += [f"{t['left_open']} descriptors stay open" for t in told if t.get("left_open")]


def _wanted_files(plan: Plan) -> bool:
    """Whether a user could not write for a while."""
    return any((f.do, f.target) in FOLDERS and f.target != "search" for f in plan.faults)


def _undisturbed(
    ground: Ground, place: Path, plan: Plan, users: Sequence[User], patience_s: float
) -> Seen:
    """Let a user compile all that the users of a round did, with nothing that goes wrong."""
    seen = Seen()
    if not place.exists():
        _begin(ground, place, Plan(plan.seed, (), ()))
    process = _start(ground, place, plan, users, look=True, clock=LATER_S)
    code, told = _ended(place, process, "the undisturbed user", patience_s, seen)
    if code:
        seen.problems.append(f"the undisturbed user ended with status {code}")
    for one in told:
        if one.get("left_open"):
            seen.problems.append(f"{one['left_open']} descriptors stay open")
        if one.get("equal") is False:
            seen.problems.append(f"{one['model']} is not eager's afterwards")
        if one.get("model") in WINNERS and not one["kernel"] and not plan.whole:
            seen.problems.append(f"final: {one['model']} has no kernel afterwards in {one['mode']}")
    return seen


# What goes wrong


def _go_wrong(place: Path, fault: Fault, seed: int, users: Sequence[WarmPopen], seen: Seen) -> None:
    draw = random.Random(seed)
    if not fault.target:
        time.sleep(fault.delay_s)
        switch = place / fault.do
        if fault.do in faults.ERRNOS:
            switch.touch()
            time.sleep(fault.lasts_s)
            switch.unlink()
            seen.notes.append(fault.do)
        return
    until = time.monotonic() + 60.0
    first = fault.after or fault.target
    while not _pids(place, first):
        if time.monotonic() > until or all(user.poll() is not None for user in users):
            return
        time.sleep(0.02)
    if "worker" in fault.target:
        fault = replace(fault, delay_s=fault.delay_s / 5)
    time.sleep(fault.delay_s * (0.1 if fault.target == "compiler" else 1.0))
    pids = _pids(place, fault.target)
    if not pids:
        return
    pid = draw.choice(pids)
    with suppress(ProcessLookupError, PermissionError):
        if fault.do == "small files":
            _small_files(pid, fault.lasts_s)
        else:
            os.kill(pid, signal.Signals[fault.do])
        seen.notes.append(f"{fault.do} {fault.target}")


def _small_files(pid: int, seconds: float) -> None:
    import resource

    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (2048, before[1]))
    time.sleep(seconds)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def _pids(place: Path, kind: str) -> list[int]:
    """The living processes of a kind in a round."""
    if kind in ("user", "search", "acceptance"):
        there = _registered(place, kind)
        return there if there or kind == "user" else _started(place, kind)
    below = list(_below(_pids(place, "search")))
    if kind == "compiler":
        return [
            pid
            for pid, name in below
            if name in ("cc1plus", "g++", "c++", "as", "ld", "collect2", "python")
        ]
    servers = [pid for pid, _ in below if b"sandbox.workers.fork_server" in _command_line(pid)]
    if kind == "fork server":
        return servers
    return [pid for pid, _ in _below(servers)]


def _registered(place: Path, kind: str) -> list[int]:
    """The living processes of a kind that were forked for a round."""
    found = [int(path.name.rpartition("-")[2]) for path in (place / "pids").glob(f"{kind}-*")]
    return [pid for pid in found if _state(pid) is not None]


def _started(place: Path, kind: str) -> list[int]:
    """The processes of a kind that were not forked from the warm one: those of whole rounds."""
    module = next(name for name, its in MODULES.items() if its == kind).encode()
    below = _below(_pids(place, "user"))
    return [pid for pid, _ in below if module in _command_line(pid)]


def _below(tops: Sequence[int]) -> Iterator[tuple[int, str]]:
    """All descendants of some processes, with their names."""
    left = list(tops)
    while left:
        for path in Path(f"/proc/{left.pop()}/task").glob("*/children"):
            with suppress(OSError):
                for pid in map(int, path.read_text().split()):
                    left.append(pid)
                    if (name := _state(pid)) is not None:
                        yield pid, name


def _state(pid: int) -> str | None:
    """The name of a process that lives."""
    with suppress(OSError, ValueError, IndexError):
        head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        return None if rest.split()[0] in "ZX" else head.partition("(")[2]
    return None


def _command_line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


# What must not be


def _what_is_left(place: Path) -> list[str]:
    """Folders and processes of ours that are there after `LEFT_S`."""
    until = time.monotonic() + LEFT_S
    while (found := [*_folders(place), *_processes(place)]) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _folders(place: Path) -> list[str]:
    return [f"left: {path.name}" for path in (place / "tmp").iterdir() if "cuda_agent" in path.name]


def _processes(place: Path) -> list[str]:
    mine = os.fsencode(str(place)) + b"/"
    found = []
    for path in (place / "pids").iterdir():
        if _state(int(path.name.rpartition("-")[2])) is not None:
            found.append(f"left: {path.name}")
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        with suppress(OSError):
            about = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
            if mine in about and pid != os.getpid() and _state(pid) is not None:
                found.append(f"left: process {pid} {_command_line(pid)[:80]!r}")
    return found


def _lost(place: Path) -> list[str]:
    """Promoted kernels that are not there any more, and what an audit of the cache finds."""
    cache = KernelCache.open(place / "cache" / "kernels")
    if not isinstance(cache, KernelCache):
        return [f"the cache cannot be opened: {cache}"]
    problems = []
    for path in (place / "promoted").iterdir():
        found = cache.peek(path.name)
        if not isinstance(found, Record):
            problems.append(f"lost: {path.name[:12]}: {found}")
    audit = cache.audit()
    if isinstance(audit, list):
        problems += [f"audit: {one.kind.value}: {one.reason}" for one in audit if not one.harmless]
    else:
        problems.append(f"audit: {audit}")
    cache.close()
    return problems
