"""``cuda-agent-train contest``: trained policies among the arena's rivals, on families that nobody was trained on."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import CommandError

if TYPE_CHECKING:
    from trainer.arena.figures import Game
    from trainer.arena.splits import Fold
    from trainer.rollout.chat import Speaker
    from trainer.rollout.held_out import HeldOut
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
        help="a trained policy; several are equal trainings with other seeds, or kept from other families "
        "(held_out_part), one --policy each",
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
    policies = _policies(args.policy)
    folds = {part: _fold(tables, part) for part in policies}
    own: list[Game] = []
    games = sum(len(fold.test) for fold in folds.values()) * args.seeds
    with progress(games, "games of the policy") as tell:
        for part, samplers in policies.items():
            train, test = (
                [tables[n] for n in side] for side in (folds[part].train, folds[part].test)
            )
            told = partial(_further, tell, len(own))
            own += games_of(samplers, test, args.seeds, told, TableMemory(train))
    jobs = [
        Job(SPLIT, rival, fold, seed)
        for fold in folds.values()
        for rival in rivals
        for seed in range(args.seeds)
    ]
    with progress(len(jobs), "rivals") as tell:
        results = tournament(args.tables, tables, jobs, args.jobs, tell)
    results.games[SPLIT, NAME] = own
    found = results.to_json(tables, NAME)
    parts = [part.to_card() for part in policies]
    found["policies"] = {"trainings": sum(map(len, policies.values())), "kept_from": parts}
    print(written(found, args.out))
    return 0


def _further(tell: Callable[[int], None], before: int, done: int) -> None:
    tell(before + done)


def _read(paths: Sequence[Path]) -> list[Table]:
    from trainer.world.files import read

    try:
        return read(paths)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _policies(folders: Sequence[Path]) -> dict[HeldOut, list[Speaker]]:
    """Policies at temperature 0, by the families that they were kept from."""
    from cuda_agent_backend.agent.policies.trained.sampler import Sampler
    from cuda_agent_backend.agent.policies.trained.weights import Unusable, load
    from trainer.rollout.held_out import of_card

    found: dict[HeldOut, list[Speaker]] = {}
    for folder in folders:
        policy = load(folder)
        if isinstance(policy, Unusable):
            raise CommandError(policy.reason)
        if (kept_from := of_card(policy.card)) is None:
            raise CommandError(
                f"{folder}/policy.json does not say of a share of families that all stages held out: there is nothing "
                "to test it on"
            )
        found.setdefault(kept_from, []).append(Sampler(policy.model, policy.speech, 0.0))
    if len({part.share for part in found}) > 1:
        said = ", ".join(sorted({f"{part.share:g}" for part in found}))
        raise CommandError(
            f"the policies were kept from shares of families of several sizes ({said}), so that tables would be played "
            "by some of them only"
        )
    return found


def _fold(tables: Sequence[Table], held_out: HeldOut) -> Fold:
    from trainer.arena.splits import Fold, judged_on, playable

    numbers = playable(tables)
    away = held_out.families([tables[n].family for n in numbers])
    test = judged_on(tables, [n for n in numbers if tables[n].family in away])
    train = tuple(n for n in numbers if tables[n].family not in away)
    if not test or not train:
        raise CommandError(
            f"{len(tables)} tables are too few or too much alike to hold {held_out.share:.0%} of their families out"
        )
    return Fold(train, test)
