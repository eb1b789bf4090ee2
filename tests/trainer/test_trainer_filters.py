"""Filters are decisions on facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.synthesis.compose.rules import RuleComposer
from trainer.synthesis.compose.sized import aim_of, next_rung
from trainer.synthesis.compose.task import Composed, Wishes
from trainer.synthesis.filters.decide import Claim, unused_operators, why_dropped
from trainer.synthesis.filters.duplicates import Known
from trainer.synthesis.filters.quotas import LEAST, Quotas
from trainer.synthesis.filters.similarity import most_alike, programs_in, similarity, tokens_of
from trainer.synthesis.machine import Machine
from trainer.synthesis.one_task import PASSED, Limits, decided
from trainer.synthesis.probe.request import ProbeRequest

CLAIM = Claim(("nn.Linear", "torch.relu"), "float32")
GOOD: dict[str, Any] = {
    "in_window": True,
    "quick_s": 2e-3,
    "outputs": {"finite": True, "constant": False, "common": 0.5},
    "again": 0.0,
    "other_inputs": 1.0,
    "by_input": [1.0],
    "by_weight": {"layer.weight": 0.5},
    "random": [],
    "used": {"linear": 1, "Linear": 1, "relu": 1},
    "error": 1e-7,
    "graphs": ["g"],
    "structures": ["s"],
    "regions": [],
    "left": [],
}
BAD = {
    "does not run": {"failed": "RuntimeError: no", "stage": "compile"},
    "time outside of the window": {"in_window": False},
    "not finite": {"outputs": {"finite": False, "constant": False, "common": 0.1}},
    "stochastic": {"random": ["aten.rand.default"]},
    "constant or saturated": {"outputs": {"finite": True, "constant": False, "common": 0.95}},
    "indistinguishable": {"other_inputs": 1e-5},
    "independent of an input": {"by_input": [1.0, 0.0]},
    "independent of a weight": {"by_weight": {"layer.bias": 0.0}},
    "compiled differs from eager": {"error": 0.1},
    "unused operator": {"used": {"Linear": 1}},
}
MACHINE = Machine({}, {"float32": {}}, 1 << 33, 2)
LIMITS = Limits(60.0, 1 << 30)


def test_a_good_task_passes() -> None:
    assert why_dropped(CLAIM, GOOD) is None


@pytest.mark.parametrize("name", BAD)
def test_a_bad_task_is_dropped_by_the_filter_for_it(name: str) -> None:
    found = why_dropped(CLAIM, {**GOOD, **BAD[name]})
    assert found is not None and found.filter == name and found.reason


def test_filters_are_asked_as_soon_as_their_facts_are_there() -> None:
    early = {"in_window": True, "quick_s": 1.0, "outputs": {"finite": False}}
    found = why_dropped(CLAIM, early, whole=False)
    assert found is not None and found.filter == "not finite"
    assert why_dropped(CLAIM, {**early, "outputs": GOOD["outputs"]}, whole=False) is None
    with pytest.raises(KeyError):
        why_dropped(CLAIM, {**early, "outputs": GOOD["outputs"]})
    # Dropped before the facts of an earlier filter were gathered.
    full = {**early, "outputs": {"finite": True, "constant": True, "common": 1.0}}
    found = why_dropped(CLAIM, full)
    assert found is not None and found.filter == "constant or saturated"


def test_no_family_and_no_number_of_operators_grows_beyond_its_share() -> None:
    quotas = Quotas(400)
    for _ in range(40):
        assert quotas.why_dropped(["a", "b"], ["x", "y", "z"]) is None
        quotas.take(["a", "b"], ["x", "y", "z"])
    found = quotas.why_dropped(["b", "c"], ["x"])
    assert found is not None and "b" in found.reason
    for number in range(160):
        assert quotas.why_dropped([str(number)], ["x", "y"]) is None
        quotas.take([str(number)], ["x", "y"])
    assert quotas.why_dropped(["c"], ["x", "y"]) is not None
    assert quotas.why_dropped(["c"], ["x"]) is None
    assert Quotas(1).why_dropped(["a"], ["x"]) is None and LEAST > 1


def test_a_weight_that_a_law_cancels_is_not_asked_for() -> None:
    facts = {**GOOD, "by_weight": {"layer.k_proj.bias": 0.0}}
    assert why_dropped(Claim(CLAIM.ops, "float32", ("k_proj.bias",)), facts) is None


def test_an_operator_that_is_declared_twice_has_to_be_used_twice() -> None:
    assert unused_operators(["torch.relu", "torch.relu"], {"relu": 1}) == ["relu"]
    assert unused_operators(["transformers.llama.LlamaMLP"], {"linear": 1}) == []
    assert unused_operators(["torch.linalg.vector_norm"], {"linalg_vector_norm": 1}) == []


def test_of_two_alike_the_first_is_kept() -> None:
    known = Known()
    assert known.why_dropped("1", "a", GOOD, False) is None
    exact = known.why_dropped("2", "a", GOOD, False)
    graph = known.why_dropped("3", "b", GOOD, False)
    near = known.why_dropped("4", "c", {**GOOD, "graphs": ["h"]}, False)
    assert [f and f.filter for f in (exact, graph, near)] == [
        "exact duplicate",
        "duplicate by graph",
        "near duplicate",
    ]
    assert known.why_dropped("5", "d", GOOD, True) is None


def test_a_program_with_other_numbers_is_known_whatever_the_compiler_made_of_it() -> None:
    known = Known()
    codes = ("f(x, 8, 'same')", "f(x, -0.5, 'same')", "f(x, 8, 'other')", "f(y, 8, 'same')", "f(")
    found = [
        known.why_dropped(
            str(number), code, {"graphs": [str(number)], "structures": [str(number)]}, False
        )
        for number, code in enumerate(codes)
    ]
    assert [drop and drop.reason for drop in found] == [None, "like 0", None, None, None]


def test_results_and_gradients_are_looked_at_apart() -> None:
    varied = {"finite": True, "constant": False, "common": 0.0}
    saturated = {**GOOD, "outputs": {**varied, "common": 0.95}, "slopes": varied}
    zero = {**GOOD, "slopes": {"finite": True, "constant": True, "common": 1.0}}
    infinite = {**GOOD, "slopes": {**varied, "finite": False}}
    found = [why_dropped(CLAIM, facts) for facts in (saturated, zero, infinite)]
    assert [drop and drop.filter for drop in found] == [
        "constant or saturated",
        "constant or saturated",
        "not finite",
    ]
    assert why_dropped(CLAIM, {**GOOD, "slopes": varied}) is None


def test_a_program_of_an_excluded_folder_is_recognised_under_other_names(tmp_path: Path) -> None:
    made = [RuleComposer(Wishes.of("cpu")).compose(seed, 0) for seed in range(12)]
    tasks = [task for task in made if isinstance(task, Composed) and len(task.ops) > 2]
    renamed = tasks[0].code.replace("x", "value").replace("layer", "part")
    (tmp_path / "one.py").write_text(renamed)
    programs = programs_in([tmp_path])
    assert most_alike(tasks[0].code, programs) is not None
    assert most_alike("class Model:\n    pass\n", programs) is None
    assert tokens_of("not python (") == ()
    assert similarity(("a", "b"), ("a", "b")) == 1.0


def test_a_task_that_is_too_fast_is_made_larger_until_it_is_not() -> None:
    asked: list[ProbeRequest] = []

    def probe(request: ProbeRequest) -> dict[str, Any]:
        asked.append(request)
        return {**GOOD, "in_window": len(asked) > 1, "quick_s": 1e-7, "used": {}}

    wishes = Wishes.of("cpu")
    entry = decided(1, RuleComposer(wishes), probe, wishes, MACHINE, LIMITS)
    assert len(asked) == 2 and asked[0].code != asked[1].code
    assert entry["status"] != PASSED and entry["filter"] == "unused operator"


def test_sizes_go_towards_the_aim() -> None:
    window = (1e-3, 0.1)
    assert window[0] < aim_of(3, window) < window[1]
    assert aim_of(3, window) != aim_of(4, window)
    assert window[0] < aim_of(3, window, short=2.0) < aim_of(3, window)
    assert next_rung(0, 1e-3, 8e-3) == 3
    assert next_rung(2, 8e-3, 1e-3) == -1
    assert next_rung(0, 1.0e-3, 1.1e-3) == 1
