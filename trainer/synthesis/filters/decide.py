"""Which tasks stay: a decision on measured facts, one filter after another. Tolerances are our own choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

INDISTINGUISHABLE = 1e-3
"""Results that differ by less, relative to their size, are the same for other inputs."""
INDEPENDENT = 1e-5
"""Results that a changed weight moves by less do not depend on it."""
STOCHASTIC = 1e-2
"""Two runs on the same inputs may differ by the order of sums, and no more."""
AGREE = {"float32": 1e-3, "float64": 1e-6}
AGREE_HALF = 0.04
SATURATED = 0.9
"""Of a result's elements, so many are one and the same number."""

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Dropped:
    """filter: which one, as the report counts it."""

    filter: str
    reason: str


@dataclass(frozen=True)
class Claim:
    """What a row says of its task."""

    ops: tuple[str, ...]
    dtype: str
    exempt: tuple[str, ...] = ()


def why_dropped(claim: Claim, facts: Facts, whole: bool = True) -> Dropped | None:
    """The first filter that a task does not pass, of those whose facts are there; None if there is none.

    whole: all facts have to be there then. Raises KeyError where one is not: only a task that is dropped may lack some.
    """
    lacking: KeyError | None = None
    for name, decide in FILTERS.items():
        try:
            reason = decide(claim, facts)
        except KeyError as error:
            lacking = lacking or error
            continue
        if reason:
            return Dropped(name, reason)
    if lacking is not None and whole:
        raise lacking
    return None


def _runs(claim: Claim, facts: Facts) -> str:
    if "failed" not in facts:
        return ""
    return f"{facts.get('stage')}: {facts['failed']}"


def _in_window(claim: Claim, facts: Facts) -> str:
    if facts["in_window"]:
        return ""
    return f"eager takes {facts['quick_s'] * 1e3:.3g} ms"


def _finite(claim: Claim, facts: Facts) -> str:
    if not facts["outputs"]["finite"]:
        return "a result is not finite"
    return "" if facts.get("slopes", facts["outputs"])["finite"] else "a gradient is not finite"


def _deterministic(claim: Claim, facts: Facts) -> str:
    if facts["random"]:
        return f"it draws: {', '.join(facts['random'])}"
    if facts["again"] > STOCHASTIC:
        return f"two runs on the same inputs differ by {facts['again']:.2g}"
    return ""


def _varied(claim: Claim, facts: Facts) -> str:
    outputs = facts["outputs"]
    if outputs["constant"]:
        return "its results are constant"
    if outputs["common"] > SATURATED:
        return f"{outputs['common']:.0%} of a result are one number"
    if facts.get("slopes", outputs)["constant"]:
        return "its gradients are constant"
    return ""


def _distinguishable(claim: Claim, facts: Facts) -> str:
    if facts["other_inputs"] >= INDISTINGUISHABLE:
        return ""
    return f"results for other inputs differ by {facts['other_inputs']:.2g} only"


def _by_inputs(claim: Claim, facts: Facts) -> str:
    without = [str(n) for n, found in enumerate(facts["by_input"]) if found < INDEPENDENT]
    return f"results do not depend on input {', '.join(without)}" if without else ""


def _by_weights(claim: Claim, facts: Facts) -> str:
    without = [
        name
        for name, found in facts["by_weight"].items()
        if found < INDEPENDENT and not name.endswith(claim.exempt or ("\0",))
    ]
    return f"results do not depend on {', '.join(without[:3])}" if without else ""


def _agrees(claim: Claim, facts: Facts) -> str:
    if facts["error"] <= AGREE.get(claim.dtype, AGREE_HALF):
        return ""
    return f"compiled and eager differ by {facts['error']:.2g}"


def _uses_operators(claim: Claim, facts: Facts) -> str:
    unused = unused_operators(claim.ops, facts["used"])
    return f"declared and not used: {', '.join(unused)}" if unused else ""


FILTERS: dict[str, Callable[[Claim, Facts], str]] = {
    "does not run": _runs,
    "time outside of the window": _in_window,
    "not finite": _finite,
    "stochastic": _deterministic,
    "constant or saturated": _varied,
    "indistinguishable": _distinguishable,
    "independent of an input": _by_inputs,
    "independent of a weight": _by_weights,
    "compiled differs from eager": _agrees,
    "unused operator": _uses_operators,
}
"""In the order in which facts are gathered: a task that fails one may lack the facts of the next."""


def unused_operators(ops: Sequence[str], used: Mapping[str, int]) -> list[str]:
    """The declared operators that occur less often among what results are computed from.

    A layer of transformers may break the graph, whose parts then do not know it: it is used where anything is, and the
    filter of weights says whether all of it is.
    """
    wanted = Counter(last_part(op) for op in ops if not (used and op.startswith("transformers.")))
    return [name for name, count in wanted.items() if _times_used(name, used) < count]


def last_part(op: str) -> str:
    """``gelu`` of ``torch.nn.functional.gelu``, in the form that a graph has it."""
    return ALIASES.get(op.rpartition(".")[2], op.rpartition(".")[2])


ALIASES: dict[str, str] = {"logsigmoid": "log_sigmoid"}
"""Operators that a graph knows by another name."""


def _times_used(name: str, used: Mapping[str, int]) -> int:
    return sum(count for key, count in used.items() if key == name or key.endswith(f"_{name}"))
