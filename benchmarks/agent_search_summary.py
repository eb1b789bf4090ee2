"""The figures of `agent_search`: judgements that each way of choosing needs, by task and over all, with intervals."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.agent_search_simulation import (
    WORTH,
    Game,
    Table,
    as_planned,
    at_random,
    needed,
    remembered,
    table_of,
    table_of_products,
)
from benchmarks.store import FOLDER, Facts
from cuda_agent_backend.agent.policies.search.factory import make
from cuda_agent_backend.agent.policies.spec import PolicySpec

RANDOM_SEEDS, SEEDS = 400, 2
RESAMPLES = 2000
RESOLVED = 0.05
"""Scatter between the two halves of a table's samples up to which it tells schedules within 5 % from others."""
PATIENT = {"judgements": 1000, "least_gain": -1.0, "at_floor": 0.0}
"""A policy that goes on until all is tried: what its order is worth, apart from when it stops."""

PRODUCTS = FOLDER / "h200-products.json"
RATIOS = (
    ("model", "random"), ("model_on", "random"), ("model_on", "plan_on"), ("plan_on", "random"),
    ("memory", "model"), ("memory_on", "model_on"), ("model_quiet", "random"), ("model_on_quiet", "random"),
    ("model_on_quiet", "plan_on"), ("memory_quiet", "model_quiet"), ("memory_on_quiet", "model_on_quiet"),
)  # fmt: skip
HELPED = (("memory", "model"), ("memory_on", "model_on"))
"""These also over the tasks alone that have neighbours in the memory."""


def summarise(samples: Mapping[str, Facts]) -> Facts:
    """By way: judgements until a schedule within 5 % of the table's best was judged; a search that ended before that
    counts as one that needed all of the table.

    "random" draws from the table, "plan" is the order of proposals by rounds, "plan_on" the same without its stops and
    then the rest at random, "model" and "memory" are the policy `bayesian` with its stops, "model_on" and "memory_on"
    without. These see profiles as noisy as they were here; with "_quiet"
    each is within a few percent of what all samples together say. Not counted in the totals are tasks on which nothing
    wins, and those whose table is too noisy to tell which schedules are within 5 % of the best (`RESOLVED`).
    """
    # a table that was timed once says of every profile what it says of the truth
    whole = {n: facts for n, facts in samples.items() if facts.get("rows") and facts["passes"] > 1}
    tables = {name: table_of(facts) for name, facts in whole.items()}
    found = figures({name: table for name, table in tables.items() if table.best > 0})
    episodes = {name: facts["episode"] for name, facts in samples.items() if "episode" in facts}
    return {**found, "episodes": episodes, "h200_products": of_products()}


def of_products(path: Path = PRODUCTS) -> Facts:
    """The same for the products and convolutions whose proposed schedules were all timed on an H200.

    There the space is what the sketch proposes, and its order was made with these very cases in view.
    """
    if not path.is_file():
        return {}
    outcomes = json.loads(path.read_text(encoding="utf-8"))["outcomes"]
    found = figures({outcome["case"]: table_of_products(outcome) for outcome in outcomes})
    # that file has no tasks, so nothing could be remembered
    for part in ("needed", "ratios", "ratios_with_neighbours"):
        found[part] = {name: value for name, value in found[part].items() if "memory" not in name}
    return found


def figures(tables: Mapping[str, Table]) -> Facts:
    """Totals over the tables that count, and what each is like."""
    tasks = {name: _task(name, tables) for name in tables}
    counted = [n for n in tables if tables[n].best >= WORTH and tasks[n]["scatter"] <= RESOLVED]
    runs = [tasks[name]["needed"] for name in counted]
    helped = [tasks[name]["needed"] for name in counted if tasks[name]["neighbours"]]
    ways = list(runs[0]) if runs else []
    return {
        "tasks": {name: _brief(facts) for name, facts in tasks.items()},
        "counted": counted,
        "too_noisy": sorted(n for n in tables if tasks[n]["scatter"] > RESOLVED),
        "needed": {way: _over_all([run[way]["all"] for run in runs]) for way in ways},
        "ratios": {f"{one}/{other}": _ratio(runs, one, other) for one, other in RATIOS if runs},
        "ratios_with_neighbours": {
            f"{one}/{other}": _ratio(helped, one, other) for one, other in HELPED
        },
    }


