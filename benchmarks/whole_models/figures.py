"""From what the processes of a cell said to its result, and from all results to a summary: pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from benchmarks.store import Facts
from benchmarks.whole_models.cells import AUTOTUNE
from benchmarks.whole_models.reference import FIRST
from cuda_agent_backend.bench.measurement import accuracy_of, mismatch
from cuda_agent_backend.partition.report import DROPPED, HIT, MISS
from sandbox.accuracy.rule import compare
from sandbox.timing.decision import control, interval, ratios

OURS, INDUCTOR, AGAIN = "cuda_agent", "inductor", "inductor_again"
MOST_MEMORY = 1.02
"""Of Inductor's peak."""
SLOWER, WINS = 1.0, 1.05


def errors(
    ours: Sequence[Tensor],
    plain: Sequence[Tensor],
    eager: Sequence[Tensor],
    exact: Sequence[Tensor],
    how: str,
) -> Facts:
    """Our error as a multiple of eager's, Inductor's own multiple, and whether ours is within the rule (C3).

    how: what the exact results are (see `reference`). as_inductor: beyond the rule, but no more so than Inductor.
    """
    if how == FIRST:
        ours, plain, eager = ([x[:1] for x in each] for each in (ours, plain, eager))
    wrong = mismatch(ours, eager)
    if wrong:
        return {"error_ratio": None, "accurate": False, "wrong": wrong, "reference": how}
    found = accuracy_of(ours, eager, plain, exact)
    return {
        "error_ratio": found.error_ratio,
        "inductor_error_ratio": compare(plain, eager, exact).error_ratio,
        "accurate": not found.wrong,
        "as_inductor": found.as_inductor,
        "wrong": found.wrong,
        "reference": how,
    }


def times(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> Facts:
    """The speed-up over Inductor with its 95 % interval by device time, by wall time, and the A/A control."""
    device, wall = samples["device"], samples["wall"]
    over = interval(ratios(device[INDUCTOR], device[OURS]))
    by_wall = interval(ratios(wall[INDUCTOR], wall[OURS]))
    own = control(device[INDUCTOR], device[AGAIN])
    return {
        "speedup": over.median,
        "low": over.low,
        "high": over.high,
        "wall_speedup": by_wall.median,
        "wall_low": by_wall.low,
        "wall_high": by_wall.high,
        "quiet": own.quiet,
        "control": asdict(own),
        "milliseconds": {name: 1e3 * statistics.median(values) for name, values in device.items()},
    }


def memory(ours: Mapping[str, Any], plain: Mapping[str, Any], mode: str) -> Facts:
    """Our peak in steady calls over Inductor's, None on cpu, where nobody counts; and what was counted.

    Under CUDA graphs what torch's allocator took from the device: a replay allocates no tensor.
    """
    what = "reserved" if mode == AUTOTUNE else "allocated"
    mine, theirs = (each.get("held", {}).get(what) for each in (ours, plain))
    ratio = mine / theirs if mine is not None and theirs else None
    return {"memory_ratio": ratio, "memory_counted": what}


def undecided(graphs: Sequence[Mapping[str, Any]]) -> list[Facts]:
    """The graphs with regions that no search came to, or with kernels that the whole graph was not measured with.

    Where none of its kernels is used for that reason, it is Inductor's own code that ran as ours.
    """
    found = []
    for graph in graphs:
        status = [region["status"] for region in graph["regions"]]
        left = [
            region
            for region in graph["regions"]
            if region["status"] == MISS or (region["status"] == DROPPED and not graph["acceptance"])
        ]
        if left:
            facts = {"kind": graph["kind"], "digest": graph["digest"], "regions": len(status)}
            facts |= {"used": status.count(HIT), "undecided": len(left)}
            found.append({**facts, "reasons": sorted({region["reason"] for region in left})})
    return found


def first_calls(cold: Facts, warm: Facts, plain_cold: Facts, plain_warm: Facts) -> Facts:
    """Seconds of first calls; ours cold includes the search."""
    return {
        "compile_seconds": cold["first_s"],
        "warm_compile_seconds": warm["first_s"],
        "inductor_compile_seconds": plain_cold["first_s"],
        "inductor_warm_compile_seconds": plain_warm["first_s"],
    }


def summarise(samples: Mapping[str, Facts]) -> Facts:
    """The figures of the table's rows: of all cells, and by mode, kind and dtype where there are several."""
    groups: dict[str, dict[str, Facts]] = {}
    for name, facts in samples.items():
        cell = facts.get("cell")
        if cell:
            group = f"{cell['dtype']} {cell['kind']} {cell['mode']}"
            groups.setdefault(group, {})[name] = facts
    found = summary_of(samples)
    return {**found, "groups": {name: summary_of(cells) for name, cells in groups.items()}}


def summary_of(samples: Mapping[str, Facts]) -> Facts:
    """Of some cells. A cell counts as above 1.05, or slower, by its whole interval; noisy ones as neither."""
    left_out = {name: facts["left_out"] for name, facts in samples.items() if "left_out" in facts}
    failed = sorted(name for name, facts in samples.items() if "failed" in facts)
    there = {name: f for name, f in samples.items() if name not in {*failed, *left_out}}
    quiet = {name: facts for name, facts in there.items() if facts["quiet"]}
    speedups = {name: facts["speedup"] for name, facts in there.items()}
    slowest = min(speedups, key=speedups.__getitem__, default=None)
    return {
        "models": len(there),
        "failed": failed,
        "left_out": left_out,
        "slowest_model": slowest,
        "slowest_speedup": speedups[slowest] if slowest else None,
        "below_0.98": sorted(name for name, value in speedups.items() if value < 0.98),
        "above_1.05": sorted(name for name, facts in there.items() if facts["low"] > WINS),
        "slower": sorted(name for name, f in quiet.items() if f.get("high", SLOWER) < SLOWER),
        "wins": sum(facts["low"] > WINS for facts in there.values()),
        "geomean": statistics.geometric_mean(speedups.values()) if speedups else None,
        "all_accurate": all(facts["accurate"] for facts in there.values()),
        "less_accurate": sorted(name for name, facts in there.items() if not facts["accurate"]),
        "noisy": sorted(name for name in there if name not in quiet),
        "undecided": sorted(name for name, facts in there.items() if facts.get("undecided")),
        "undescribed": sorted(name for name, facts in there.items() if "undescribed" in facts),
        "inductor_on_both_sides": sorted(name for name, f in there.items() if nothing_of_ours(f)),
        "more_memory": sorted(
            name for name, facts in there.items() if (facts.get("memory_ratio") or 0) > MOST_MEMORY
        ),
    }


def nothing_of_ours(facts: Facts) -> bool:
    """Whether what ran as ours was Inductor's code alone."""
    return not any(facts.get(name, 1) for name in ("promoted", "eager_layouts", "replayed"))
