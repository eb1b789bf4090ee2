"""Whole models on cuda_agent against Inductor: ``cpu-models.json``, on cuda ``h200-models.json`` or the like.

On cpu the eight models of `examples/models.py`, in inference; on cuda those of `benchmarks/whole_models`, at sizes that
people run, in bfloat16 and float32, inference and a training step with its optimizer, against Inductor as it starts and
in mode max-autotune. Every cell is run by fresh processes. The file is written after each, and the next run goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.store import (
    ROOT,
    Facts,
    InUse,
    Results,
    arguments,
    brief,
    commit,
    only_one,
    same_machine,
    short_name,
    with_own_facts,
)
from benchmarks.whole_models.cells import (
    AUTOTUNE,
    CPU_KINDS,
    DEFAULT,
    DTYPES,
    KINDS,
    MODES,
    Cell,
    cells,
    part_of,
)
from benchmarks.whole_models.figures import summarise
from benchmarks.whole_models.process import Cut, Lost, Plan
from benchmarks.whole_models.race import file_name, run
from benchmarks.whole_models.registry import SUBJECTS
from cuda_agent_backend.bench.run_times import process_began
from cuda_agent_backend.json_values import write_json
from sandbox.compile.toolchain import Missing
from sandbox.launcher.native import find_or_build

BUDGETS = {"cpu": 240.0, "cuda": 180.0}
"""Seconds of search per graph. A graph of 12 to 32 layers takes tens of seconds to be measured alone, and without that
measurement none of its kernels is used."""
SECONDS = {"cpu": 40.0, "cuda": 15.0}
SHORTEST_S = 240.0
"""What a cell is taken to need where none of its kind and mode was measured yet."""
MARGIN = 1.15
"""Of the longest one: with less time left none is begun but a run's first."""
CUT = "cut: the time was up"
ENDING_S = 20.0
"""Of a run's time, what ending the processes of a cell that is cut may take."""


@dataclass(frozen=True)
class Wanted:
    """What a run is to do, and within which time. limit_s: from its start; a cell under way then is cut.

    started: by `time.monotonic`, None for when cells begin.
    """

    cells: Sequence[Cell]
    limit_s: float
    keep: bool
    started: float | None = None

    @property
    def deadline(self) -> float:
        """When a cell is cut, by `time.monotonic`."""
        return (time.monotonic() if self.started is None else self.started) + self.limit_s


def needs_s(cell: Cell, samples: Mapping[str, Facts], least_s: float) -> float:
    """Seconds without which a cell is not begun unless it is a run's first: from what others of its kind and mode took,
    else from least_s."""
    took = [
        facts["wall_seconds"]
        for facts in samples.values()
        if (of := facts.get("cell")) and (of["kind"], of["mode"]) == (cell.kind, cell.mode)
    ]
    return MARGIN * max(took, default=least_s)


def to_do(cells: Sequence[Cell], samples: Mapping[str, Facts]) -> list[Cell]:
    """Cells without a result: first what was cut, whose search goes on, then what was never tried, and last what
    failed, or was cut more than once, as it may be so again; the more often, the later, so that each has its turn."""
    missing = [cell for cell in cells if "failed" in samples.get(cell.name, {"failed": ""})]
    return sorted(missing, key=lambda cell: _turn(samples.get(cell.name)))


def _turn(facts: Facts | None) -> int:
    if facts is None:
        return 1
    tries = int(facts.get("tries", 1))
    return 0 if tries == 1 and facts["failed"] == CUT else 1 + tries


def collect(
    wanted: Wanted, results: Results, race: Callable[[Cell, float], Facts], least_s: float
) -> dict[str, Facts]:
    """Run the cells that have no result, writing after each. race: gets the moment when it is cut.

    What failed or was cut is kept with its reason, and run again by the next run: it may have been the machine's fault.
    What is left out has its reason in the file. least_s: see `needs_s`; cells for which too little time is left are
    passed by. The first is begun in any case: where cells take nearly all of a run's time, none would be otherwise, and
    the search of one that is cut goes on in the next run.
    """
    samples = results.done(wanted.keep)
    deadline, waiting, first = wanted.deadline, 0, True
    for cell in to_do(wanted.cells, samples):
        begin, cut = time.monotonic(), False
        tries = samples.get(cell.name, {}).get("tries", 0) + 1
        needed = 0.0 if first else needs_s(cell, samples, least_s)
        if begin + needed > deadline and not cell.left_out:
            waiting += 1
            continue
        first = first and bool(cell.left_out)
        try:
            facts = {"left_out": cell.left_out} if cell.left_out else race(cell, deadline)
        except Cut:
            cut = True
            facts = {"failed": CUT, "memory_full": False, "tries": tries}
        except Lost as lost:
            facts = {"failed": str(lost), "memory_full": lost.full, "tries": tries}
        seconds = round(time.monotonic() - begin, 1)
        samples[cell.name] = {**facts, "commit": commit(), "wall_seconds": seconds}
        results.write(samples)
        print(f"{results.name} {cell.name}: {brief(facts)} ({seconds:.0f} s)", flush=True)
        if cut:
            break
    if waiting:
        print(f"{results.name}: too little time for {waiting} cells; run it again to go on")
    return samples


