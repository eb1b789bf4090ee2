"""What kernels add to first calls: eight models, three budgets, cold and in later processes: ``first-call.json``.

A cell is a model and a budget on two cores of its own. It runs Inductor in two fresh processes one after another, then
cuda_agent in three, each of the two with folders of its own that are empty before the first process. Several cells go
side by side on a machine with many cores (``--jobs``). The file is written after each cell; the next run goes on.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.store import FOLDER, ROOT, Facts, Results, brief, commit

MODELS = (
    "vision",
    "language",
    "residual",
    "mixture",
    "tagger",
    "autoencoder",
    "perceptron",
    "block",
)
BUDGETS = (120.0, 30.0, 10.0)
LATER = 2
"""Processes after the first one."""
CORES = 2
BESIDE_S = 100.0
"""About what a cell takes beside its budget: nothing is begun that would not end before the limit."""
PIN = (
    "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(',')));"
    " os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)
SEARCHED, LEFT_OVER, MEASURED = "searching kernels for", "go on for up to", "measuring the whole"
"""What the log says where a search, the rest of one, or a whole graph's measurement is waited for."""


@dataclass(frozen=True)
class Cell:
    """A model and a budget."""

    model: str
    budget_s: float

    @property
    def name(self) -> str:
        """Its name in the file."""
        return f"{self.model} {self.budget_s:.0f} s"

    @property
    def about_s(self) -> float:
        """Seconds that it may take."""
        return self.budget_s + BESIDE_S


def cells(part: str = "1/1") -> list[Cell]:
    """All cells, the longest first, or the K-th of N parts of them ("K/N")."""
    number, of = map(int, part.split("/"))
    if not 1 <= number <= of:
        raise ValueError(f"{part!r} is not K/N with 1 <= K <= N")
    return [Cell(model, budget) for budget in BUDGETS for model in MODELS][number - 1 :: of]


def pairs(allowed: Sequence[int], jobs: int, sibling: Callable[[int], int]) -> list[str]:
    """Cores for each job, as "a,b": hardware threads of one core only where there are not enough cores.

    sibling: the first hardware thread of a core's.
    """
    if CORES * jobs > len(allowed):
        raise ValueError(f"{jobs} jobs need {CORES * jobs} cores, and there are {len(allowed)}")
    ordered = sorted(allowed, key=lambda core: (core != sibling(core), core))
    return [f"{ordered[2 * job]},{ordered[2 * job + 1]}" for job in range(jobs)]


