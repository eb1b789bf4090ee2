"""``cuda-agent-train contest``: trained policies among the arena's rivals, on families that nobody was trained on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import CommandError

if TYPE_CHECKING:
    from trainer.arena.splits import Fold
    from trainer.rollout.chat import Speaker
    from trainer.world.rows import Table

SPLIT = "held_out"


def add_arguments(commands: Any, whole: Any) -> None:
    """The command's arguments. whole: a number of 1 or above."""
    made = commands.add_parser("contest", help="compare trained policies with the arena's rivals")
    made.add_argument("tables", type=Path, nargs="+", metavar="TABLES", help="files or folders")
    made.add_argument(
        "--policy",
        type=Path,
        action="append",
        required=True,
        metavar="DIR",
        help="a trained policy; several are equal trainings with different seeds, one --policy each",
    )
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="where it goes")
    made.add_argument("--rivals", default="", metavar="A,B", help="all by default")
    made.add_argument("--seeds", type=whole, default=5, metavar="N")
    made.add_argument("--jobs", type=whole, default=1, metavar="J", help="processes of rivals")


def contest(args: argparse.Namespace) -> int:
    """Run it; the exit status."""
    from trainer.arena.command import written
    from trainer.arena.progress import progress
    from trainer.arena.tournament import Job, tournament
    from trainer.rivals.registry import CONTROLS, RIVALS, missing
    from trainer.stages.contest import NAME, games_of
    from trainer.world.neighbours import TableMemory

    rivals = args.rivals.split(",") if args.rivals else [*RIVALS, *CONTROLS]
    if why := missing(rivals):
        raise CommandError(why)
    tables = _read(args.tables)
    samplers, held_out = _policies(args.policy)
    fold = _fold(tables, held_out)
    jobs = [Job(SPLIT, rival, fold, seed) for rival in rivals for seed in range(args.seeds)]
    with progress(len(fold.test) * args.seeds, "games of the policy") as tell:
        memory = TableMemory([tables[n] for n in fold.train])
        own = games_of(samplers, [tables[n] for n in fold.test], args.seeds, tell, memory)
    with progress(len(jobs), "rivals") as tell:
        results = tournament(args.tables, tables, jobs, args.jobs, tell)
    results.games[SPLIT, NAME] = own
    found = results.to_json(tables)
    found["policies"] = {"trainings": len(samplers), "held_out": held_out}
    print(written(found, args.out))
    return 0


def _read(paths: Sequence[Path]) -> list[Table]:
    from trainer.world.files import read

    try:
        return read(paths)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _policies(folders: Sequence[Path]) -> tuple[list[Speaker], float]:
    """Policies at temperature 0, and the share of families that all of them were kept from."""
    from cuda_agent_backend.agent.policies.trained.sampler import Sampler
    from cuda_agent_backend.agent.policies.trained.weights import Unusable, load

    samplers: list[Speaker] = []
    shares: dict[float, Path] = {}
    for folder in folders:
        found = load(folder)
        if isinstance(found, Unusable):
            raise CommandError(found.reason)
        share = found.card.get("held_out")
        if not isinstance(share, int | float) or not share:
            raise CommandError(
                f"{folder}/policy.json does not say which share of families was held out: nothing can be tested on"
            )
        shares[float(share)] = folder
        samplers.append(Sampler(found.model, found.speech, 0.0))
    if len(shares) > 1:
        said = ", ".join(f"{folder}: {share}" for share, folder in shares.items())
        raise CommandError(f"the policies were kept from different shares of families ({said})")
    return samplers, next(iter(shares))


def _fold(tables: Sequence[Table], held_out: float) -> Fold:
    from trainer.arena.splits import Fold, playable
    from trainer.rollout.table_world import held_out_families

    numbers = playable(tables)
    away = held_out_families([tables[n].family for n in numbers], held_out)
    test = tuple(n for n in numbers if tables[n].family in away)
    train = tuple(n for n in numbers if tables[n].family not in away)
    if not test or not train:
        raise CommandError(
            f"{len(tables)} tables are too few or too much alike to hold {held_out:.0%} of their families out"
        )
    return Fold(train, test)
