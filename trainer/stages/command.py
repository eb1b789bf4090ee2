"""``cuda-agent-train pretrain``, ``warmup``, ``rft``, ``value``, ``agentic``, ``live``, ``eval``, ``run``, ``plot``."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer.errors import CommandError

NEEDED = ("transformers", "tokenizers", "safetensors", "accelerate")
HELP = {
    "pretrain": "teach a model made from nothing what rivals say in the world",
    "warmup": "single-turn PPO: one answer a task",
    "rft": "rejection fine-tuning on filtered episodes",
    "value": "pretrain the critic",
    "agentic": "PPO over many turns",
    "live": "the same against the judge, in the world that the configuration gives this stage",
    "eval": "play held-out tasks beside today's search",
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

    shown = commands.add_parser("plot", help="draw the figures of a run")
    shown.add_argument("run", type=Path, metavar="DIR", help="where the run is")
    shown.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .png or .svg")


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
    """Do one stage, or all; the exit status."""
    absent = [name for name in NEEDED if find_spec(name) is None]
    if absent:
        raise CommandError(f'{", ".join(absent)}: not installed: pip install "cuda_agent[train]"')
    from sandbox.task.flags import threads
    from trainer.ppo.ranks import Accelerated
    from trainer.rivals.registry import missing
    from trainer.rollout.world import WorldFailed
    from trainer.stages import config, runner
    from trainer.stages.learner import Unusable
    from trainer.stages.worlds import world_of

    try:
        seed = [] if args.seed is None else [f"seed={args.seed}"]
        settings = config.read(args.config, [*args.set, *seed])
        if settings.model.lora is not None and find_spec("peft") is None:
            raise CommandError('peft: not installed: pip install "cuda_agent[train]"')
        for name in {"pretrain", "eval"} & {*settings.stages}:
            plain = config.PLAIN if name == "pretrain" else ()
            asked = [r for r in settings.stage(name).rivals if r not in plain]
            if why := missing(asked):
                raise CommandError(why)
        wanted = settings.stages if args.command == "run" else (args.command,)
        with threads(settings.threads) if settings.threads else nullcontext():
            made = runner.Run(settings, args.out, Accelerated(), world_of)
            for name in wanted:
                said = runner.run_stage(made, name)
                made.tell(f"{name}: done: {json.dumps(said.get('figures', {}), sort_keys=True)}")
    except (
        config.BadConfig,
        runner.RunFailed,
        Unusable,
        WorldFailed,
    ) as error:
        raise CommandError(str(error)) from error
    return 0
