"""``cuda-agent-train pretrain``, ``warmup``, ``rft``, ``value``, ``agentic``, ``live``, ``eval``, ``run``, ``plot``."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.arguments import part
from trainer.errors import CommandError

if TYPE_CHECKING:
    from trainer.stages.config import Config
    from trainer.stages.evaluate import Asked

LEFT = 1
"""The exit status of an evaluation that is not done yet."""

NEEDED = ("transformers", "tokenizers", "safetensors", "accelerate")
HELP = {
    "pretrain": "teach a model made from nothing what rivals say in the world",
    "warmup": "single-turn PPO: one answer a task",
    "rft": "rejection fine-tuning on filtered episodes",
    "value": "pretrain the critic",
    "agentic": "PPO over many turns",
    "live": "the same against the judge, in the world that the configuration gives this stage",
    "eval": "play held-out tasks beside today's searches",
    "run": "all stages of the configuration, one after another",
}


def add_arguments(commands: Any) -> None:
    """The commands' arguments."""
    for name, text in HELP.items():
        one = commands.add_parser(name, help=text)
        one.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
        one.add_argument("--out", type=Path, required=True, metavar="DIR", help="where it goes")
        one.add_argument("--seed", type=int, metavar="N", help="instead of the configuration's")
        one.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="instead of a setting of the configuration, such as rft.reward=speedup",
        )
        if name == "eval":
            _add_options_of_evaluation(one)
        else:
            one.add_argument(
                "--resume-collapsed",
                action="store_true",
                help="go on, from its last good checkpoint, with a stage that alarms stopped",
            )

    shown = commands.add_parser("plot", help="draw the figures of a run")
    shown.add_argument("run", type=Path, metavar="DIR", help="where the run is")
    shown.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .png or .svg")


def _add_options_of_evaluation(one: Any) -> None:
    one.add_argument(
        "--policy",
        type=Path,
        metavar="DIR",
        help="a folder with weights, instead of what the stages before it made in --out",
    )
    one.add_argument(
        "--part", type=part, default=(1, 1), metavar="K/N", help="every N-th task, from the K-th"
    )
    one.add_argument(
        "--time-limit",
        type=float,
        default=math.inf,
        metavar="S",
        help="seconds after which no further episode begins",
    )


def plot(args: argparse.Namespace) -> int:
    """Draw; the exit status."""
    from trainer.health.plot import plot as drawn

    stages = [name for name in HELP if name != "run"]
    try:
        print(f"{', '.join(drawn(args.run, stages, args.out))}: in {args.out}")
    except (ValueError, ImportError) as error:
        raise CommandError(str(error)) from error
    return 0


def run(args: argparse.Namespace) -> int:
    """Do one stage, or all; the exit status, which is `LEFT` where episodes of an evaluation are still to be played."""
    absent = [name for name in NEEDED if find_spec(name) is None]
    if absent:
        raise CommandError(f'{", ".join(absent)}: not installed: pip install "cuda_agent[train]"')
    from sandbox.task.flags import threads
    from trainer.ppo.ranks import Accelerated
    from trainer.rollout.world import WorldFailed
    from trainer.stages import config, runner
    from trainer.stages.learner import Unusable
    from trainer.stages.worlds import world_of

    status = 0
    try:
        seed = [] if args.seed is None else [f"seed={args.seed}"]
        settings = config.read(args.config, [*args.set, *seed])
        wanted = settings.stages if args.command == "run" else (args.command,)
        if why := _lacking(settings, wanted):
            raise CommandError(why)
        with threads(settings.threads) if settings.threads else nullcontext():
            on = getattr(args, "resume_collapsed", False)
            made = runner.Run(settings, args.out, Accelerated(), world_of, resume_collapsed=on)
            for name in wanted:
                said = runner.run_stage(made, name, _asked(args))
                status = LEFT if said.get("left") else status
                made.tell(f"{name}: {_ended(said)}")
    except (
        config.BadConfig,
        runner.RunFailed,
        Unusable,
        WorldFailed,
    ) as error:
        raise CommandError(str(error)) from error
    return status


def _lacking(settings: Config, wanted: Sequence[str]) -> str:
    """What must be installed for the stages; "" if nothing."""
    from cuda_agent_backend.agent.policies import registry
    from cuda_agent_backend.agent.policies.spec import PolicySpec
    from trainer.rivals.registry import missing
    from trainer.stages.config import PLAIN

    if settings.model.lora is not None and find_spec("peft") is None:
        return 'peft: not installed: pip install "cuda_agent[train]"'
    asked = [name for name in settings.pretrain.rivals if name not in PLAIN]
    if "pretrain" in wanted and (why := missing(asked)):
        return why
    if "eval" not in wanted:
        return ""
    evaluated = settings.eval
    if "bayesian" in evaluated.against and (why := registry.missing(PolicySpec("bayesian"))):
        return why  # without its model it would play in order, under another name
    world = evaluated.world or settings.world
    contest = evaluated.seeds and world.kind != "judge"
    return missing(list(evaluated.rivals)) if contest else ""


def _asked(args: argparse.Namespace) -> Asked | None:
    from trainer.stages.evaluate import Asked

    if args.command != "eval":
        return None
    return Asked(args.policy, args.part, args.time_limit)


def _ended(said: Mapping[str, Any]) -> str:
    figures = json.dumps(said.get("figures", {}), sort_keys=True)
    if not said.get("left"):
        return f"done: {figures}"
    lost = f", {said['failed']} of which were lost to infrastructure" if said["failed"] else ""
    return f"{said['left']} episodes are left{lost}; give the same command again. So far: {figures}"
