"""A cell, run: fresh processes one after another for first calls, and three of them by turns for times."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.store import ROOT, Facts
from benchmarks.whole_models.cells import DEFAULT, MODES, Cell
from benchmarks.whole_models.contestant import INDUCTOR, OURS, Request
from benchmarks.whole_models.figures import AGAIN, errors, first_calls, memory, times, undecided
from benchmarks.whole_models.process import (
    START_LIMIT_S,
    Cut,
    Line,
    Lost,
    Plan,
    Process,
    environment,
)
from cuda_agent_backend.bench.measurement import is_settled

REFERENCE = "benchmarks.whole_models.reference"
LEAST_ROUNDS, MOST_ROUNDS = 10, 200
FIRST_LOOK, EVERY = 20, 10
"""Rounds after which, and then after how many each time, it is asked whether more would tell anything."""
GRAPHS = 4
"""Budgets of a graph that our process with the search has; a training step has two graphs."""
NEXT_TO_NOTHING_S = 1e-6
EMPTY, KEPT = "an empty kernel cache", "a kernel cache with what an earlier cell found"
CUT_BEFORE = "a kernel cache with what this cell had found until it was cut"
"""What our first process began with: unless it was the first of these, its first call is no cold one."""
Samples = dict[str, dict[str, list[float]]]


def run(cell: Cell, plan: Plan) -> Facts:
    """All facts of a cell. Raises `Lost` or `Cut`."""
    shutil.rmtree(plan.folder, ignore_errors=True)
    plan.folder.mkdir(parents=True)
    with under_way(cell, plan) as began:
        return _facts(cell, plan, began)


def _facts(cell: Cell, plan: Plan, began: str) -> Facts:
    base = Request(
        cell.target, cell.model, cell.dtype, cell.kind, cell.mode, INDUCTOR, toy=plan.toy
    )
    environments = {name: environment(plan, name, cell.target) for name in (INDUCTOR, OURS)}
    searches, finds = options_of(plan)

    def process(name: str, backend: str, options: Mapping[str, Any]) -> Process:
        outputs = str(plan.folder / f"{name}.pt")
        request = replace(base, backend=backend, outputs=outputs, options=options)
        return Process(name, request, environments[backend], plan)

    # Ours first, so that its search has the device to itself; what follows stays for the times.
    order = [("cold", OURS, searches), (INDUCTOR, INDUCTOR, {}), (OURS, OURS, finds)]
    starts = [partial(process, *one) for one in [*order, (AGAIN, INDUCTOR, {})]]
    with ExitStack() as stack:
        # On cpu it would disturb what is measured, a few cores.
        line = Line(stack, starts, ahead=cell.target == "cuda")
        reference = reference_of(replace(base, backend="eager"), environments[INDUCTOR], plan)
        searching, cold = line.next()
        searching.close()
        raced = race(line, plan)
    found = {name: _loaded(plan.folder / f"{name}.pt") for name in (OURS, INDUCTOR)}
    said = raced.said
    return {
        "cell": asdict(cell),
        **times(raced.samples),
        **errors(found[OURS], found[INDUCTOR], **reference),
        **first_calls(cold, said[OURS], said[INDUCTOR], said[AGAIN]),
        "cold_from": began,
        **memory(said[OURS], said[INDUCTOR], cell.mode),
        "control_in": "a process of its own" if raced.own_control else "Inductor's process",
        **raced.graphs,
        "undecided": undecided(raced.graphs.get("graphs", [])),
        "processes": {"cold": cold, **said},
        "seconds": raced.samples,
    }


@dataclass(frozen=True)
class Raced:
    """What three processes said that ran by turns, and what became of our graphs. own_control: all three were there."""

    said: Mapping[str, Facts]
    samples: Samples
    graphs: Facts
    own_control: bool


def race(line: Line, plan: Plan) -> Raced:
    """Inductor, ours, and Inductor again, by turns. Raises `Lost` or `Cut` until their times are known."""
    first, said_first = line.next()
    mine, said_mine = line.next()
    second, said_second = again(line, first, said_first)
    samples = by_turns({INDUCTOR: first, OURS: mine, AGAIN: second}, plan.seconds)
    for other in (first, second):  # describing ours takes memory, which is theirs until then
        other.close()
    said = {INDUCTOR: said_first, OURS: said_mine, AGAIN: said_second}
    return Raced(said, samples, described(mine), second is not first)


def described(mine: Process) -> Facts:
    """What became of our graphs, or by `undescribed` why that is not known: no reason to lose what was measured."""
    try:
        return mine.ask("graphs", START_LIMIT_S)
    except Lost as lost:
        return {"undescribed": str(lost)}
    except Cut:
        return {"undescribed": "the time was up"}


@contextmanager
def under_way(cell: Cell, plan: Plan) -> Iterator[str]:
    """Run a cell within it; what the kernel cache holds then (see `begin_search`).

    A mark stays where the cell does not end, as when it is cut or this process killed: its search goes on later.
    """
    began = begin_search(cell, plan)
    mark = _mark(cell.mode, plan)
    mark.touch()
    try:
        yield began
    except Lost:
        mark.unlink()
        raise
    mark.unlink()


def begin_search(cell: Cell, plan: Plan) -> str:
    """Make the kernel cache ready: empty for the default mode, as others left it for the other modes. What it holds.

    That of a cell which was cut has what it had found by then, whatever the mode. Once it is emptied, no other mode's
    cell has anything to go on with.
    """
    goes_on = _mark(cell.mode, plan).exists()
    if cell.mode == DEFAULT and not goes_on:
        shutil.rmtree(plan.search, ignore_errors=True)
        for mode in MODES:
            _mark(mode, plan).unlink(missing_ok=True)
    left = CUT_BEFORE if goes_on else KEPT
    found = left if plan.kernels.is_dir() else EMPTY
    plan.search.mkdir(parents=True, exist_ok=True)
    return found


def _mark(mode: str, plan: Plan) -> Path:
    """The file that is there while a mode's cell is under way, beside what it searches."""
    return plan.kept / file_name("under way", mode)


