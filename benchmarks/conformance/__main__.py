"""The conformance run: torch's operator database on forced kernels.

    python -m benchmarks.conformance --target cpu --jobs 8 --limit-s 600 --out DIR

Rows are appended to DIR/cases.jsonl as they come, and DIR/summary.json is written at the end. A second call with the
same DIR, target, commit and machine goes on. ``python -m benchmarks.conformance.table DIR...`` makes the result file.
``--case NAME`` runs one case in this process and says all about it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.conformance.cases import ROUNDS, Case, Cell, batches_of, part
from benchmarks.conformance.pool import Pool, Settings
from benchmarks.conformance.rows import SUMMARY, Rows
from benchmarks.conformance.summary import bad, summarise
from benchmarks.store import commit, machine, versions
from cuda_agent_backend.json_values import write_json

CASE_S = {"cpu": 120.0, "cuda": 300.0}  # nvcc takes its time


def main() -> None:
    """Entry point; the status is 1 where anything is wrong."""
    args = _arguments()
    if args.case:
        _one(args)
        return
    identity = {
        "target": args.target, "commit": commit(), "machine": _lasting(machine()),
        "versions": versions(), "rounds": args.rounds, "schedules": args.schedules,
    }  # fmt: skip
    rows = Rows(args.out, identity)
    planned = _planned(args)
    batches = _missing(planned, rows)
    total = sum(map(len, batches))
    print(f"{len(rows.rows)} cases done, {total} to do, {args.jobs} at a time", flush=True)
    finished = _run(args, rows, batches)
    summary = {
        **summarise(rows.rows.values()),
        "planned": sum(map(len, planned)),
        "finished": finished,
    }
    write_json(args.out / SUMMARY, summary)
    print(json.dumps({k: v for k, v in summary.items() if k != "why_left"}, indent=1))
    for row in bad(rows.rows.values())[:40]:
        print(f"{row['outcome']}: {row['case']}: {row['why'][:200]}")
    sys.exit(1 if bad(rows.rows.values()) else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="end after so long")
    parser.add_argument(
        "--case-s", type=float, help="seconds for one case: 120 on cpu, 300 on cuda"
    )
    parser.add_argument("--out", type=Path, default=Path("build") / "conformance")
    parser.add_argument("--part", default="1/1", help="K/N: the K-th of N parts of the operators")
    parser.add_argument("--only", default="", help="operators, by commas")
    parser.add_argument("--dtypes", default="", help="by commas")
    parser.add_argument(
        "--rounds", type=int, default=len(ROUNDS), help="cases of each operator in float32"
    )
    parser.add_argument("--schedules", type=int, default=2, help="forced for each task")
    parser.add_argument("--case", default="", help="run this one here")
    return parser.parse_args()


def _cells(args: argparse.Namespace) -> list[Cell]:
    from benchmarks.conformance.database import DTYPES, dtypes_of, operators

    which, _, of = args.part.partition("/")
    names = part(list(operators()), int(which), int(of))
    if args.only:
        wanted = args.only.split(",")
        names = [name for name in names if name in wanted or name.split(".")[0] in wanted]
    kinds = args.dtypes.split(",") if args.dtypes else DTYPES
    return [
        Cell(name, dtype)
        for name in names
        for dtype in dtypes_of(name, args.target)
        if dtype in kinds
    ]


def _planned(args: argparse.Namespace) -> list[list[Case]]:
    """All cases of the run, in batches."""
    from benchmarks.conformance.database import DTYPES

    return batches_of(_cells(args), args.rounds, DTYPES)


def _missing(planned: list[list[Case]], rows: Rows) -> list[list[str]]:
    """The names of the cases that are not done, in batches."""
    found = [[case.name for case in batch if case.name not in rows.rows] for batch in planned]
    return [names for names in found if names]


def _run(args: argparse.Namespace, rows: Rows, batches: list[list[str]]) -> bool:
    started, told = time.monotonic(), time.monotonic()

    def say(row: dict[str, Any]) -> None:
        nonlocal told
        rows.add(row)
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(f"{told - started:.0f} s: {len(rows.rows)} cases", flush=True)

    settings = Settings(
        args.target, args.schedules, args.jobs, args.limit_s,
        args.case_s or CASE_S[args.target],
        environments=_devices(args.target),
    )  # fmt: skip
    return Pool(settings, say).run(batches)


def _devices(target: str) -> list[dict[str, str]]:
    """Workers take turns on the GPUs."""
    if target == "cpu":
        return [{"CUDA_VISIBLE_DEVICES": ""}]
    import torch

    return [
        {"CUDA_VISIBLE_DEVICES": name}
        for name in visible(os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count())
    ]


def visible(said: str | None, count: int) -> list[str]:
    """The names of so many GPUs: those by which this process was told of them, where it was. said: by
    CUDA_VISIBLE_DEVICES. Raises SystemExit without any."""
    if not count:
        raise SystemExit("torch sees no CUDA device; --target cpu needs none")
    if said is None:
        return [str(number) for number in range(count)]
    return [name.strip() for name in said.split(",")][:count]


def _lasting(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "load"}


def _one(args: argparse.Namespace) -> None:
    from benchmarks.conformance.case_run import quiet, run_case

    quiet()
    with tempfile.TemporaryDirectory() as name:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(name) / "inductor")

        def stage(text: str) -> None:
            print(f"... {text}", flush=True)

        row = run_case(Case.named(args.case), args.target, args.schedules, Path(name), stage)
    print(json.dumps(asdict(row), indent=1))


if __name__ == "__main__":
    main()