def _task(name: str, tables: Mapping[str, Table]) -> Facts:
    table = tables[name]
    offers = remembered(name, tables)
    candidates = len({row.candidate for row in table.rows.values()})

    def count(judged: Sequence[str]) -> int:
        return needed(judged, table) or candidates

    def games(with_memory: bool, quiet: bool, **options: Any) -> list[Game]:
        neighbours = offers if with_memory else []
        until = table.close if options else frozenset()
        return [
            Game(table, seed, neighbours, until, quiet).play(
                replace(make(PolicySpec("bayesian")), seed=seed, space=table.space, **options)
            )
            for seed in range(SEEDS)
        ]

    played: dict[str, list[Game]] = {}
    noisy = any(row.ratios for row in table.rows.values())
    for way in ("model", "memory"):
        for on in ("", "_on"):
            for calm in ("_quiet", ""):  # what would be played twice is played once
                same = f"{way}{on}_quiet" if not (noisy or calm) else f"model{on}{calm}"
                known = played.get(same) if not offers or not noisy else None
                more = PATIENT if on else {}
                played[way + on + calm] = known or games(way == "memory", bool(calm), **more)
    ways: dict[str, list[int]] = {
        "random": [count(at_random(table, seed)) for seed in range(RANDOM_SEEDS)],
        "plan": [count(as_planned(table))],
        "plan_on": [count([*_proposals(table), *at_random(table, s)]) for s in range(RANDOM_SEEDS)],
        **{way: [count(game.judged) for game in found] for way, found in played.items()},
    }
    stopped = {way: _stopped(played[way], table) for way in played if "_on" not in way}
    return {
        "best": table.best,
        "schedules": candidates,
        "close": len(table.close),
        "scatter": _scatter(table),
        "neighbours": len(offers),
        "needed": {way: {**_spread(counts), "all": counts} for way, counts in ways.items()},
        "stopped": stopped | {"plan": _stopped_plan(table)},
    }


def _scatter(table: Table) -> float:
    """How far the speed-ups by the first and by the second half of the samples lie apart, as a logarithm."""
    gaps = []
    for row in table.rows.values():
        half = len(row.ratios) // 2
        if half and row.speedup is not None:
            halves = (row.ratios[:half], row.ratios[half:])
            first, second = (math.log(statistics.median(own)) for own in halves)
            gaps.append(first - second)
    return statistics.fmean(g * g for g in gaps) ** 0.5 if gaps else 0.0


def _proposals(table: Table) -> list[str]:
    return [table.rows[s].candidate for s in table.proposals if s in table.rows]


def _stopped(games: Sequence[Game], table: Table) -> Facts:
    """Judgements spent when the policy ended by itself, and the share of the best that it had found by then."""
    speeds = {row.candidate: row.speedup or 0.0 for row in table.rows.values()}
    found = [max((speeds[n] for n in game.judged), default=0.0) / table.best for game in games]
    return {
        "judgements": statistics.median(len(game.judged) for game in games),
        "share_of_best": statistics.median(found),
        "compiled": statistics.median(game.compiled for game in games),
    }


def _stopped_plan(table: Table) -> Facts:
    speeds = {row.candidate: row.speedup or 0.0 for row in table.rows.values()}
    judged = as_planned(table)
    best = max((speeds[n] for n in judged), default=0.0)
    return {"judgements": len(judged), "share_of_best": best / table.best}


def _spread(counts: Sequence[int]) -> Facts:
    """Median and mean, and where nine tenths of the runs lie."""
    ordered = sorted(counts)
    return {
        "median": statistics.median(ordered),
        "mean": round(statistics.fmean(ordered), 2),
        "low": ordered[int(0.05 * (len(ordered) - 1))],
        "high": ordered[int(0.95 * (len(ordered) - 1))],
    }


def _brief(facts: Facts) -> Facts:
    spreads = {w: {k: v for k, v in s.items() if k != "all"} for w, s in facts["needed"].items()}
    return {**facts, "needed": spreads}


def _over_all(counts: Sequence[Sequence[int]]) -> Facts:
    """The mean over tasks of the mean over runs, with the interval of a bootstrap over tasks."""
    means = [statistics.fmean(own) for own in counts]
    return (
        {
            "mean": statistics.fmean(means),
            **_bootstrap(len(means), lambda p: statistics.fmean(means[i] for i in p)),
        }
        if means
        else {}
    )


def _ratio(found: Sequence[Mapping[str, Facts]], one: str, other: str) -> Facts:
    """Judgements of all tasks together, one way's over another's, with the interval of a bootstrap over tasks."""
    if not found:
        return {}
    pairs = [(statistics.fmean(f[one]["all"]), statistics.fmean(f[other]["all"])) for f in found]

    def ratio(places: Sequence[int]) -> float:
        return sum(pairs[i][0] for i in places) / sum(pairs[i][1] for i in places)

    return {"ratio": ratio(range(len(pairs))), **_bootstrap(len(pairs), ratio)}


def _bootstrap(n: int, figure: Callable[[Sequence[int]], float]) -> Facts:
    chance = random.Random(0)
    found = sorted(figure([chance.randrange(n) for _ in range(n)]) for _ in range(RESAMPLES))
    return {"low": found[int(0.025 * RESAMPLES)], "high": found[int(0.975 * RESAMPLES)]}