def options_of(plan: Plan) -> tuple[Facts, Facts]:
    """Of our first process, which searches, and of a later one, which has no time left to.

    By its other options the later one is the same program: torch's caches find what the first one compiled, as for a
    user who starts the program again. In `cached` mode they would not, for the mode is in their key.
    """
    ours = {"cache_dir": str(plan.kernels), "native_dir": str(plan.native_dir)}
    searches = {**ours, "search": "search", "budget_s": plan.budget_s}
    return (
        {**searches, "total_budget_s": GRAPHS * plan.budget_s},
        {**searches, "total_budget_s": NEXT_TO_NOTHING_S},
    )


def again(line: Line, first: Process, said: Facts) -> tuple[Process, Facts]:
    """Inductor a second time, with its caches warm. Where the device has no room for it beside the others, the first
    process is its own control, and there is no warm first call."""
    try:
        return line.next()
    except Lost as lost:
        if not lost.full:
            raise
        return first, {**said, "first_s": None}


def by_turns(contestants: Mapping[str, Any], seconds: float, seed: int = 0) -> Samples:
    """Seconds of each contestant in each round, by clock: in a round every one is called once, in random order.

    It ends early where the speed-up is known well, whatever it is.
    """
    samples: Samples = {clock: {name: [] for name in contestants} for clock in ("device", "wall")}
    order, shuffle = list(contestants), random.Random(seed).shuffle
    until = time.monotonic() + seconds
    for done in range(MOST_ROUNDS):
        if done >= LEAST_ROUNDS and time.monotonic() > until:
            break
        if done >= FIRST_LOOK and done % EVERY == 0 and is_settled(samples):
            break
        shuffle(order)
        for name in order:
            found = contestants[name].ask("time")
            for clock, kept in samples.items():
                kept[name].append(found[clock])
    return samples


def reference_of(request: Request, environment: Mapping[str, str], plan: Plan) -> dict[str, Any]:
    """What errors are held against, in whatever mode: from a process of its own, or kept from another mode's cell.

    Raises `Lost` or `Cut`.
    """
    if plan.reference.is_file():
        return dict(_loaded(plan.reference))
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
    plan.kept.mkdir(parents=True, exist_ok=True)
    out.replace(plan.reference)  # half a file is never kept
    return dict(_loaded(plan.reference))


def _loaded(file: Path) -> Any:
    import torch

    return torch.load(file, weights_only=True)


def file_name(*parts: str) -> str:
    """A folder's name for a cell, or for what several share."""
    return re.sub(r"\W+", "-", " ".join(parts))
