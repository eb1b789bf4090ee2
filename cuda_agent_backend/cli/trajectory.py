"""``cuda-agent trajectory``: which episodes there were, and one of them as a page."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any

from cuda_agent_backend.cli.result import CliError, Result
from cuda_agent_backend.settings import Settings
from cuda_agent_backend.tools import tables

SHOWN = 50


def add_parsers(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    """The subcommands of ``trajectory``."""
    commands = parser.add_subparsers(dest="trajectory_command", required=True, metavar="COMMAND")
    listed = commands.add_parser("list", parents=[common], help="every episode, the latest first")
    listed.add_argument("--all", action="store_true", help=f"more than the latest {SHOWN}")
    show = commands.add_parser("show", parents=[common], help="one episode as a readable page")
    show.add_argument(
        "file", help="a trajectory file, or the beginning of the name of a listed one"
    )
    show.add_argument("--html", type=Path, metavar="OUT", help="write one self-contained HTML file")


def run(args: argparse.Namespace, settings: Settings) -> Result:
    """Carry out one subcommand; the exit status, and what it found for ``--json``. May raise `CliError`."""
    from cuda_agent_backend.agent.trajectories.store import folder_beside

    folder = folder_beside(args.cache_dir or settings.cache_dir)
    return _list(folder, args.all) if args.trajectory_command == "list" else _show(folder, args)


def _list(folder: Path, everything: bool) -> Result:
    from cuda_agent_backend.agent.story.story import printable
    from cuda_agent_backend.agent.trajectories.events import Unreadable
    from cuda_agent_backend.agent.trajectories.store import summaries

    rows: list[tuple[str, ...]] = []
    found: list[dict[str, Any]] = []
    for number, (path, summary) in enumerate(summaries(folder)):
        if number >= SHOWN and not everything:
            break
        if isinstance(summary, Unreadable):
            rows.append((path.stem, "-", "-", "unreadable", str(summary), "-"))
            found.append({"file": str(path), "unreadable": str(summary)})
            continue
        header, end = summary.header, summary.end
        stop = "unfinished" if end is None else end.stop
        started = datetime.datetime.fromtimestamp(header.started)
        why, turns = (end.reason, str(end.turns)) if end else ("", "-")
        rows.append((path.stem, header.target, header.policy, stop, tables.short(why, 80), turns))
        found.append(
            {
                "file": str(path),
                "task": header.task_digest,
                "policy": header.policy,
                "started": started.isoformat(),
                "stop": stop,
                "reward": end and end.reward,
                "turns": end and end.turns,
                "bytes": summary.size,
            }
        )
    header_row = ("file", "target", "policy", "outcome", "reason", "turns")
    shown = [tuple(printable(cell) for cell in row) for row in rows]
    tables.console().print(tables.plain_table(header_row, shown, f"{folder}: {len(rows)} episodes"))
    return 0, {"folder": str(folder), "episodes": found}


def _show(folder: Path, args: argparse.Namespace) -> Result:
    from cuda_agent_backend.agent.story.story import tell
    from cuda_agent_backend.agent.trajectories.events import Unreadable
    from cuda_agent_backend.agent.trajectories.file import read

    path = _named(folder, args.file)
    found = read(path)
    if isinstance(found, Unreadable):
        remedy = f"; {found.remedy}" if found.remedy else ""
        raise CliError(f"{path}: {found}{remedy}")
    story = tell(found)
    if args.html:
        from cuda_agent_backend.agent.story.html import page

        args.html.parent.mkdir(parents=True, exist_ok=True)
        args.html.write_bytes(page(story))
        tables.console().print(f"wrote {args.html}", markup=False)
    else:
        from cuda_agent_backend.agent.story.terminal import pages

        out = tables.console()
        for part in pages(story):
            out.print(part)
    facts: dict[str, Any] = {
        "file": str(path),
        "outcome": story.outcome,
        "turns": len(story.chapters),
        "speedups": [[p.turn, p.name, p.speedup, p.status] for p in story.points],
    }
    return 0, facts


def _named(folder: Path, name: str) -> Path:
    """The file of a path, or of the beginning of a listed file's name. Raises `CliError` for none or several."""
    if Path(name).is_file():
        return Path(name)
    found = [path for path in folder.glob("*.jsonl") if path.name.startswith(name)]
    if len(found) != 1:
        raise CliError(
            f"{len(found)} trajectories are called {name!r}...; see `cuda-agent trajectory list`"
        )
    return found[0]
