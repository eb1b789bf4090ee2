"""``cuda-agent-train measure`` and ``pack``."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.arguments import part
from trainer.errors import CommandError
from trainer.world.rows import Table


def add_arguments(commands: Any, whole: Any) -> None:
    """The commands' arguments. whole: a number of 1 or above."""
    measure = commands.add_parser("measure", help="time schedules of tasks' regions for tables")
    measure.add_argument(
        "tasks",
        type=Path,
        nargs="+",
        metavar="TASKS",
        help="a set (.parquet), task files or folders, regions (.jsonl, .json)",
    )
    measure.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    measure.add_argument("--out", type=Path, required=True, metavar="DIR", help="where it goes")
    measure.add_argument(
        "--per-task", type=int, default=64, metavar="N", help="schedules a table; 0: all"
    )
    measure.add_argument(
        "--whole",
        type=int,
        default=0,
        metavar="N",
        help="all schedules of every N-th region; 0: of none",
    )
    measure.add_argument("--jobs", type=whole, metavar="J", help="compilers side by side")
    measure.add_argument("--part", type=part, default=(1, 1), metavar="K/N")
    measure.add_argument(
        "--time-limit", type=float, default=float("inf"), metavar="S", help="seconds"
    )
    measure.add_argument(
        "--known",
        type=Path,
        nargs="+",
        default=[],
        metavar="TABLES",
        help="tables that are there already and not measured again; skipped.jsonl of other runs",
    )
    pack = commands.add_parser("pack", help="put tables into one file")
    pack.add_argument("tables", type=Path, nargs="+", metavar="TABLES")
    pack.add_argument("--out", type=Path, required=True, metavar="FILE")


def measure(args: argparse.Namespace) -> int:
    """Run it; the exit status."""
    from importlib.util import find_spec

    from trainer.world.sources import MOST_BYTES, NoTasks, part_of, sources

    if find_spec("pyarrow") is None:  # the first table would say so, after minutes
        raise CommandError('pyarrow is not installed: pip install "cuda_agent[train]"')
    if find_spec("sandbox._launcher") is None:  # nothing could be loaded, and all would be in vain
        raise CommandError(
            "the launcher is not built here: pip install the project, or setup.py build_ext"
        )
    found = sources(args.tasks, MOST_BYTES)
    if isinstance(found, NoTasks):
        raise CommandError(found.reason)
    if args.per_task < 0:
        raise CommandError("--per-task is a number of schedules, or 0 for all")
    if args.whole < 0:
        raise CommandError("--whole is a number of regions, or 0 for none")
    wanted = part_of(found, *args.part)
    with _run(args) as run:
        progress = run.measure(wanted, _tell)
    print(
        f"{progress.tables} new tables with {progress.rows} schedules in {args.out}; "
        f"{progress.known} were there"
    )
    for reason, count in progress.skipped.most_common():
        print(f"  {count:6d} regions without: {reason}")
    return 0


@contextlib.contextmanager
def _run(args: argparse.Namespace) -> Iterator[Any]:
    import torch

    from cuda_agent_backend.runtime.machine import arch_of
    from cuda_agent_backend.settings import Settings
    from sandbox import scratch
    from sandbox.judge import Judge
    from trainer.synthesis.probe.client import lock_of
    from trainer.world.ahead import Deadline
    from trainer.world.judging import EFFORTS, judge_settings
    from trainer.world.measure import Here, MeasureSettings, Run, jobs_here

    deadline = Deadline(args.time_limit)  # starting the judge counts
    tables, hopeless = _known(args.known)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise CommandError("torch sees no CUDA device")
    settings, arch = Settings.from_environment(), arch_of(args.device)
    lock = settings.device_lock or lock_of(args.out, args.device)
    with (
        scratch.folder("measure") as folder,
        Judge(
            judge_settings(args.device, folder, settings.native_dir, arch, lock, deadline)
        ) as judge,
    ):
        wanted = MeasureSettings(
            args.out,
            args.device,
            arch,
            args.per_task,
            args.jobs or jobs_here(args.device),
            known=frozenset(table.id for table in tables),
            begun=frozenset(table.source for table in tables),
            hopeless=hopeless,
            whole=args.whole,
            lock=lock,
            effort=EFFORTS[args.device],
            deadline=deadline,
        )
        yield Run(wanted, judge, Here.of(args.device))


def _known(paths: Sequence[Path]) -> tuple[list[Table], frozenset[str]]:
    """Tables, and ids of regions of which there will be none, of files (.jsonl) where runs note these."""
    from trainer.world import skipped

    notes = [path for path in paths if path.suffix == ".jsonl"]
    for path in notes:
        if not path.exists():
            raise CommandError(f"there is no {path}")
    tables = _read([path for path in paths if path not in notes])
    return tables, frozenset(id for path in notes for id in skipped.known(path))


def _read(paths: Sequence[Path]) -> list[Table]:
    from trainer.world.files import read

    try:
        return read(paths)
    except (OSError, ValueError) as error:
        raise CommandError(str(error)) from None


def _tell(table: Table) -> None:
    right = sum(row.works for row in table.rows)
    seconds = " ".join(f"{name} {value:.1f}" for name, value in table.steps.items())
    print(
        f"{table.source} [{table.family}] {right} of {len(table.rows)} work, best {table.best:.2f}x; "
        f"seconds: {seconds}",
        flush=True,
    )


def pack(args: argparse.Namespace) -> int:
    """Read tables, write one file."""
    from trainer.world.files import write

    found = _read(args.tables)
    if not found:
        raise CommandError("there are no tables")
    write(found, args.out)
    rows = sum(len(table.rows) for table in found)
    size = args.out.stat().st_size / 1e6
    print(
        f"{len(found)} tables with {rows} schedules in {args.out} ({size:.1f} MB)", file=sys.stdout
    )
    return 0
