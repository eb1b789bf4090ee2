"""``cuda-agent-train arena`` and ``tables``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import CommandError

if TYPE_CHECKING:
    from trainer.world.rows import Table


def add_arguments(commands: Any, whole: Any) -> None:
    """The command's arguments. whole: a number of 1 or above."""
    arena = commands.add_parser("arena", help="compare rivals on tables")
    arena.add_argument("tables", type=Path, nargs="+", metavar="TABLES", help="files or folders")
    arena.add_argument("--out", type=Path, required=True, metavar="DIR", help="where it goes")
    arena.add_argument("--rivals", default="", metavar="A,B", help="all by default")
    arena.add_argument("--splits", default="family,shape,device,dtype", metavar="A,B")
    arena.add_argument("--seeds", type=whole, default=5, metavar="N")
    arena.add_argument("--jobs", type=whole, default=1, metavar="J", help="processes")
    about = commands.add_parser("tables", help="say what tables hold, and whether timings repeat")
    about.add_argument("tables", type=Path, nargs="+", metavar="TABLES", help="files or folders")
    about.add_argument(
        "--again",
        type=Path,
        nargs="+",
        default=[],
        metavar="TABLES",
        help="the same regions, again",
    )
    about.add_argument("--out", type=Path, metavar="FILE", help="JSON")


def arena(args: argparse.Namespace) -> int:
    """Run it; the exit status."""
    from trainer.arena.progress import progress
    from trainer.arena.splits import SPLITS
    from trainer.arena.tournament import jobs_of, tournament
    from trainer.rivals.registry import CONTROLS, RIVALS, missing

    rivals = args.rivals.split(",") if args.rivals else [*RIVALS, *CONTROLS]
    splits = args.splits.split(",")
    if why := missing(rivals):
        raise CommandError(why)
    if unknown := [name for name in splits if name not in SPLITS]:
        raise CommandError(
            f"no split is called {', '.join(unknown)}; there are: {', '.join(SPLITS)}"
        )
    tables = _read(args.tables)
    jobs = jobs_of(tables, splits, rivals, args.seeds)
    if not jobs:
        raise CommandError(
            f"{len(tables)} tables are too few or too much alike for any of the splits"
        )
    with progress(len(jobs), "games") as tell:
        results = tournament(args.tables, tables, jobs, args.jobs, tell)
    print(written(results.to_json(tables), args.out))
    return 0


def written(found: dict[str, Any], out: Path) -> str:
    """The page of some figures, which is written into a folder with them and their plots."""
    from cuda_agent_backend.bench.provenance import versions
    from cuda_agent_backend.json_values import write_json
    from trainer.arena.report import page, plot

    found["versions"] = versions(("torch", "scikit-learn", "lightgbm", "numpy"))
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "arena.json", found)
    text = page(found)
    (out / "arena.md").write_text(text, encoding="utf-8")
    plot(found, out)
    return text


def tables(args: argparse.Namespace) -> int:
    """Say what tables hold; the exit status."""
    import json

    from cuda_agent_backend.json_values import write_json
    from trainer.arena.agreement import agreement, measured

    first = _read(args.tables)
    found = {"tables": measured(first)}
    if args.again:
        found["again"] = agreement(first, _read(args.again))
    print(json.dumps(found, indent=1))
    if args.out:
        write_json(args.out, found)
    return 0


def _read(paths: Sequence[Path]) -> list[Table]:
    """Tables of files and folders, at least one."""
    from trainer.world.files import read

    try:
        found = read(paths)
    except ValueError as error:
        raise CommandError(str(error)) from None
    if not found:
        raise CommandError("there are no tables")
    return found
