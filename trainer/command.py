"""The command ``cuda-agent-train``: makes sets of tasks, trains policies, and serves their environment.

Exit status: 0 done; 1 done, and fewer tasks than wanted came of it, or episodes of an evaluation are left; 2 wrong
arguments or input; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.arena import command as arena
from trainer.arguments import part
from trainer.errors import CommandError
from trainer.integrations import command as integrations
from trainer.stages import command as stages
from trainer.stages import contest_command
from trainer.synthesis.compose.task import Composer, NotComposed, Wishes
from trainer.synthesis.dataset.journal import OtherRun
from trainer.synthesis.machine import Machine, NoDevice
from trainer.world import command as world

FEWER, USAGE, INTERRUPTED = 1, 2, 130
SAMPLE = 200
"""Tasks that a dry run composes, at most."""
SECONDS_PER_TASK = {"cuda": 15.0, "cpu": 8.0}
"""Of one job, for each task kept: what a dry run reckons with."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    args = parser().parse_args(argv)
    try:
        status: int = COMMANDS[args.command](args)
        return status
    except (CommandError, OSError) as error:
        print(f"cuda-agent-train: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("cuda-agent-train: interrupted; what is done is kept", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """All arguments of all commands."""
    top = argparse.ArgumentParser(
        prog="cuda-agent-train",
        description="Makes tasks for policies that write kernels, and trains such policies.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    common.add_argument("--out", type=Path, required=True, metavar="DIR", help="where it goes")
    common.add_argument("--jobs", type=_whole, metavar="J", help="tasks side by side")
    common.add_argument(
        "--limit-s", type=float, default=180.0, metavar="T", help="seconds for one task"
    )
    common.add_argument(
        "--time-limit", type=float, default=math.inf, metavar="S", help="end after so many seconds"
    )
    common.add_argument(
        "--exclude",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder of programs that no task may be like; may be given several times",
    )
    synth = commands.add_parser("synth", parents=[common], help="make a set of tasks")
    synth.add_argument("--count", type=_whole, required=True, metavar="N", help="tasks wanted")
    synth.add_argument("--seed", type=int, default=0, metavar="S")
    synth.add_argument(
        "--part", type=part, default=(1, 1), metavar="K/N", help="one of N pieces of the set"
    )
    synth.add_argument("--dry-run", action="store_true", help="say what it would make")
    synth.add_argument("--composer", choices=("rules", "openai"), default="rules")
    synth.add_argument("--model", default="", help="of the composer openai")
    synth.add_argument("--base-url", default="", help="of the composer openai")
    check = commands.add_parser(
        "check-set", parents=[common], help="run the filters over a set of others"
    )
    check.add_argument(
        "file", type=Path, metavar="FILE", help="Parquet with ops, data_source, code"
    )
    check.add_argument("--first", type=_whole, metavar="N", help="so many rows only")
    merge = commands.add_parser("merge", help="make one set out of its pieces")
    merge.add_argument("pieces", type=Path, nargs="+", metavar="DIR", help="the pieces' folders")
    merge.add_argument("--count", type=_whole, required=True, metavar="N", help="tasks wanted")
    merge.add_argument("--out", type=Path, required=True, metavar="FILE", help="a Parquet file")
    merge.add_argument("--exclude", type=Path, action="append", default=[], metavar="DIR")
    world.add_arguments(commands, _whole)
    arena.add_arguments(commands, _whole)
    stages.add_arguments(commands)
    contest_command.add_arguments(commands, _whole)
    integrations.add_arguments(commands, _whole)
    return top


def _whole(text: str) -> int:
    value = int(text) if text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def _synth(args: argparse.Namespace) -> int:
    from trainer.synthesis import run

    wishes = Wishes.of(args.device)
    composer = _composer(args, wishes)
    if args.dry_run:
        _dry_run(args, composer)
        return 0
    _confined_or_trusted(composer.trusted)
    machine = _machine(args.device, writes=args.part[1] == 1)
    jobs = args.jobs or run.jobs_of(args.device, machine)
    settings = run.Settings(
        args.out,
        args.count,
        args.seed,
        jobs,
        args.limit_s,
        wishes,
        _programs(args),
        run.short_name(args.device, machine),
        args.part,
        args.time_limit,
    )
    with _progress(settings.share) as shown:
        found = run.run(settings, composer, machine, lambda t: shown(len(t.kept), t.looked_at))
    if isinstance(found, OtherRun):
        raise CommandError(found.reason)
    _say(found.report(), settings.file if args.part[1] == 1 else settings.out)
    return 0 if len(found.kept) >= settings.share else FEWER


def _check_set(args: argparse.Namespace) -> int:
    from trainer.synthesis import check_set, run

    _confined_or_trusted(False)
    rows = check_set.rows_of(args.file)
    if isinstance(rows, str):
        raise CommandError(rows)
    rows = rows[: args.first] if args.first else rows
    machine = _machine(args.device)
    jobs = args.jobs or run.jobs_of(args.device, machine)
    settings = run.Settings(
        args.out,
        len(rows),
        0,
        jobs,
        args.limit_s,
        Wishes.of(args.device),
        _programs(args),
        run.short_name(args.device, machine),
        seconds=args.time_limit,
    )
    with _progress(len(rows)) as shown:
        found = check_set.check(settings, rows, machine, lambda t: shown(t.looked_at, t.looked_at))
    if isinstance(found, OtherRun):
        raise CommandError(found.reason)
    _say(found.report(), settings.file)
    return 0


def _merge(args: argparse.Namespace) -> int:
    from trainer.synthesis import merge

    found = merge.merge(args.pieces, args.count, _programs(args))
    if isinstance(found, merge.NotMerged):
        raise CommandError(found.reason)
    if not found.rows:
        raise CommandError(f"no task: {found.lacking}")
    merge.write(found, args.out)
    _say(found.report, args.out)
    if found.lacking:
        print(f"{args.count - len(found.rows)} tasks are lacking: {found.lacking}")
    return FEWER if found.lacking else 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "synth": _synth,
    "check-set": _check_set,
    "merge": _merge,
    "measure": world.measure,
    "pack": world.pack,
    "arena": arena.arena,
    "tables": arena.tables,
    "contest": contest_command.contest,
    **dict.fromkeys(stages.HELP, stages.run),
    "plot": stages.plot,
    "serve-env": integrations.serve,
}


def _composer(args: argparse.Namespace, wishes: Wishes) -> Composer:
    if args.composer == "rules":
        from trainer.synthesis.compose.sized import SizedComposer

        return SizedComposer(wishes)
    from trainer.synthesis.compose.chat import ChatComposer, policy_of

    policy = policy_of(args.model, args.base_url)
    if isinstance(policy, str):
        raise CommandError(policy)
    return ChatComposer(policy, wishes)


def _confined_or_trusted(trusted: bool) -> None:
    """Code that is not ours runs only where the machine can confine it."""
    if trusted:
        return
    from sandbox.isolation.confine import offered

    reason = offered().why_no_untrusted_code
    if reason is not None:
        raise CommandError(reason)


def _machine(device: str, writes: bool = True) -> Machine:
    """The device, looked at; and that the set can be written at the end. A piece has no Parquet file."""
    from importlib.util import find_spec

    from trainer.synthesis.machine import look

    if writes and find_spec("pyarrow") is None:
        raise CommandError('pyarrow is not installed: pip install "cuda_agent[train]"')
    found = look(device)
    if isinstance(found, NoDevice):
        raise CommandError(found.reason)
    return found


def _programs(args: argparse.Namespace) -> Any:
    from trainer.synthesis.filters.similarity import programs_in

    for folder in args.exclude:
        if not folder.is_dir():
            raise CommandError(f"--exclude: {folder} is no folder")
    return programs_in(args.exclude)


def _dry_run(args: argparse.Namespace, composer: Composer) -> None:
    from collections import Counter

    if args.composer != "rules":
        raise CommandError("--dry-run needs --composer rules, which asks nobody")
    first = args.seed * 1_000_000
    made = [composer.compose(first + n, 0) for n in range(min(SAMPLE, args.count))]
    tasks = [task for task in made if not isinstance(task, NotComposed)]
    lengths = Counter(len(task.ops) for task in tasks)
    families = Counter(family for task in tasks for family in task.families)
    total = max(1, len(tasks))
    print(f"{len(tasks)} of {len(made)} seed numbers tried give a task")
    print("operators: " + ", ".join(f"{n}: {c / total:.0%}" for n, c in sorted(lengths.items())))
    print(
        f"families: {len(families)}, the largest in {max(families.values(), default=0) / total:.0%}"
    )
    hours = args.count * SECONDS_PER_TASK[args.device] / (args.jobs or 1) / 3600
    print(f"about {hours:.1f} hours with {args.jobs or 1} at a time")


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int, int], None]]:
    from rich import progress

    columns = (
        progress.TextColumn("{task.completed} of {task.total} tasks"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[looked]} looked at"),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns) as bar:
        task = bar.add_task("tasks", total=total, looked=0)
        yield lambda done, looked: bar.update(task, completed=done, looked=looked)


def _say(report: dict[str, Any], file: Path) -> None:
    print(f"{report['kept']} of {report['looked_at']} tasks are in {file}")
    for name, count in report["dropped"].items():
        print(f"  {count:6d} dropped: {name}")
    print(f"{report['cpu_s_a_task']} seconds of processors for each task")


if __name__ == "__main__":
    sys.exit(main())
