"""Messages of the agent's protocol as the words that the small policy reads: what it can act on, and nothing else.

A schedule that `look` proposes has a number, and so has a candidate, in the order in which they came; the policy names
them by these. What is not understood is left out, never an error: answers come from many tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent_backend.agent.policies.trained.numbers import (
    amount_word,
    share_word,
    size_words,
    speed_word,
    time_word,
)
from cuda_agent_backend.agent.policies.trained.vocabulary import (
    MOST_CANDIDATES,
    MOST_KERNELS,
    MOST_REFERENCES,
    MOST_SCHEDULES,
)
from cuda_agent_backend.agent.protocol import CUT_OFF, OUT_OF_TIME, Message

MOST_TASK_WORDS = 400
MOST_NEIGHBOURS = 4
UNTOLD = 10
"""Judgements that a policy takes where its first message names none, as in a search that has seconds."""
MOST_FACTS = 4
"""Kernels of a candidate whose facts are told."""
BUDGET = re.compile(r"^Budget: (\d{1,9}) judgements?\b", re.MULTILINE)
_TASK = re.compile(r"^\{.*\}$", re.MULTILINE)
FACTS = (
    "registers",
    "spill_store_bytes",
    "shared_bytes",
    "blocks_per_sm",
)

Object = dict[str, Any]


@dataclass
class Known:
    """What a conversation has named so far. schedules, space: as the last `look` had them. candidates: by number."""

    schedules: list[list[Object]] = field(default_factory=list)
    space: list[dict[str, list[Any]]] = field(default_factory=list)
    candidates: list[str] = field(default_factory=list)

    def number_of(self, candidate: str) -> str:
        """The word of a candidate, which is new if it was never named; "" where no word is left."""
        if candidate not in self.candidates:
            if len(self.candidates) >= MOST_CANDIDATES:
                return ""
            self.candidates.append(candidate)
        return f"<c:{self.candidates.index(candidate)}>"


def first_words(content: str) -> list[str]:
    """The task and the budget, from the message that an episode begins with; see `UNTOLD`."""
    told = told_budget(content)
    found = ["<task>", "<budget>", amount_word(UNTOLD if told is None else told)]
    text = _TASK.search(content)
    task = _object(text[0]) if text else {}
    made = _task_words(task) if task else ["<cut>"]
    return found + made[:MOST_TASK_WORDS] + (["<cut>"] if len(made) > MOST_TASK_WORDS else [])


def told_budget(content: str) -> int | None:
    """The judgements that the message an episode begins with allows; None where it names none."""
    told = BUDGET.search(content)
    return int(told[1]) if told else None


def user_words(content: str) -> list[str]:
    """A later message of the environment that answers no call."""
    return ["<user>", {OUT_OF_TIME: "<over>", CUT_OFF: "<cutoff>"}.get(content, "<said>")]


def answer_words(message: Message, known: Known) -> list[str]:
    """A tool's answer; ``known`` takes in what it names."""
    answer, tool = _object(message["content"]), str(message.get("name", ""))
    found = ["<tool>", f"<{tool}>", "<ok>" if answer.get("ok") else "<error>"]
    if tool == "look" and answer.get("ok"):
        return found + _look_words(answer, known)
    if isinstance(answer.get("candidate"), str):
        found.append(known.number_of(answer["candidate"]))
    if isinstance(answer.get("status"), str):
        found.append(f"status:{answer['status']}")
    if "ended" in answer:
        found.append("status:ended")
    if "reward" in answer:
        found.append(f"reward:{int(answer['reward'] or 0)}")
    if isinstance(answer.get("speedup"), dict):
        found += [speed_word(answer["speedup"].get(name)) for name in ("median", "low")]
    if isinstance(answer.get("achieved"), dict):
        rates = ("share_of_memory_rate", "share_of_float32_rate")
        found += [share_word(answer["achieved"].get(name)) for name in rates]
    if tool in ("sketch", "inspect"):
        found += _fact_words(answer.get("facts") or answer.get("kernels"))
    return [word for word in found if word]


def schedule_words(schedule: Sequence[Object], without: frozenset[tuple[int, str]]) -> list[str]:
    """A schedule's parameters but for those ``without``: for each kernel its number, then names and values."""
    found = []
    for number, kernel in enumerate(schedule[:MOST_KERNELS]):
        pairs = [(n, v) for n, v in sorted(kernel.items()) if (number, n) not in without]
        found += [f"k:{number}"] if pairs else []
        found += [word for name, value in pairs for word in (f"p:{name}", value_word(value))]
    return found


def value_word(value: object) -> str:
    """A parameter's value."""
    return f"v:{value}"


