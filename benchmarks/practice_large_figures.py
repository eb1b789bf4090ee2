"""The rows of the large practice set: what failed for memory, what was slower, what phases held, what a task cost."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cuda_agent_backend.bench.admission import OWN_CONTEXTS
from cuda_agent_backend.bench.figures import MEASURED, TaskFigures, geomean, speedup
from cuda_agent_backend.bench.memory import peak_of
from cuda_agent_backend.bench.results import lacked_memory, search_was_cut
from sandbox.memory.footprint import CONTEXT_BYTES, CONTEXTS, MORE_BYTES, MOST_TIMES, PHASES
from sandbox.verdict import OUT_OF_MEMORY

TIMES, MORE = 2.5, 2_000_000_000
"""A phase may hold so many times a task's inputs, weights and outputs, and so many bytes more."""
CONTEXTS_OF = {"search": CONTEXTS + OWN_CONTEXTS, "measure": 1}
"""Of each phase of the bench: processes with a context on the device, which is `CONTEXT_BYTES` large."""
BOUND = f"{TIMES} times inputs, weights and outputs and {MORE / 1e9:g} GB more"
CONTEXT = f"contexts of {CONTEXT_BYTES / (1 << 30):.2f} GiB"
BOUNDS = {
    "search": f"{BOUND}, inputs and weights of the process that asks, and {CONTEXTS_OF['search']} {CONTEXT}",
    "measure": f"{BOUND}, and {CONTEXTS_OF['measure']} of the {CONTEXT}",
}
OF_LEASES = "what the contract allows for the region, or its graph, without contexts"
CONTRACT = f"{MOST_TIMES} times inputs, weights and outputs and {MORE_BYTES >> 30} GiB more, without contexts"
"""The strict one, whoever holds it, and whatever eager mode takes by itself: a phase may be within its bound and beyond
this."""
TOLD = re.compile(r"needs [\d,]+ bytes of the device's memory[-:,\d\w ]*")
"""What `NoMemory` says."""

Facts = dict[str, Any]


def table(
    results: Sequence[Mapping[str, Any]],
    figures: Sequence[TaskFigures],
    runs: Sequence[Sequence[Mapping[str, Any]]],
) -> Facts:
    """The rows. results: of tasks, in the order of the figures. runs: of each folder (`run_times.of`)."""
    timed = [task for task in figures if task.timed]
    groups = dict.fromkeys(task.group for task in figures)
    seconds = math.fsum(run["seconds"] for folder in runs for run in folder)
    memory = held(results)
    return {
        "tasks": len(figures),
        "correct": sum(task.correct for task in figures),
        "failed_for_memory": [facts["name"] for facts in results if ran_out(facts)],
        "not_searched_for_memory": [facts["name"] for facts in results if says_why(facts)],
        "search_cut": [facts["name"] for facts in results if search_was_cut(facts)],
        "slower_than_inductor": [
            task.name for task in timed if not task.fallback and task.over["inductor"].high < 1
        ],
        "geomean_over_inductor": {
            "all": geomean(speedup(task, "inductor") for task in figures),
            **{
                group: geomean(speedup(t, "inductor") for t in figures if t.group == group)
                for group in groups
            },
        },
        "memory": memory,
        "beyond_contract": beyond_contract(memory),
        "card_seconds_for_each_task": seconds / len(figures) if figures else None,
    }


def ran_out(facts: Mapping[str, Any]) -> bool:
    """Whether the device's memory was full in some part of a task's run, or for want of it there is no result."""
    others = OUT_OF_MEMORY.search(TOLD.sub("", json.dumps(facts)))
    return bool(others) or (facts["status"] != MEASURED and lacked_memory(facts))


def says_why(facts: Mapping[str, Any]) -> bool:
    """Whether a task was measured, and says that and why some of it could not be searched."""
    return not ran_out(facts) and bool(TOLD.search(json.dumps(facts)))


def held(results: Sequence[Mapping[str, Any]]) -> Facts:
    """By phase: of how many tasks the peak is known, which were beyond their bound, and the worst peak over it.

    Of the bench's own phases it is what all their processes held, of a search's and of acceptance what their tensors
    took: beyond_lease, more than was asked for. of_contract: the same by `CONTRACT`.
    """
    return {**_of_processes(results), **_of_leases(results)}


def beyond_contract(memory: Mapping[str, Any]) -> dict[str, list[str]]:
    """The phases in which a task held more than `CONTRACT` says, by task. memory: see `held`."""
    found: dict[str, list[str]] = {}
    for phase, row in memory.items():
        for name in row["of_contract"]["beyond"]:
            found.setdefault(name, []).append(phase)
    return dict(sorted(found.items()))


def _of_contract(peaks: Iterable[tuple[Mapping[str, Any], float | None]]) -> Facts:
    """peaks: a task's facts, and the bytes that one of its phases held without contexts, where they are known."""
    shares = {
        str(facts["name"]): peak / (MOST_TIMES * tensors + MORE_BYTES)
        for facts, peak in peaks
        if peak is not None and (tensors := _tensors(facts))
    }
    return {
        "known": len(shares),
        "beyond": sorted(name for name, share in shares.items() if share > 1),
        "worst": max(shares.values(), default=None),
        "bound": CONTRACT,
    }


def _of_leases(results: Sequence[Mapping[str, Any]]) -> Facts:
    rows: Facts = {}
    for phase in PHASES:
        notes = {
            str(facts["name"]): note
            for facts in results
            if (note := ((facts.get("search") or {}).get("leases") or {}).get(phase))
            and note.get("known")
        }
        rows[phase] = {
            "known": len(notes),
            "beyond": sorted(name for name, note in notes.items() if note["of_allowed"] > 1),
            "beyond_lease": sorted(
                name for name, note in notes.items() if note.get("of_asked", 0) > 1
            ),
            "worst": max((note["of_allowed"] for note in notes.values()), default=None),
            "bound": OF_LEASES,
            "of_contract": _of_contract(
                (facts, notes.get(str(facts["name"]), {}).get("peak")) for facts in results
            ),
        }
    return rows


def _of_processes(results: Sequence[Mapping[str, Any]]) -> Facts:
    rows: Facts = {}
    for phase in CONTEXTS_OF:
        over = {
            str(facts["name"]): peak / bound
            for facts in results
            if (peak := _peak(facts, phase)) is not None
            and (bound := _bound(facts, phase)) is not None
        }
        rows[phase] = {
            "known": len(over),
            "beyond": sorted(name for name, share in over.items() if share > 1),
            "worst": max(over.values(), default=None),
            "bound": BOUNDS[phase],
            "of_contract": _of_contract((facts, _tensors_held(facts, phase)) for facts in results),
        }
    return rows


def _peak(facts: Mapping[str, Any], phase: str) -> int | None:
    return peak_of((facts.get(phase) or {}).get("memory"))


def _tensors_held(facts: Mapping[str, Any], phase: str) -> float | None:
    """A phase's peak without the contexts of its processes."""
    peak = _peak(facts, phase)
    return None if peak is None else max(0, peak - CONTEXTS_OF[phase] * CONTEXT_BYTES)


def _tensors(facts: Mapping[str, Any]) -> int | None:
    """Bytes of a task's inputs, weights and outputs, where it was measured."""
    return (facts.get("measure") or {}).get("floor", {}).get("tensors") or None


def _bound(facts: Mapping[str, Any], phase: str) -> float | None:
    tensors = _tensors(facts)
    if not tensors:
        return None
    own = facts.get("given", 0) if phase == "search" else 0
    return float(TIMES * tensors + MORE + own + CONTEXTS_OF[phase] * CONTEXT_BYTES)
