"""A cell, run: fresh processes one after another for first calls, and three of them by turns for times."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.store import ROOT, Facts
from benchmarks.whole_models.cells import DEFAULT, Cell
from benchmarks.whole_models.contestant import INDUCTOR, OURS, Request
from benchmarks.whole_models.figures import AGAIN, errors, first_calls, memory, times, undecided
from benchmarks.whole_models.process import START_LIMIT_S, Cut, Lost, Plan, Process, environment
from cuda_agent_backend.bench.measurement import is_settled

REFERENCE = "benchmarks.whole_models.reference"
LEAST_ROUNDS, MOST_ROUNDS = 10, 200
FIRST_LOOK, EVERY = 20, 10
"""Rounds after which, and then after how many each time, it is asked whether more would tell anything."""
GRAPHS = 4
"""Budgets of a graph that our process with the search has; a training step has two graphs."""
NEXT_TO_NOTHING_S = 1e-6
EMPTY, KEPT = "an empty kernel cache", "a kernel cache with what an earlier cell found"
"""What our first process began with: where it is the latter, its first call is no cold one."""
Samples = dict[str, dict[str, list[float]]]


def run(cell: Cell, plan: Plan) -> Facts:
    """All facts of a cell. Raises `Lost` or `Cut`."""
    shutil.rmtree(plan.folder, ignore_errors=True)
    plan.folder.mkdir(parents=True)
    began = begin_search(cell, plan)
    base = Request(
        cell.target, cell.model, cell.dtype, cell.kind, cell.mode, INDUCTOR, toy=plan.toy
    )
    environments = {name: environment(plan, name, cell.target) for name in (INDUCTOR, OURS)}
    reference = reference_of(replace(base, backend="eager"), environments[INDUCTOR], plan)
    searches, finds = options_of(plan)

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
        mine = stack.enter_context(process(OURS, OURS, finds))
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
        "cold_from": began,
        **memory(said[OURS], said[INDUCTOR], cell.mode),
        "control_in": "a process of its own" if second is not first else "Inductor's process",
        **graphs,
        "undecided": undecided(graphs["graphs"]),
        "processes": {"cold": cold, **said},
        "seconds": samples,
    }


def begin_search(cell: Cell, plan: Plan) -> str:
    """Make the kernel cache ready: empty for the default mode, as others left it for the other modes. What it holds."""
    if cell.mode == DEFAULT:
        shutil.rmtree(plan.search, ignore_errors=True)
    found = KEPT if plan.kernels.is_dir() else EMPTY
    plan.search.mkdir(parents=True, exist_ok=True)
    return found


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