def merge(files: Sequence[Path], results: Results) -> dict[str, Facts]:
    """One file of those of several parts, a result rather than a failure. Raises ValueError where machines differ."""
    contents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    head = {name: contents[0][name] for name in ("machine", "versions", "commit")}
    if not all(same_machine(content["machine"], head["machine"]) for content in contents):
        raise ValueError("the files are of different machines")
    samples: dict[str, Facts] = {}
    for content in contents:
        own = with_own_facts(content["samples"], content["machine"], head["machine"])
        for name, facts in own.items():
            if name not in samples or "failed" in samples[name]:
                samples[name] = facts
    write_json(
        results.path, {**head, **results.head, "samples": samples, "summary": summarise(samples)}
    )
    return samples


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    found = arguments(__doc__, only="cells whose name has all of these words")
    found.add_argument(
        "--part", default="1/1", help="K/N: the K-th of N parts, with a file of its own"
    )
    found.add_argument(
        "--time-limit",
        type=float,
        dest="limit",
        help="the same as --limit; a cell is cut by it too, all included since the command began",
    )
    found.add_argument("--kinds", nargs="+", choices=KINDS, help="default: both; inference on cpu")
    found.add_argument(
        "--modes", nargs="+", choices=MODES, help="default: as it starts; on cuda max-autotune too"
    )
    found.add_argument("--dtypes", nargs="+", choices=DTYPES["cuda"], help="default: all of them")
    found.add_argument("--budget", type=float, help="seconds of search per graph")
    found.add_argument("--seconds", type=float, help="of timing per cell")
    found.add_argument("--toy", action="store_true", help="tiny models: a trial of the machinery")
    found.add_argument("--list", action="store_true", help="say which cells there are")
    found.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="join parts' files")
    found.add_argument("--build-dir", type=Path, default=ROOT / "build" / "benchmarks")
    return found


def wanted_cells(args: argparse.Namespace) -> list[Cell]:
    """The cells that the arguments ask for. Raises ValueError on a wrong part."""
    target = args.target
    kinds = args.kinds or (CPU_KINDS if target == "cpu" else KINDS)
    modes = args.modes or ((DEFAULT,) if target == "cpu" else (DEFAULT, AUTOTUNE))
    dtypes = args.dtypes or DTYPES[target]
    every = cells(list(SUBJECTS[target].values()), target, kinds, modes, dtypes)
    return part_of([cell for cell in every if cell.has(args.only)], args.part)


def wanted_of(args: argparse.Namespace, found: Sequence[Cell], began: float) -> Wanted:
    """What is run. began: when this process did, by `time.monotonic`: whoever ends it counts from then."""
    return Wanted(found, args.limit - ENDING_S, args.keep, began)


def name_of(args: argparse.Namespace, gpu: str) -> str:
    """The stem of the result file, by the GPU's name; toys and parts have their own."""
    part = "" if args.part == "1/1" else "-" + args.part.replace("/", "of")
    of = "cpu" if args.target == "cpu" else short_name(gpu)
    return f"{of}-models{'-toy' if args.toy else ''}{part}"


def target_of(files: Sequence[Path]) -> str:
    """What the cells of these files ran on. Raises ValueError where none says so, or one says another than others."""
    found: set[str] = set()
    for file in files:
        content = json.loads(file.read_text(encoding="utf-8"))
        measured = [facts["cell"] for facts in content["samples"].values() if "cell" in facts]
        # The file of an earlier version says it in cells alone, and one that failed does not.
        found |= {str(one["target"]) for one in (content, *measured) if "target" in one}
    if not found:
        raise ValueError("no file says what its cells ran on; they are not joined")
    if len(found) > 1:
        both = " and ".join(sorted(found))
        raise ValueError(f"the files have cells that ran on {both}; they are not joined")
    return found.pop()


def gpu_of(args: argparse.Namespace) -> str:
    """The GPU that was measured on, or is to be; "" on cpu and where there is none."""
    if args.target == "cpu":
        return ""
    if args.merge:
        first = json.loads(args.merge[0].read_text(encoding="utf-8"))
        return str(first["machine"].get("gpu", ""))
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""


def results_of(args: argparse.Namespace) -> Results:
    """The file that is written."""
    name = name_of(args, gpu_of(args))
    return Results(name, summarise, args.folder, {"target": args.target})


def build_operators(folder: Path) -> None:
    """Build the library of operators, so that no cell's first call waits for it."""
    found = find_or_build(folder)
    if isinstance(found, Missing):
        print(f"kernels are called through Python: {found.reason}; {found.remedy}", flush=True)


def main() -> int:
    """Run the cells that are not done, or join files."""
    args = parser().parse_args()
    try:
        if args.merge:
            args.target = target_of(args.merge)
            print(json.dumps(summarise(merge(args.merge, results_of(args))), indent=1))
            return 0
        found = wanted_cells(args)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if args.list:
        print("\n".join(cell.name for cell in found))
        return 0
    results = results_of(args)
    build = (args.build_dir / results.name).absolute()
    try:
        with only_one(results.path, build):
            samples = run_cells(args, found, results, build)
    except InUse as error:
        print(f"{error}; --part, or --folder and --build-dir, give each its own", file=sys.stderr)
        return 2
    print(json.dumps(summarise(samples), indent=1))
    return 0


def run_cells(
    args: argparse.Namespace, found: Sequence[Cell], results: Results, build: Path
) -> dict[str, Facts]:
    """Run the cells that are not done; all samples there are then. build: for caches and logs."""
    budget = BUDGETS[args.target] if args.budget is None else args.budget
    seconds = SECONDS[args.target] if args.seconds is None else args.seconds
    native = (args.build_dir / "native").absolute()
    build_operators(native)
    # What another commit found or computed is not to stand for this one's.
    shared = build / "kept" / commit()

    def race(cell: Cell, deadline: float) -> Facts:
        kept = shared / file_name(cell.model, cell.dtype, cell.kind)
        folder = build / file_name(cell.name)
        return run(cell, Plan(folder, kept, native, budget, seconds, deadline, args.toy))

    wanted = wanted_of(args, found, process_began())
    return collect(wanted, results, race, least_s=0.0 if args.toy else SHORTEST_S)


if __name__ == "__main__":
    sys.exit(main())
