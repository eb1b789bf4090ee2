"""The command ``cuda-agent``. What it shows is for people; what it found goes to ``--json FILE``.

Exit status: 0 done; 1 done, and something is not as it should be (a failed check, damage, a slower model); 2 wrong
arguments or input; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent_backend.cli import bench, cache, policy_arguments, trajectory
from cuda_agent_backend.cli.result import CliError, Result
from cuda_agent_backend.json_values import write_json
from cuda_agent_backend.settings import Settings, SettingsError
from cuda_agent_backend.tools import tables

if TYPE_CHECKING:
    from cuda_agent_backend.tools.load_model import LoadedModel

USAGE, INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    args = parser().parse_args(argv)
    try:
        settings = Settings.from_environment()
        status, found = COMMANDS[args.command](args, settings)
        if args.json:
            write_json(args.json, found)
        return status
    except (CliError, SettingsError, OSError) as error:
        print(f"cuda-agent: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("cuda-agent: interrupted; what was promoted so far is kept", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """All arguments of all commands."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", type=Path, metavar="FILE", help="write what was found as JSON")
    common.add_argument("--cache-dir", type=Path, metavar="DIR", help="folder of the kernel cache")
    top = argparse.ArgumentParser(
        prog="cuda-agent",
        description="Finds, verifies, caches and runs faster kernels for torch.compile.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, parents=[common], help=help)

    _add_demo_arguments(command("demo", "three models, end to end"))
    _add_warm_arguments(command("warm", "search kernels for a model now"))
    _add_model_arguments(
        command("explain", "what would be replaced in a model, and why not the rest")
    )
    bench.add_arguments(
        command("bench", "search and measure folders of tasks, unattended"), seconds
    )
    doctor = command("doctor", "what works on this machine")
    doctor.add_argument("--quick", action="store_true", help="build nothing")
    skill = command("skill", "print what a policy is told about writing kernels")
    skill.add_argument("--target", choices=("cpu", "cuda"), default="cuda")
    cache.add_parsers(
        commands.add_parser("cache", help="look at, check and clean the kernel cache"), common
    )
    trajectory.add_parsers(
        commands.add_parser("trajectory", help="look at the agent's episodes"), common
    )
    return top


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _add_demo_arguments(demo: argparse.ArgumentParser) -> None:
    demo.add_argument(
        "--budget", type=seconds, default=120.0, help="most seconds of search per graph"
    )
    demo.add_argument("--build-dir", type=Path, default=Path("build"), help="where it works")
    demo.add_argument("--models", type=Path, help="file with the models (default: our own)")


def _add_warm_arguments(warm: argparse.ArgumentParser) -> None:
    _add_model_arguments(warm)
    warm.add_argument("--budget", type=seconds, metavar="S", help="seconds of search per graph")
    policy_arguments.add_arguments(warm)


def _add_model_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "model",
        metavar="FILE:FUNCTION",
        help="a Python file and a function in it that returns (model, inputs)",
    )
    command.add_argument("--train", action="store_true", help="forward and backward graphs")
    command.add_argument("--device", choices=("cpu", "cuda"), help="default: where the model is")


def _load(args: argparse.Namespace) -> LoadedModel:
    """The model named on the command line. Raises `CliError`."""
    from cuda_agent_backend.tools.load_model import BadTarget, load_model

    found = load_model(args.model)
    if isinstance(found, BadTarget):
        raise CliError(found.reason)
    if args.device:
        found = found.to(args.device)
    found.model.train(args.train)
    return found


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that the arguments ask for, as `torch.compile` takes them."""
    wanted = {
        "cuda_agent.cache_dir": args.cache_dir,
        "cuda_agent.budget_s": getattr(args, "budget", None),
        **policy_arguments.options(args),
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _doctor(args: argparse.Namespace, settings: Settings) -> Result:
    from dataclasses import asdict

    from cuda_agent_backend.cli.doctor import check_table, diagnose, examine, worst

    folder = args.cache_dir or settings.cache_dir
    facts = examine(folder, settings.native_dir, build=not args.quick)
    checks = diagnose(facts)
    tables.console().print(check_table(checks))
    found = {"status": worst(checks), "checks": [asdict(check) for check in checks]}
    return (1 if worst(checks) == "fail" else 0), found


def _warm(args: argparse.Namespace, settings: Settings) -> Result:
    from cuda_agent_backend.tools.warm import warm

    policy_arguments.check(args)
    found = _load(args)
    with _said(args.model):
        report = warm(found.model, found.inputs, training=args.train, options=_options(args))
    out = tables.console()
    out.print(tables.region_table(report.graphs, args.model))
    total = sum(graph.wholes for graph in report.graphs)
    out.print(f"{report.used} of {total} regions run a kernel; {report.seconds:.0f} s")
    return _problem(report.problem), {"model": args.model, "used": report.used, **report.to_json()}


def _explain(args: argparse.Namespace, settings: Settings) -> Result:
    from cuda_agent_backend.tools.explain import explain

    found = _load(args)
    with _said(args.model):
        report = explain(found.model, *found.inputs, training=args.train, options=_options(args))
    tables.console().print(tables.region_table(report.graphs, args.model, room=True))
    for task, reason in report.bugs.items():
        print(f"cuda-agent: task {task[:16]} has no kernel: {reason}", file=sys.stderr)
    return _problem(report.problem), {"model": args.model, **report.to_json()}


def _problem(problem: str) -> int:
    if problem:
        print(f"cuda-agent: {problem}", file=sys.stderr)
    return 1 if problem else 0


@contextlib.contextmanager
def _said(model: str) -> Iterator[None]:
    """Turn what the user's model raises into one line; the traceback goes to the log."""
    from cuda_agent_backend import log

    try:
        yield
    except SettingsError:
        raise
    except Exception as error:
        log.logger("all").debug("%s", traceback.format_exc())
        first = str(error).strip().partition("\n")[0]
        raise CliError(
            f"{model} cannot be compiled and run: {type(error).__name__}: {first}"
            " (CUDA_AGENT_LOGS=+all shows where)"
        ) from error


def _demo(args: argparse.Namespace, settings: Settings) -> Result:
    from cuda_agent_backend.cli.demo import MODELS_FILE, Demo, DemoFailed, run

    found = run(Demo(args.models or MODELS_FILE, args.build_dir, args.budget))
    if isinstance(found, DemoFailed):
        raise CliError(found.reason)
    return (0 if found.as_promised else 1), found.to_json()


def _skill(args: argparse.Namespace, settings: Settings) -> Result:
    from cuda_agent_backend.agent.skill.document import skill

    text = skill(args.target)
    print(text, end="")
    return 0, {"target": args.target, "text": text}


COMMANDS: dict[str, Callable[[argparse.Namespace, Settings], Result]] = {
    "demo": _demo,
    "warm": _warm,
    "explain": _explain,
    "bench": bench.run,
    "doctor": _doctor,
    "skill": _skill,
    "cache": cache.run,
    "trajectory": trajectory.run,
}
