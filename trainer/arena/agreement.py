"""Whether timings repeat: the same regions, measured on another day or device."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from trainer.arena.play import answers, geomean
from trainer.world.rows import ON_DEVICE, Table
from trainer.world.worth import worth_of_best

BY_SCHEDULE = ("check", "time")
"""Steps that take longer the more schedules there are; baselines and timing leaders again do not."""
LEAST = 3
"""Candidates that work in both, from which on their order is compared."""


def agreement(first: Sequence[Table], second: Sequence[Table]) -> dict[str, Any]:
    """Over regions that both measured, and candidates that both have.

    rank_correlation: Spearman's, of speed-ups, and of the leaders' alone, the mean over regions. winner_within_noise:
    how often the second measurement's fastest is within noise of the first one's best; slowdown: of choosing by the
    second, by the first one's speeds, geometric mean and worst. verdicts: the share of candidates of which both say
    whether they work. seconds_ratio: the second's time over the first's, median and the middle half.
    """
    others = {table.parsed.digest: table for table in second}
    pairs = [(table, others[d]) for table in first if (d := table.parsed.digest) in others]
    found = [_of(one, other) for one, other in pairs]
    known = [f for f in found if f is not None]
    if not known:
        return {"regions": len(pairs), "compared": 0}
    ratios = sorted(r for f in known for r in f["ratios"])
    return {
        "regions": len(pairs),
        "compared": len(known),
        "candidates": sum(f["candidates"] for f in known),
        "rank_correlation": statistics.fmean(f["rank"] for f in known),
        "rank_correlation_of_leaders": _mean([f["leaders"] for f in known]),
        "winner_within_noise": statistics.fmean(f["hit"] for f in known),
        "slowdown": geomean([f["slowdown"] for f in known]),
        "worst_slowdown": max(f["slowdown"] for f in known),
        "verdicts": statistics.fmean(f["verdicts"] for f in known),
        "seconds_ratio": {
            "median": statistics.median(ratios),
            "low": ratios[len(ratios) // 4],
            "high": ratios[(3 * len(ratios)) // 4],
        },
    }


def _of(one: Table, other: Table) -> dict[str, Any] | None:
    """A region's part; None where too few candidates are common to both."""
    places = {row.candidate: n for n, row in enumerate(other.rows)}
    shared = [
        (n, places[row.candidate]) for n, row in enumerate(one.rows) if row.candidate in places
    ]
    speeds = [
        (n, a, b)
        for n, m in shared
        if (a := one.rows[n].speed) is not None and (b := other.rows[m].speed) is not None
    ]
    if len(speeds) < LEAST:
        return None
    alike = [one.rows[n].works is other.rows[m].works for n, m in shared]
    chosen = max(speeds, key=lambda s: s[2])
    best = worth_of_best([one.rows[n] for n, _, _ in speeds])
    leaders = [(a, b) for n, a, b in speeds if one.rows[n].retimed]
    times = [
        statistics.median(c for _, c in other.rows[m].pairs)
        / statistics.median(c for _, c in one.rows[n].pairs)
        for n, m in shared
        if one.rows[n].works and other.rows[m].works
    ]
    return {
        "candidates": len(shared),
        "rank": spearman([a for _, a, _ in speeds], [b for _, _, b in speeds]),
        "leaders": spearman(*map(list, zip(*leaders, strict=True)))
        if len(leaders) >= LEAST
        else None,
        "hit": chosen[0] in answers(one),
        "slowdown": best / chosen[1],
        "verdicts": statistics.fmean(alike),
        "ratios": times,
    }


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """The correlation of ranks, equal values having the mean of theirs; 0 where one does not vary."""
    first, second = _ranks(one), _ranks(other)
    if len(set(first)) < 2 or len(set(second)) < 2:
        return 0.0
    return statistics.correlation(first, second)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def measured(tables: Sequence[Table]) -> dict[str, Any]:
    """What measuring took: tables, the programs they are of (`tasks`) and schedules, and seconds of each step for a
    table, median and 90th percentile.

    device: of checks, baselines and timing together, which are what needs the device; device_per_64: with the steps
    that every schedule takes part in as 64 of them would take.
    """
    steps: dict[str, list[float]] = {}
    for table in tables:
        for name, seconds in table.steps.items():
            steps.setdefault(name, []).append(seconds)
        on_device = sum(table.steps[n] for n in ON_DEVICE)
        steps.setdefault("device", []).append(on_device)
        by_schedule = sum(table.steps[n] for n in BY_SCHEDULE)
        more = 64 / max(1, len(table.rows)) - 1
        per_64 = on_device + more * by_schedule
        steps.setdefault("device_per_64", []).append(per_64)
    return {
        "tables": len(tables),
        "tasks": len({table.source for table in tables}),
        "complete": sum(table.complete for table in tables),
        "schedules": sum(len(table.rows) for table in tables),
        "statuses": _counts([row.status for table in tables for row in table.rows]),
        "families": _counts([table.family for table in tables]),
        "dtypes": _counts([table.dtype for table in tables]),
        "devices": _counts([table.device_name for table in tables]),
        "step_s": {name: _spread(values) for name, values in steps.items()},
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p90": ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))],
    }


def _counts(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}