def _look_words(answer: Object, known: Known) -> list[str]:
    times = ("eager_us", "inductor_us", "overhead_us", "floor_us")
    found = [*(time_word(answer.get(name)) for name in times), speed_word(answer.get("room"))]
    found.append(f"w:{answer.get('sketch')}")
    given = answer.get("schedules")
    known.schedules = _schedules(given)[:MOST_SCHEDULES] if isinstance(given, list) else []
    known.space = _space(answer.get("space"))
    if not known.schedules:
        return found
    same = _same(known.schedules)
    always = frozenset((number, name) for number, name, _ in same)
    found += ["<all>"]
    found += [word for k, name, v in same for word in (f"k:{k}", f"p:{name}", value_word(v))]
    for number, schedule in enumerate(known.schedules):
        found += [f"<s:{number}>", *schedule_words(schedule, always)]
    found += ["<space>"]
    for number, kernel in enumerate(known.space[:MOST_KERNELS]):
        for name, values in kernel.items():
            found += [f"k:{number}", f"p:{name}", *map(value_word, values)]
    return found + list(_neighbour_words(answer.get("neighbours"), known.schedules))


def _schedules(given: Sequence[Any]) -> list[list[Object]]:
    return [s for s in given if isinstance(s, list) and all(isinstance(k, dict) for k in s)]


def _same(schedules: Sequence[Sequence[Object]]) -> list[tuple[int, str, Any]]:
    """Kernel, name and value of what all schedules share."""
    pairs = [
        {(number, name, value) for number, kernel in enumerate(s) for name, value in kernel.items()}
        for s in schedules
    ]
    return sorted(set.intersection(*pairs), key=str) if len(pairs) > 1 else []


def _space(given: Any) -> list[dict[str, list[Any]]]:
    """The values that parameters may have, by kernel, all kinds in one; those with one value only are left out."""
    merged: list[dict[str, list[Any]]] = []
    for kind in given if isinstance(given, list) else ():
        for number, kernel in enumerate(kind):
            while len(merged) <= number:
                merged.append({})
            for name, values in kernel.items():
                old = merged[number].get(name, [])
                merged[number][name] = old + [value for value in values if value not in old]
    return [{n: v for n, v in sorted(kernel.items()) if len(v) > 1} for kernel in merged]


def _neighbour_words(given: Any, schedules: Sequence[list[Object]]) -> Iterator[str]:
    """Of kernels that won on like tasks under a schedule proposed here, too: how near, how fast, which."""
    told = [n for n in given if isinstance(n, dict)] if isinstance(given, list) else []
    for neighbour in [n for n in told if n.get("schedule") in schedules][:MOST_NEIGHBOURS]:
        yield "<near>"
        yield share_word(neighbour.get("distance"))
        yield speed_word(neighbour.get("speedup"))
        yield f"<s:{schedules.index(neighbour['schedule'])}>"


def _fact_words(given: Any) -> list[str]:
    kernels = [k for k in given.values() if isinstance(k, dict)] if isinstance(given, dict) else []
    found = []
    for kernel in kernels[:MOST_FACTS]:
        found += ["<facts>", *(amount_word(float(kernel.get(name) or 0)) for name in FACTS)]
        found.append(share_word(kernel.get("occupancy")))
    return found


def _task_words(task: Mapping[str, Any]) -> list[str]:
    found = [f"target:{task.get('target')}"]
    for kind, specs in (("<in>", task.get("inputs", [])), ("<out>", task.get("output_specs", []))):
        for spec in specs:
            shape, stride = spec["shape"], spec["stride"]
            found += [kind, f"dtype:{spec['dtype']}", f"layout:{layout_of(shape, stride)}"]
            found += [word for dimension in shape for word in size_words(dimension)]
    for node in task.get("nodes", []):
        found += ["<op>", f"op:{node['op']}", *_argument_words(list(node["args"].values()))]
    return found


def _argument_words(value: Any) -> list[str]:
    """What a node works on: inputs, nodes before it, and numbers."""
    match value:
        case {"i": int(number)}:
            return [f"i:{min(number, MOST_REFERENCES - 1)}"]
        case {"n": int(number)}:
            return [f"n:{min(number, MOST_REFERENCES - 1)}"]
        case {"n": [int(number), *_]}:
            return [f"n:{min(number, MOST_REFERENCES - 1)}"]
        case bool() | int():
            return [amount_word(abs(int(value)))]
        case list():
            return [word for one in value[:8] for word in _argument_words(one)]
        case dict():
            return [word for one in list(value.values())[:8] for word in _argument_words(one)]
    return []


def layout_of(shape: Sequence[int], stride: Sequence[int]) -> str:
    """How a tensor lies in memory, in one word."""
    wanted, dense = 1, True
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        dense = dense and (size <= 1 or step == wanted)
        wanted *= max(1, size)
    if dense:
        return "contiguous"
    pairs = sorted((step, size) for size, step in zip(shape, stride, strict=True) if size > 1)
    if any(step == 0 for step, _ in pairs):
        return "expanded"
    wanted = 1
    for step, size in pairs:
        if step != wanted:
            return "strided"
        wanted *= size
    return "permuted"


def _object(text: Any) -> Object:
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
