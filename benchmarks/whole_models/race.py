"""A cell, run: fresh processes one after another for first calls, and three of them by turns for times."""

from __future__ import annotations

import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.store import ROOT, Facts
from benchmarks.whole_models.cells import Cell
from benchmarks.whole_models.contestant import INDUCTOR, OURS, Request
from benchmarks.whole_models.figures import AGAIN, errors, first_calls, memory_ratio, times
from sandbox.verdict import OUT_OF_MEMORY

CONTESTANT, REFERENCE = "benchmarks.whole_models.contestant", "benchmarks.whole_models.reference"
LEAST_ROUNDS, MOST_ROUNDS = 10, 200
START_LIMIT_S, CALL_LIMIT_S, END_S = 900.0, 120.0, 20.0
"""For building, compiling and calling once, for one timed call, and for ending."""
TAIL_LINES = 12
Samples = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Plan:
    """How cells are run. folder: for caches and logs, emptied for each cell. native_dir: where ours is built once.

    budget_s: of search for each graph. seconds: of timing. deadline: by `time.monotonic`, when a cell is cut.
    """

    folder: Path
    native_dir: Path
    budget_s: float
    seconds: float
    deadline: float = float("inf")
    toy: bool = False


class Lost(Exception):
    """A process gave no answer; the message says why, with the end of its log. full: the device's memory was."""

    def __init__(self, what: str, log: str) -> None:
        last = "\n".join(log.splitlines()[-TAIL_LINES:])
        super().__init__(f"{what}\n{last}" if last else what)
        self.full = bool(OUT_OF_MEMORY.search(log))


class Cut(Exception):
    """The time of the whole run was up."""


class Process:
    """One contestant; it ends with its context."""

    def __init__(
        self, name: str, request: Request, environment: Mapping[str, str], plan: Plan
    ) -> None:
        self._name, self._log, self._deadline = name, plan.folder / f"{name}.log", plan.deadline
        file = plan.folder / f"{name}.json"
        file.write_text(request.to_text(), encoding="utf-8")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", CONTESTANT, str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=ROOT,
                text=True,
                start_new_session=True,
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()

    def ready(self) -> Facts:
        """What it says once it has called the model. Raises `Lost` or `Cut`."""
        return self._answer(START_LIMIT_S)

    def ask(self, command: str, limit_s: float = CALL_LIMIT_S) -> Facts:
        """Its answer to a command. Raises `Lost` or `Cut`."""
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()
        return self._answer(limit_s)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _answer(self, limit_s: float) -> Facts:
        left = self._deadline - time.monotonic()
        try:
            line = self._lines.get(timeout=max(0.0, min(limit_s, left)))
        except queue.Empty:
            if left <= limit_s:
                raise Cut from None
            raise Lost(f"{self._name}: no answer after {limit_s:.0f} s", self._said()) from None
        if not line:
            code = self._process.wait()
            raise Lost(f"{self._name}: ended with status {code}", self._said())
        found: Facts = json.loads(line)
        return found

    def _said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")


