"""From what compiler and survey say of a candidate to its row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cuda_agent_backend.agent.tools.kernel_tools import SKETCHED, not_built
from cuda_agent_backend.agent.tools.outcomes import describe, output_names
from sandbox.compile.candidate import Compiled
from sandbox.failures import Failure, why_passing
from sandbox.judge.survey import Found
from sandbox.verdict import Correct
from trainer.world.rows import Row
from trainer.world.schedules import Variant


def row_of(variant: Variant, built: Compiled | Failure, found: Found) -> Row | None:
    """The row; None where what went wrong may pass, so that nothing is known of the candidate."""
    made = variant.candidate
    about: dict[str, Any] = {
        "candidate": variant.name,
        "schedules": tuple(schedule.to_json() for schedule in variant.schedules),
        "rank": variant.rank,
        "proposed": variant.proposed,
        "check_s": found.check_s,
        "time_s": found.time_s,
    }
    outcome = found.outcome
    if why_passing(built) or why_passing(outcome):
        return None
    if not isinstance(built, Compiled):
        answer = json.dumps(not_built(built, made, SKETCHED), sort_keys=True)
        return Row(**about, status=built.status, reason=built.reason, answer=answer)
    about |= kernel_facts(built.facts) | {"compile_s": built.seconds}
    if not isinstance(outcome, Correct):
        answer = json.dumps(describe(outcome, output_names(made)), sort_keys=True)
        return Row(**about, status=outcome.status, reason=outcome.reason, answer=answer)
    return Row(
        **about,
        status=outcome.status,
        error_ratio=outcome.accuracy.error_ratio,
        seconds=tuple(found.seconds),
        baseline=tuple(found.baseline),
        retimed=tuple(found.retimed),
        retimed_baseline=tuple(found.retimed_baseline),
    )


def kernel_facts(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of all kernels of a candidate: the columns of a row."""
    kernels = list(facts.values())

    def values(*names: str) -> list[float]:
        return [sum(float(k[n]) for n in names if n in k) for k in kernels if names[0] in k]

    registers, spills = values("registers"), values("spill_store_bytes", "spill_load_bytes")
    shared, occupancy = values("shared_bytes"), values("occupancy")
    return {
        "facts": json.dumps(facts, sort_keys=True),
        "kernels": len(kernels),
        "registers": int(max(registers)) if registers else None,
        "spill_bytes": int(sum(spills)) if spills else None,
        "shared_bytes": int(max(shared)) if shared else None,
        "occupancy": min(occupancy) if occupancy else None,
    }