def first_thread(core: int) -> int:
    """The first hardware thread of a core, the core itself where the system does not say."""
    place = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    try:
        return int(place.read_text().replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return core


class Cut(Exception):
    """The time of the whole run was up before a cell was."""


class Runner:
    """Runs cells. xdg: a folder for what the user's processes keep apart from all that is measured."""

    def __init__(self, deadline: float, xdg: Path) -> None:
        self._deadline, self._xdg = deadline, xdg

    def cell(self, cell: Cell, cores: str) -> Facts:
        """One cell. Raises `Cut` where the time is up."""
        with tempfile.TemporaryDirectory(prefix="first-call-") as name:
            folder = Path(name)
            inductor = [
                self._process(cell, cores, folder / "inductor", "inductor") for _ in range(LATER)
            ]
            ours = folder / "ours"
            cold = self._process(cell, cores, ours, "cuda_agent")
            cold["steps"] = steps_of(ours)
            later = [self._process(cell, cores, ours, "cuda_agent") for _ in range(LATER)]
            return facts_of(cell, inductor, [cold, *later]) | {"cores": cores}

    def _process(self, cell: Cell, cores: str, folder: Path, backend: str) -> Facts:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Cut
        child = ["-m", "benchmarks.first_call", "--child", cell.model, backend, str(cell.budget_s)]
        environment = {
            **os.environ,
            "CUDA_AGENT_CACHE_DIR": str(folder / "kernels"),
            "CUDA_AGENT_NATIVE_DIR": str(folder / "native"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "XDG_CACHE_HOME": str(self._xdg),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        try:
            done = subprocess.run(
                [sys.executable, "-c", PIN, cores, *child],
                env=environment,
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=left if math.isfinite(left) else None,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Cut from None
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise RuntimeError(f"{cell.name}: {backend} failed: {done.stderr[-2000:]}")
        found: Facts = json.loads(lines[-1])
        return found


def steps_of(folder: Path) -> dict[str, list[float]]:
    """Seconds of the steps that a search noted beside its cache, by kind."""
    try:
        book = json.loads((folder / "kernels-durations.json").read_text())
    except (OSError, ValueError):
        return {}
    return {
        kind.partition(" on ")[0]: [seconds for _, seconds in entries]
        for kind, entries in book["steps"].items()
    }


def facts_of(cell: Cell, inductor: Sequence[Facts], ours: Sequence[Facts]) -> Facts:
    """The figures of a cell from what its processes said.

    A process that has nothing to search compiles anew where torch kept nothing of a graph, as of one whose search was
    not over: the pass then tells of it. Otherwise it is warm.
    """
    cold, *later = ours
    steps = cold["steps"]
    first = steps.get("first candidate", [None])[0]
    judged, accepted = steps.get("judgement", []), steps.get("acceptance", [])
    warm = inductor[-1]["first_call_s"]
    over = cold["first_call_s"] - inductor[0]["first_call_s"] - cell.budget_s
    idle = [(bool(one["graphs"]), one["first_call_s"] - warm) for one in later if not waits(one)]
    return {
        "budget_s": cell.budget_s,
        "cold_over_budget_s": over,
        "cold_within": over <= max(5.0, 0.1 * cell.budget_s),
        "warm_over_inductor_s": [seconds for anew, seconds in idle if not anew],
        "anew_over_inductor_s": [seconds for anew, seconds in idle if anew],
        "going_on_over_budget_s": [
            one["first_call_s"] - warm - cell.budget_s for one in later if waits(one)
        ],
        "first_candidate_s": first,
        "verify_and_accept_s": judged[0] + accepted[0] if judged and accepted else None,
        "searched_again": [bool(one["searches"]) and not one["left_over"] for one in later],
        "went_on": [one["left_over"] for one in later],
        "processes": {"inductor": list(inductor), "cuda_agent": list(ours)},
    }


def waits(process: Facts) -> bool:
    """Whether a process searched or measured anything."""
    return bool(process["searches"] or process["measurements"])


def summarise(samples: dict[str, Facts]) -> Facts:
    """The worst and the median over all cells, and by budget."""
    every = list(samples.values())
    warm = [second for one in every for second in one["warm_over_inductor_s"]]
    first = [one["first_candidate_s"] for one in every if one["first_candidate_s"] is not None]
    verified = [one["verify_and_accept_s"] for one in every if one["verify_and_accept_s"]]
    return {
        "cells": len(every),
        "cold_within": sum(one["cold_within"] for one in every),
        "cold_beyond": sorted(name for name, one in samples.items() if not one["cold_within"]),
        "cold_over_budget_s": {
            f"{budget:.0f}": _spread(
                [one["cold_over_budget_s"] for one in every if one["budget_s"] == budget]
            )
            for budget in BUDGETS
        },
        "warm_over_inductor_s": _spread(warm),
        "warm_within_1_s": sum(second <= 1.0 for second in warm),
        "warm_processes": len(warm),
        "anew_over_inductor_s": _spread(
            [second for one in every for second in one["anew_over_inductor_s"]]
        ),
        "going_on_over_budget_s": _spread(
            [second for one in every for second in one["going_on_over_budget_s"]]
        ),
        "first_candidate_s": _spread(first),
        "verify_and_accept_s": _spread(verified),
        "searched_again": sum(again for one in every for again in one["searched_again"]),
        "went_on": sum(bool(said) for one in every for said in one["went_on"]),
    }


def _spread(values: Sequence[float]) -> Facts | None:
    if not values:
        return None
    return {"median": statistics.median(values), "worst": max(values), "of": len(values)}


class Heard(logging.Handler):
    """Keeps what the backend logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        self.lines.append(record.getMessage())


def child(model_name: str, backend: str, budget_s: float) -> None:
    """In a process of its own: the first call of a model, and what was logged meanwhile, as one line of JSON."""
    import torch

    from benchmarks.first_call_models import make

    heard = Heard()
    logger = logging.getLogger("cuda_agent")
    logger.addHandler(heard)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    model, inputs = make(model_name)
    ours: dict[str, Any] = {"cuda_agent.budget_s": budget_s}
    options = ours if backend == "cuda_agent" else None
    with torch.no_grad():
        begin = time.monotonic()
        compiled: Any = torch.compile(model, backend=backend, options=options)
        compiled(*inputs)
        first = time.monotonic() - begin
        begin = time.monotonic()
        compiled(*inputs)
        second = time.monotonic() - begin
    print(json.dumps({"first_call_s": first, "second_call_s": second, **said(heard.lines)}))


def said(lines: Sequence[str]) -> Facts:
    """What the log lines of a process mean."""
    return {
        "searches": sum(line.startswith(SEARCHED) for line in lines),
        "measurements": sum(line.startswith(MEASURED) for line in lines),
        "left_over": [line for line in lines if LEFT_OVER in line],
        "graphs": [line for line in lines if " graph " in line and " ms" in line],
    }


def prepare(xdg: Path) -> None:
    """Have Python compile all modules once, as an installation does."""
    from cuda_agent_backend.runtime import bytecode

    environment = {**os.environ, **bytecode.variables(xdg / "cuda_agent" / "bytecode")}
    modules = "torch._inductor.compile_fx, cuda_agent_backend.search.service, sandbox.workers.loop"
    modules += ", cuda_agent_backend.acceptance.trial, sandbox.judge"
    subprocess.run(
        [sys.executable, "-c", f"import {modules}"], env=environment, cwd=ROOT, check=False
    )


def run_all(
    wanted: Sequence[Cell], results: Results, keep: bool, jobs: int, limit_s: float
) -> Facts:
    """Run the cells that are not done, several side by side, for at most `limit_s` seconds; the summary."""
    deadline = time.monotonic() + limit_s
    samples, lock = results.done(keep), threading.Lock()
    free: SimpleQueue[str] = SimpleQueue()
    for cores in pairs(sorted(os.sched_getaffinity(0)), jobs, first_thread):
        free.put(cores)
    with tempfile.TemporaryDirectory(prefix="first-call-xdg-") as name:
        runner = Runner(deadline, Path(name))
        prepare(Path(name))

        def one(cell: Cell) -> None:
            if time.monotonic() + cell.about_s > deadline:
                return
            cores, begin = free.get(), time.monotonic()
            try:
                facts = runner.cell(cell, cores)
            except (Cut, RuntimeError) as error:
                print(f"{results.name} {cell.name}: left, {error or 'the time was up'}", flush=True)
                return
            finally:
                free.put(cores)
            seconds = round(time.monotonic() - begin, 1)
            with lock:
                samples[cell.name] = {**facts, "commit": commit(), "wall_seconds": seconds}
                results.write(samples)
                print(f"{results.name} {cell.name}: {brief(facts)} ({seconds} s)", flush=True)

        with ThreadPoolExecutor(max_workers=jobs) as pool:
            for _ in pool.map(one, _not_done(wanted, samples)):
                pass
    return summarise(samples)


def _not_done(wanted: Sequence[Cell], samples: Facts) -> Iterator[Cell]:
    return iter([cell for cell in wanted if cell.name not in samples])


def main() -> None:
    """Run the cells, or in a child one call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=3, metavar=("MODEL", "BACKEND", "BUDGET"))
    parser.add_argument("--cells", default="1/1", help="K/N: the K-th of N parts of the cells")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="cells side by side, two cores each")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--keep", action="store_true", help="keep cells of other commits")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the result is written")
    args = parser.parse_args()
    if args.child:
        child(args.child[0], args.child[1], float(args.child[2]))
        return
    wanted = [cell for cell in cells(args.cells) if args.only in cell.name]
    results = Results("first-call", summarise, args.out)
    print(json.dumps(run_all(wanted, results, args.keep, args.jobs, args.limit_s), indent=1))


if __name__ == "__main__":
    main()