def run(cell: Cell, plan: Plan) -> Facts:
    """All facts of a cell. Raises `Lost` or `Cut`."""
    shutil.rmtree(plan.folder, ignore_errors=True)
    plan.folder.mkdir(parents=True)
    base = Request(
        cell.target, cell.model, cell.dtype, cell.kind, cell.mode, INDUCTOR, toy=plan.toy
    )
    environments = {name: environment(plan, name) for name in (INDUCTOR, OURS)}
    reference = _reference(replace(base, backend="eager"), environments[INDUCTOR], plan)
    ours = {"cache_dir": str(plan.folder / OURS / "kernels"), "native_dir": str(plan.native_dir)}
    searches = {**ours, "search": "search", "budget_s": plan.budget_s}
    cached = {**ours, "search": "cached"}

    def process(name: str, backend: str, options: Mapping[str, Any] | None = None) -> Process:
        outputs = str(plan.folder / f"{name}.pt")
        request = replace(base, backend=backend, outputs=outputs, options=options or {})
        return Process(name, request, environments[backend], plan)

    # Ours first, so that its search has the device to itself; what follows stays for the times.
    with process("cold", OURS, searches) as one:
        cold = one.ready()
    with ExitStack() as stack:
        first = stack.enter_context(process(INDUCTOR, INDUCTOR))
        said = {INDUCTOR: first.ready()}
        mine = stack.enter_context(process(OURS, OURS, cached))
        said[OURS] = mine.ready()
        second, said[AGAIN] = _again(stack, lambda: process(AGAIN, INDUCTOR), first, said[INDUCTOR])
        samples = by_turns({INDUCTOR: first, OURS: mine, AGAIN: second}, plan.seconds)
        graphs = mine.ask("graphs", START_LIMIT_S)
    found = {name: _loaded(plan.folder / f"{name}.pt") for name in (OURS, INDUCTOR)}
    return {
        "cell": asdict(cell),
        **times(samples),
        **errors(found[OURS], found[INDUCTOR], **reference),
        **first_calls(cold, said[OURS], said[INDUCTOR], said[AGAIN]),
        "memory_ratio": memory_ratio(said[OURS], said[INDUCTOR]),
        "control_in": "a process of its own" if second is not first else "Inductor's process",
        **graphs,
        "processes": {"cold": cold, **said},
        "seconds": samples,
    }


def _again(
    stack: ExitStack, start: Callable[[], Process], first: Process, said: Facts
) -> tuple[Process, Facts]:
    """Inductor a second time, with its caches warm. Where the device has no room for it beside the others, the first
    process is its own control, and there is no warm first call."""
    again = stack.enter_context(ExitStack())
    try:
        process = again.enter_context(start())
        return process, process.ready()
    except Lost as lost:
        if not lost.full:
            raise
        again.close()
        return first, {**said, "first_s": None}


def by_turns(contestants: Mapping[str, Any], seconds: float, seed: int = 0) -> Samples:
    """Seconds of each contestant in each round, by clock: in a round every one is called once, in random order."""
    samples: Samples = {clock: {name: [] for name in contestants} for clock in ("device", "wall")}
    order, shuffle = list(contestants), random.Random(seed).shuffle
    until = time.monotonic() + seconds
    for done in range(MOST_ROUNDS):
        if done >= LEAST_ROUNDS and time.monotonic() > until:
            break
        shuffle(order)
        for name in order:
            found = contestants[name].ask("time")
            for clock, kept in samples.items():
                kept[name].append(found[clock])
    return samples


def environment(plan: Plan, name: str) -> dict[str, str]:
    """Caches of their own for each of the two compilers, empty where the cell begins."""
    folder = plan.folder / name
    return {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUDA_AGENT_CACHE_DIR": str(folder / "kernels"),
        "CUDA_AGENT_NATIVE_DIR": str(plan.native_dir),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
    }


def _reference(request: Request, environment: Mapping[str, str], plan: Plan) -> dict[str, Any]:
    """What errors are held against, from a process of its own. Raises `Lost` or `Cut`."""
    file, out = plan.folder / "reference.json", plan.folder / "reference.pt"
    file.write_text(replace(request, outputs=str(out)).to_text(), encoding="utf-8")
    left = plan.deadline - time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", REFERENCE, str(file)],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=max(1.0, min(START_LIMIT_S, left)),
            check=False,
        )
    except subprocess.TimeoutExpired:
        if left <= START_LIMIT_S:
            raise Cut from None
        raise Lost(f"reference: not done after {START_LIMIT_S:.0f} s", "") from None
    if done.returncode:
        raise Lost(f"reference: ended with status {done.returncode}", done.stderr)
    found: dict[str, Any] = _loaded(out)
    return found


def _loaded(file: Path) -> Any:
    import torch

    return torch.load(file, weights_only=True)


def file_name(cell: Cell) -> str:
    """A folder's name for a cell."""
    return re.sub(r"\W+", "-", cell.name)
