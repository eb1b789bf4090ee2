"""What the sandbox found, in words and numbers that a model can act on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sandbox.accuracy.misses import Misses, Place
from sandbox.accuracy.report import AccuracyReport, OutputReport
from sandbox.isolation.head_tail import shortened
from sandbox.timing.decision import SpeedReport
from sandbox.timing.roofline import Achieved

LOG_CHARACTERS = 6000
MOST_ERRORS = 10

HINTS = {
    "normal": "standard normal numbers",
    "uniform": "numbers from 0 to 1",
    "large": "normal numbers times 1000 (50 in bfloat16, 7 and a few times 56 in float16)",
    "small": "normal numbers over 1000",
    "constant": "one number per tensor, so that sums cancel exactly",
    "edges": "NaN, infinities, -0.0, denormals and huge numbers, thinly strewn over half of the rows",
    "zeros": "all zero",
    "masked": "minus infinity up to or from some place of each row, and in all of the first row",
    "offset": "numbers near 1000 (50 in bfloat16, 7 in float16) with a spread of 1: a variance from E[x^2]-E[x]^2 "
    "loses everything",
    "ramp": "numbers that rise along the last dimension with alternating signs",
    "sparse": "zeros but for few large numbers and the last element",
}
"""What the distributions of inputs consist of, told where a candidate is wrong on one."""


def cut(text: str, most: int = LOG_CHARACTERS) -> str:
    """Long output with its middle left out and its size told."""
    return shortened(text, most)


_PLACE = re.compile(
    r"^(?P<file>[\w./-]+?)(?::(?P<a>\d{1,9})(?::\d{1,9})?|\((?P<b>\d{1,9})\)): *"
    r"(?:fatal |catastrophic )?error *(?:#\S+)?: *(?P<what>.*)$",
    re.MULTILINE,
)

_ASSEMBLER = re.compile(
    r"^ptxas \S*?(?P<file>\w+\.ptx), line (?P<line>\d{1,9}); error *: *(?P<what>.*)$", re.MULTILINE
)


def compile_errors(log: str, source: str, name: str) -> list[str]:
    """The compiler's errors as ``name:line: message | that line``, first ones first."""
    lines = source.splitlines()
    found = []
    for match in _PLACE.finditer(log):
        number = int(match["a"] or match["b"])
        mine = match["file"].rsplit("/", 1)[-1].startswith("kernel.")
        place = f"{name if mine else match['file']}:{number}"
        there = mine and 1 <= number <= len(lines)  # the log is not to be believed
        shown = f" | {lines[number - 1].strip()[:160]}" if there else ""
        found.append(f"{place}: {match['what'][:400]}{shown}")
    found += [f"PTX line {m['line']}: {m['what'][:400]}" for m in _ASSEMBLER.finditer(log)]
    return list(dict.fromkeys(found))[:MOST_ERRORS]


def binding(achieved: Achieved) -> str:
    """Which of the machine's two ceilings a time is near, in words."""
    memory, arithmetic = achieved.of_memory, achieved.of_arithmetic
    if max(memory, arithmetic) < 0.5:
        return (
            "neither memory nor float32 arithmetic is half used: look at latency, access widths, "
            "idle processors, spills, the number of steps"
        )
    if arithmetic > memory:
        return f"{arithmetic:.0%} of the float32 rate of a large product: arithmetic binds"
    left = "little is left" if memory > 0.9 else "memory binds"
    return f"{memory:.0%} of what memory moves: {left}"


def rates(achieved: Achieved) -> dict[str, float]:
    """In the units that engineers speak in, and as shares of what the machine was measured to do."""
    return {
        "us": round(achieved.seconds * 1e6, 2),
        "gb_per_s": round(achieved.bytes_per_s * 1e-9, 1),
        "share_of_memory_rate": round(achieved.of_memory, 3),
        "gflop_per_s": round(achieved.operations_per_s * 1e-9, 1),
        "share_of_float32_rate": round(achieved.of_arithmetic, 3),
    }


def speed_of(speed: SpeedReport) -> dict[str, Any]:
    """The speed-up over the faster baseline, and every median in microseconds."""
    over = speed.speedup
    return {
        "speedup": {"median": over.median, "low": over.low, "high": over.high},
        "baseline": speed.baseline,
        "median_us": {name: round(s * 1e6, 2) for name, s in speed.seconds.items()},
    }


def errors_of(report: AccuracyReport, names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The outputs that are wrong, with the errors found and allowed."""
    return [_output(o, names) for o in report.outputs if not o.passes]


def _output(output: OutputReport, names: Sequence[str]) -> dict[str, Any]:
    answer: dict[str, Any] = {"output": output.number, "reason": output.reason}
    if output.number < len(names):
        answer["name"] = names[output.number]
    if output.elements:
        answer |= {
            "rms_error": _number(output.rms_error),
            "rms_error_of_eager": _number(output.rms_eager),
            "rms_error_allowed": _number(output.rms_allowed),
            "largest_error": _number(output.max_error),
            "largest_error_allowed": _number(output.max_allowed),
            "error_ratio": _number(output.error_ratio),
        }
    return answer | (_where(output.misses) if output.misses is not None else {})


def _where(misses: Misses) -> dict[str, Any]:
    """How many elements are wrong by themselves, and which; none may be, where all are a little too far off."""
    answer: dict[str, Any] = {"wrong_elements": f"{misses.count} of {misses.elements}"}
    if misses.first:
        answer["first_wrong"] = [_place(p) for p in misses.first]
    if misses.worst is not None:
        answer["worst"] = _place(misses.worst)
    return answer


def _place(place: Place) -> str:
    return f"{list(place.index)}: {place.found} instead of {place.wanted}"


def _number(value: float) -> float | str:
    """Four digits; JSON has no infinity."""
    return float(f"{value:.4g}") if math.isfinite(value) and value < 1e300 else "infinite"


def distribution_hint(where: str) -> str:
    """What the inputs were, from the place that a `Wrong` names; empty where it is not known."""
    return HINTS.get(where.partition(" ")[0], "")


def facts_in_words(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What stands out in the facts of kernels: spills, stack, few warps. Empty where all is well."""
    said = []
    for name, fact in facts.items():
        spilt = int(fact.get("spill_store_bytes", 0)) + int(fact.get("spill_load_bytes", 0))
        if spilt:
            said.append(
                f"{name} spills {spilt} bytes of registers to memory: fewer values in flight, smaller "
                "tiles, or fewer threads a block (__launch_bounds__)"
            )
        elif int(fact.get("stack_bytes", 0)):
            said.append(
                f"{name} uses {fact['stack_bytes']} bytes of stack: an array with an index not known in time"
            )
        if float(fact.get("occupancy", 1.0)) < 0.25:
            said.append(
                f"{name} fills {float(fact['occupancy']):.0%} of an SM's threads, limited by {fact.get('limited_by')}"
            )
        if fact.get("blocks_per_sm") == 0:
            said.append(
                f"{name} does not fit on an SM at all: too much shared memory or too many registers"
            )
    return said
