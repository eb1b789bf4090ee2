"""Each kernel family is registered once, and says of its parameters what SKILL.md and a policy need."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from agent_tasks import samples

from cuda_agent_backend import codegen
from cuda_agent_backend.agent.skill.document import skill
from cuda_agent_backend.agent.skill.sketches import explained
from cuda_agent_backend.codegen.api import analyse
from cuda_agent_backend.codegen.covered_task import Analysis
from cuda_agent_backend.codegen.cuda.registry import JOIN_BY_NAME, JOINS, KERNEL_BY_NAME, KERNELS
from cuda_agent_backend.codegen.family import Family
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.parameters import meanings, read
from cuda_agent_backend.codegen.ir.schedule import MAX_PARAMETER, Parameter
from cuda_agent_backend.codegen.registry import FAMILIES, family_of
from cuda_agent_backend.codegen.schedule_space import AS_PROPOSED, SWITCHES

TARGETS = ("cpu", "cuda")
ROOT = Path(codegen.__file__).parent
EVERY = [pytest.param(f, id=f"{t}-{f.name}") for t in TARGETS for f in FAMILIES[t]]
LABELS = {
    "map", "row", "transpose", "crossed", "channels", "direct", "short", "small", "contract", "halo", "phases",
    "contract_reduce", "contract_pool", "contract_gate", "contract_rows", "weighed", "total", "library", "loop",
}  # fmt: skip
"""Values of `sketch` in schedules that caches and trajectories hold. More may come, none may go."""


def declared() -> set[type]:
    """The families in all `family.py` of the targets' folders."""
    found: set[type] = set()
    for target in TARGETS:
        for path in sorted((ROOT / target).rglob("family.py")):
            name = ".".join(
                ("cuda_agent_backend.codegen", *path.relative_to(ROOT).with_suffix("").parts)
            )
            classes = inspect.getmembers(importlib.import_module(name), inspect.isclass)
            own = (one for _, one in classes if one.__module__ == name and issubclass(one, Family))
            found |= {one for one in own if not inspect.isabstract(one) and hasattr(one, "name")}
    return found


def test_every_family_is_registered_once() -> None:
    registered = [type(family) for target in TARGETS for family in FAMILIES[target]]
    assert len(set(registered)) == len(registered)
    assert set(registered) == declared()


@pytest.mark.parametrize("target", TARGETS)
def test_no_two_families_of_a_target_have_one_name(target: str) -> None:
    names = [family.name for family in FAMILIES[target]]
    assert len(set(names)) == len(names)


def test_labels_that_caches_hold_still_have_their_families() -> None:
    named = {family.name for family in FAMILIES["cuda"] if family.is_named}
    assert named >= LABELS
    assert {*KERNEL_BY_NAME, *JOIN_BY_NAME} == {family.name for family in (*KERNELS, *JOINS)}
    assert all(family_of({"sketch": name}) == name for name in LABELS)


@pytest.mark.parametrize("family", EVERY)
def test_every_parameter_says_what_it_means(family: Family[Any]) -> None:
    known = meanings(family.params)
    assert known
    for name, meaning in known.items():
        assert len(meaning.text) > 8 and not meaning.text.endswith("."), (family.name, name)
    facts = {f.name for f in fields(family.params)} - known.keys()
    assert facts <= {"points", "rows", "ordered", "wide", "pairs"}, "a parameter without a meaning"


@pytest.mark.parametrize("target", TARGETS)
def test_skill_speaks_of_every_family(target: str) -> None:
    text = skill(target)
    for family in FAMILIES[target]:
        assert f"**{family.title}**" in text
        assert not family.is_named or f'`"sketch": "{family.name}"`' in text
        assert not family.like or family.like in {other.name for other in FAMILIES[target]}
        for name, meaning in explained(family, target).items():
            assert f"`{name}`: {meaning.text}" in text


def some(family: Family[Any]) -> dict[str, Parameter]:
    """Values for all parameters, each by itself one that can be."""
    chosen = {}
    for name, meaning in meanings(family.params).items():
        free: Parameter = "1x8x16" if meaning.is_word else meaning.least
        chosen[name] = meaning.among[0] if meaning.among else free
    return chosen


@pytest.mark.parametrize("family", EVERY)
def test_wrong_and_unknown_parameters_are_refused_with_a_reason(family: Family[Any]) -> None:
    right = some(family)
    assert family.refusal(right) is None
    assert family.refusal({**right, "sketch": family.name}) is None
    wrong: list[dict[str, Any]] = [{**right, "speed": 11}]
    for name, meaning in meanings(family.params).items():
        values: list[Any] = [None, True, 1.5, 7 if meaning.is_word else "seven"]
        if not meaning.is_word:
            values += [-1, MAX_PARAMETER + 1]
        wrong += [{**right, name: value} for value in values]
    for given in wrong:
        found = family.refusal(given)
        assert isinstance(found, NotCovered) and found.reason, given


def test_what_is_missing_is_named() -> None:
    family = KERNEL_BY_NAME["direct"]
    found = read(family.params, {"threads": 64})
    assert isinstance(found, NotCovered) and "rows" in found.reason


@pytest.mark.parametrize("target", TARGETS)
def test_families_take_what_they_propose(target: str) -> None:
    named = {family.name: family for family in FAMILIES[target] if family.is_named}
    for name, made in samples(target).items():
        analysis = analyse(made.task)
        if not isinstance(analysis, Analysis):
            continue
        for schedule in analysis.schedules():
            for kernel in map(dict, schedule.kernels):
                kernel.pop("rewrite", None)
                own = str(kernel.get("sketch", family_of(kernel)))
                others = (family for family in FAMILIES[target] if family.name == own)
                family = named.get(own) or next(others)
                assert family.refusal(kernel) is None, (name, kernel)


def test_a_search_leaves_alone_what_names_a_way_and_flips_what_is_a_hint() -> None:
    fixed = {"group", "products", "run", "rewrite", "sketch", "square", "width", "warps_k"}
    assert fixed == AS_PROPOSED
    assert {"stream", "once"} == SWITCHES
