"""``cuda-agent bench``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent_backend.bench import run_times
from cuda_agent_backend.bench.children import Children, Failed
from cuda_agent_backend.bench.cores import cores_of
from cuda_agent_backend.bench.discovery import NoSuchPath, discover
from cuda_agent_backend.bench.figures import task_figures
from cuda_agent_backend.bench.holder import CannotHold, holding
from cuda_agent_backend.bench.request import DTYPES, FLOAT32, Request, Wishes
from cuda_agent_backend.cli import policy_arguments
from cuda_agent_backend.cli.result import CliError, Result
from cuda_agent_backend.settings import Settings
from cuda_agent_backend.sources import source_digest
from cuda_agent_backend.tools import tables

if TYPE_CHECKING:
    from cuda_agent_backend.bench.runner import Bench, Machine


def add_arguments(parser: argparse.ArgumentParser, seconds: Callable[[str], float]) -> None:
    """The arguments. seconds: what parses a number of seconds."""
    _add_subjects(parser)
    _add_limits(parser, seconds)
    policy_arguments.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs")
    parser.add_argument(
        "--max-autotune", action="store_true", help="also against Inductor's max-autotune"
    )
    parser.add_argument(
        "--again",
        nargs="?",
        const="all",
        default="",
        choices=("all", "failed"),
        help="do tasks again that are done: all, or those that failed",
    )


def _add_subjects(parser: argparse.ArgumentParser) -> None:
    """What is measured, on what, and where results go."""
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="task files, or folders of them"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/bench"), metavar="FOLDER", help="where results go"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of floating tensors")
    parser.add_argument(
        "--holds",
        type=count_of_bytes,
        default=0,
        metavar="BYTES",
        help="have another process hold so many of the GPU's all the while, such as 40e9",
    )
    parser.add_argument(
        "--float32",
        choices=tuple(FLOAT32),
        default="torch",
        help="how it is multiplied (torch: as torch does by default)",
    )


def _add_limits(parser: argparse.ArgumentParser, seconds: Callable[[str], float]) -> None:
    """How long is searched and measured, and how much of it at once."""
    parser.add_argument(
        "--budget", type=seconds, default=120.0, metavar="S", help="seconds of search per graph"
    )
    parser.add_argument(
        "--seconds", type=seconds, default=10.0, metavar="S", help="of timing per task"
    )
    parser.add_argument(
        "--rounds", type=positive, default=100, metavar="N", help="most rounds of timing per task"
    )
    parser.add_argument(
        "--limit",
        type=seconds,
        metavar="S",
        help="end a phase of a task after so many seconds, its waiting included: a search's kernels so far are then "
        "measured, and a measurement has timed out",
    )
    parser.add_argument(
        "--begin-within",
        type=seconds,
        default=math.inf,
        metavar="S",
        help="begin no task later than that after the command began: finish what was begun, and leave the rest to the "
        "next run",
    )
    parser.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="searches side by side (default: by cores and memory)",
    )
    parser.add_argument(
        "--part",
        type=part,
        default=(1, 1),
        metavar="K/N",
        help="of N parts of the tasks do the K-th only: one part for each GPU of a machine",
    )


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def count_of_bytes(text: str) -> int:
    """A whole number of bytes above 0, perhaps as 40e9."""
    try:
        size = int(float(text))
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes above 0")
    return size


def part(text: str) -> tuple[int, int]:
    """K of N parts, both from 1."""
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with K from 1 to N")
    return int(number), int(of)


def run(args: argparse.Namespace, settings: Settings) -> Result:
    """Run the tasks that are not done, and show all. Raises `CliError` where nothing can be run."""
    policy_arguments.check(args)
    wishes = wishes_of(args)
    if wishes.holds and wishes.target != "cuda":
        raise CliError("--holds is for a GPU's memory")
    try:
        with ended_as_by_an_interrupt(), holding(wishes.holds, wishes.target):
            return _run(args, settings, wishes)
    except CannotHold as error:
        raise CliError(str(error)) from error


@contextmanager
def ended_as_by_an_interrupt() -> Iterator[None]:
    """SIGTERM ends what is within as Ctrl-C does: with the table of what is done. It does so once."""

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # others get no signals
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(args: argparse.Namespace, settings: Settings, wishes: Wishes) -> Result:
    from cuda_agent_backend.bench import report
    from cuda_agent_backend.bench.runner import run as run_tasks

    found = discover(args.paths)
    if isinstance(found, NoSuchPath):
        raise CliError(found.reason)
    if not found.tasks and not found.refused:
        raise CliError("there is no Python file in these folders")
    found = found.part(*args.part)
    out = tables.console()
    for file in found.refused:
        out.print(f"{file.name}: refused: {file.reason}", markup=False)
    args.out.mkdir(parents=True, exist_ok=True)
    clock, children = run_times.RunClock(args.out), Children(args.out / "torch")
    try:
        machine = _machine(args, wishes, settings, children, len(found.tasks))
        bench, sources = plan(args, wishes, settings.native_dir, machine), source_digest()
        names = [task.name for task in found.tasks]
        book = report.Book(bench, machine, sources, found.refused, names)

        def tell(one: Mapping[str, Any]) -> None:
            clock.task_done(one["name"], bench.jobs)
            out.print(report.task_sentence(one), markup=False)
            book.add(one)
            book.write_along()

        try:
            run_tasks(bench, found.tasks, machine, sources, children, tell, book.add)
        finally:
            run_facts = book.write()
    finally:
        children.stop()
    show(run_facts, bench.out)
    return (0 if report.as_it_should_be(run_facts) else 1), run_facts


def _machine(
    args: argparse.Namespace, wishes: Wishes, settings: Settings, children: Children, tasks: int
) -> Machine:
    """What is known of the machine, found while the first searches get ready. Raises `CliError` without any."""
    from cuda_agent_backend.bench.runner import look_at_machine, ready_ahead

    work, ahead = args.out / "work", 0
    if wishes.target == "cuda":  # on cpu it would disturb what is timed
        ahead = ready_ahead(tasks, args.jobs, cores_of(wishes.target))
    children.make_ready("search", ahead, wishes.target, work)
    lock = settings.device_lock
    machine = look_at_machine(args.out, wishes, settings.native_dir, lock, children)
    if isinstance(machine, Failed):
        raise CliError(f"this machine cannot be measured: {machine.reason}\n{machine.log}")
    if ahead:
        children.prepare("search", _ahead(args, wishes, settings, machine), work)
    children.make_ready("measure", (ahead + 1) // 2, wishes.target, work)
    return machine


def _ahead(
    args: argparse.Namespace, wishes: Wishes, settings: Settings, machine: Machine
) -> Request:
    """What searches will be asked, as far as their processes can start for it."""
    return Request(
        file="",
        result="",
        cache_dir=str((args.out / "work" / "kernels").absolute()),
        native_dir=str(settings.native_dir.absolute()),
        device_lock=str(machine.device_lock.absolute()),
        wishes=wishes,
    )


def show(run_facts: Mapping[str, Any], folder: Path) -> None:
    """The tables, and the plots as far as they can be drawn."""
    from cuda_agent_backend.bench import report
    from cuda_agent_backend.bench.plots import NoPlots, draw

    figures = [task_figures(one) for one in run_facts["tasks"].values()]
    out = tables.console()
    out.print(report.task_table(figures))
    for figure in figures:
        if figure.reason:
            out.print(f"{figure.name}: {figure.reason}", markup=False)
    out.print(report.summary_table(run_facts["summary"]))
    drawn = draw(figures, folder / "plots")
    text = drawn.reason if isinstance(drawn, NoPlots) else f"{len(drawn)} plots"
    out.print(f"{folder / 'bench.json'}; {text}", markup=False)


def wishes_of(args: argparse.Namespace) -> Wishes:
    """What the arguments say of what is measured."""
    return Wishes(
        target=args.device or _target(),
        dtype=args.dtype,
        float32=args.float32,
        budget_s=args.budget,
        seconds=args.seconds,
        rounds=args.rounds,
        max_autotune=args.max_autotune,
        seed=args.seed,
        policy=policy_arguments.options(args),
        holds=args.holds,
    )


def plan(args: argparse.Namespace, wishes: Wishes, native_dir: Path, machine: Machine) -> Bench:
    """The run; the machine says what the arguments leave open."""
    from cuda_agent_backend.bench.runner import Bench, jobs_of, limit_of

    jobs = args.jobs or jobs_of(wishes.target, machine.facts, cores_of(wishes.target))
    return Bench(
        out=args.out,
        wishes=wishes,
        jobs=jobs,
        limit_s=args.limit or limit_of(args.budget, jobs),
        native_dir=native_dir,
        device_lock=machine.device_lock,
        cache_dir=args.cache_dir,
        again=args.again,
        begin_within_s=args.begin_within,
        started=run_times.process_began(),
    )


def _target() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
