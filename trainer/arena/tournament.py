"""All rivals on all splits: trained for each fold, played on its test tables, several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from trainer.arena.figures import Game, figures, paired, ratio, saved
from trainer.arena.play import BUDGETS, chance, play
from trainer.arena.splits import SPLITS, Fold
from trainer.rivals.registry import AGAINST, CONTROLS, RIVALS, TODAY
from trainer.world.files import read
from trainer.world.rows import Table

SEEDS = 5


@dataclass(frozen=True)
class Job:
    """One rival, trained once, on one fold."""

    split: str
    rival: str
    fold: Fold
    seed: int


@dataclass
class Results:
    """games: by split and rival."""

    games: dict[tuple[str, str], list[Game]] = field(default_factory=dict)

    def to_json(self, tables: Sequence[Table], own: str = "") -> dict[str, Any]:
        """All figures as JSON values. own: a rival that is compared with all others, not with `AGAINST` alone."""
        splits: dict[str, Any] = {}
        played: dict[str, Any] = {}
        for (split, rival), games in sorted(self.games.items()):
            found = splits.setdefault(split, {})[rival] = figures(games)
            played.setdefault(split, {})[rival] = raw(games)
            others = {name: theirs for (of, name), theirs in self.games.items() if of == split}
            others.pop(rival)
            if rival != own:
                others = {name: others[name] for name in AGAINST if name in others}
            found["slowdown_over"] = {
                name: {str(budget): paired(games, theirs, budget) for budget in BUDGETS}
                for name, theirs in sorted(others.items())
            }
            if TODAY in others:
                found["over_today"] = ratio(games, others[TODAY])
                found |= charged(saved(games, others[TODAY]), tables)
        return {"tables": described(tables), "splits": splits, "games": played}


def raw(games: Sequence[Game]) -> dict[str, list[list[float | None]]]:
    """By table, of each seed: the slowdown at each of `BUDGETS`, and the judgements to 95 % of the best."""
    found: dict[str, list[list[float | None]]] = {}
    for game in sorted(games, key=lambda game: (game.table, game.seed)):
        slowdowns = [round(game.played.at[budget].slowdown, 4) for budget in BUDGETS]
        found.setdefault(game.table, []).append([*slowdowns, game.played.judgements])
    return found


def charged(saved_s: float, tables: Sequence[Table]) -> dict[str, Any]:
    """On how many tasks the seconds of all tables pay for themselves: what measuring them took, over what a task's
    search to 95 % of the best takes less than today's. None where it takes no less."""
    measured = sum(sum(table.steps.values()) for table in tables)
    return {"measured_s": measured, "pays_after_tasks": measured / saved_s if saved_s > 0 else None}


def described(tables: Sequence[Table]) -> dict[str, Any]:
    """What the tables are."""
    devices: dict[str, int] = {}
    for table in tables:
        devices[table.device_name] = devices.get(table.device_name, 0) + 1
    return {
        "count": len(tables),
        "schedules": sum(len(table.rows) for table in tables),
        "working": sum(row.works for table in tables for row in table.rows),
        "complete": sum(table.complete for table in tables),
        "families": len({table.family for table in tables}),
        "dtypes": sorted({table.dtype for table in tables}),
        "devices": devices,
        "answers_share": sum(map(chance, tables)) / max(1, len(tables)),
    }


def jobs_of(
    tables: Sequence[Table], splits: Sequence[str], rivals: Sequence[str], seeds: int
) -> list[Job]:
    """Everything that is to be played; splits for which there are no tables give nothing."""
    return [
        Job(split, rival, fold, seed)
        for split in splits
        for fold in SPLITS[split](tables)
        for rival in rivals
        for seed in range(seeds)
    ]


def run_job(job: Job, tables: Sequence[Table]) -> list[Game]:
    """Train, then play every test table."""
    rival = (RIVALS | CONTROLS)[job.rival]()
    rival.fit([tables[n] for n in job.fold.train], job.seed)
    return [
        Game(tables[n].id, tables[n].family, job.seed, play(rival, tables[n], job.seed))
        for n in job.fold.test
    ]


def tournament(
    paths: Sequence[Path],
    tables: Sequence[Table],
    jobs: Sequence[Job],
    processes: int = 1,
    tell: Callable[[int], None] = lambda _: None,
) -> Results:
    """Play all jobs. paths: where the tables are from, for further processes. tell: is told how many are done."""
    results = Results()
    for done, (job, games) in enumerate(_played(paths, tables, jobs, processes), 1):
        results.games.setdefault((job.split, job.rival), []).extend(games)
        tell(done)
    return results


def _played(
    paths: Sequence[Path], tables: Sequence[Table], jobs: Sequence[Job], processes: int
) -> Iterator[tuple[Job, list[Game]]]:
    if processes == 1:
        for job in jobs:
            yield job, run_job(job, tables)
        return
    with ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=_load, initargs=(list(paths),)
    ) as pool:
        yield from zip(jobs, pool.map(_of_loaded, jobs), strict=True)


_loaded: list[Table] = []


def _load(paths: Sequence[Path]) -> None:
    """In a further process: one thread each, as there are as many processes as cores."""
    import torch

    torch.set_num_threads(1)
    _loaded.extend(read(paths))


def _of_loaded(job: Job) -> list[Game]:
    return run_job(job, _loaded)
