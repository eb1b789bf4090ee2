"""Seeds are many, are there, and connect."""

from __future__ import annotations

import ast
import collections

import pytest

from trainer.synthesis.compose.expected import expected
from trainer.synthesis.compose.rules import RuleComposer, seeds_by_family
from trainer.synthesis.compose.sized import SizedComposer
from trainer.synthesis.compose.task import Composed, NotComposed, Wishes, window_of
from trainer.synthesis.seeds.seed import KINDS
from trainer.synthesis.seeds.torch_seeds import parse, resolve, split_name, torch_seeds
from trainer.synthesis.seeds.transformers_seeds import OPTIONS, layer_seeds

TASKS = 300


@pytest.fixture(scope="module")
def tasks() -> list[Composed]:
    composer = RuleComposer(Wishes.of("cuda"))
    made = [composer.compose(seed, 0) for seed in range(TASKS)]
    return [task for task in made if isinstance(task, Composed)]


def test_there_are_enough_operators_and_layers_of_enough_families() -> None:
    operators, layers = torch_seeds()[0], layer_seeds()[0]
    assert len({split_name(seed)[0] for seed in operators}) >= 180
    assert len({seed.name for seed in layers}) >= 80
    assert len({seed.family for seed in (*operators, *layers)}) >= 40


def test_a_seed_whose_operator_is_missing_is_dropped_with_a_reason() -> None:
    (seed,) = parse("[made up]\nrt | F.no_such_operator | {x}")
    assert resolve(split_name(seed)[0]) is None
    assert seed.kinds == ("rows", "tokens")
    for missing in (*torch_seeds()[1], *layer_seeds()[1]):
        assert missing.reason


def test_every_kind_has_families_to_draw_from() -> None:
    assert set(seeds_by_family()) == set(KINDS)
    assert all(set(seed.options) <= set(OPTIONS) for seed in layer_seeds()[0])


def test_the_same_seed_number_gives_the_same_task(tasks: list[Composed]) -> None:
    again = RuleComposer(Wishes.of("cuda"))
    for task in tasks[:20]:
        assert again.compose(task.provenance["seed"], 0) == task


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sizes_are_reckoned_and_not_measured(device: str) -> None:
    wishes = Wishes.of(device)
    composers = SizedComposer(wishes), SizedComposer(wishes)
    inside = made = 0
    for seed in range(40):
        one, other = (composer.compose(seed, 0) for composer in composers)
        assert one == other
        if not isinstance(one, Composed):
            continue
        made += 1
        assert RuleComposer(wishes).compose(seed, one.provenance["rung"]) == one
        found = expected(one.code, device, one.dtype, one.training)
        least, most = window_of(wishes, one.small)
        inside += found is not None and least <= found.seconds <= most
    assert made >= 30 and inside >= 0.85 * made


def test_tasks_of_a_gpu_fit_in_memory_or_are_not_made() -> None:
    wishes = Wishes.of("cuda")
    composer = SizedComposer(wishes)
    made = [composer.compose(seed, 0) for seed in range(60)]
    tasks = [task for task in made if isinstance(task, Composed)]
    assert len(tasks) >= 40 and wishes.need_bytes is not None
    for task in tasks:
        found = expected(task.code, "cuda", task.dtype, task.training)
        assert found is not None and found.held <= wishes.memory_bytes
        assert found.need(task.dtype, task.training) <= wishes.need_bytes
    assert any("memory" in task.reason for task in made if isinstance(task, NotComposed))


def test_memory_is_reckoned_from_what_lives_at_once() -> None:
    code = """import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1000))
    def forward(self, x):
        first = (x * 2).exp()
        return first.sum(0) + self.weight
def get_inputs():
    return [torch.randn(1000, 1000)]
def get_init_inputs():
    return []
"""
    one, row = 4_000_000, 4_000
    found = expected(code, "cuda", "float32", False)
    assert found is not None
    assert (found.held, found.live, found.made) == (one + row, 2 * one, 2 * one + 2 * row)
    assert found.need("bfloat16", False) > found.need("float32", False) > 2 * one


def test_a_matrix_product_is_reckoned_by_its_arithmetic_and_a_sum_by_its_bytes() -> None:
    code = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {result}
def get_inputs():
    return [torch.randn({size}, {size})]
def get_init_inputs():
    return []
"""

    def seconds(result: str, size: int) -> float:
        found = expected(code.format(result=result, size=size), "cuda", "float32", False)
        assert found is not None
        return found.seconds

    assert 6 < seconds("x @ x", 16384) / seconds("x @ x", 8192) < 10
    assert 3 < seconds("x + 1", 16384) / seconds("x + 1", 8192) < 5
    assert expected("no python (", "cuda", "float32", False) is None


def test_another_rung_changes_sizes_and_no_operator() -> None:
    composer = RuleComposer(Wishes.of("cuda"))
    for seed in range(60):
        one, other = composer.compose(seed, 0), composer.compose(seed, 2)
        if isinstance(one, NotComposed) or isinstance(other, NotComposed):
            continue
        assert one.dtype == other.dtype and one.training == other.training
        if one.source == "torch#1":
            assert one.ops == other.ops


def test_tasks_are_python_in_the_form_that_the_bench_takes(tasks: list[Composed]) -> None:
    for task in tasks:
        names = {getattr(node, "name", "") for node in ast.parse(task.code).body}
        assert {"Model", "get_inputs", "get_init_inputs"} <= names
        assert len(task.ops) == int(task.source.partition("#")[2])


def test_no_family_and_no_number_of_operators_is_most_of_the_set(tasks: list[Composed]) -> None:
    assert len(tasks) > 0.9 * TASKS
    lengths = collections.Counter(len(task.ops) for task in tasks)
    families = collections.Counter(family for task in tasks for family in task.families)
    assert lengths[2] <= 0.4 * len(tasks)
    assert set(lengths) >= {1, 2, 3, 4, 5}
    assert max(families.values()) <= 0.12 * len(tasks)
    assert len(families) >= 40
    assert len({task.dtype for task in tasks}) == 3
    assert 0.1 < sum(task.training for task in tasks) / len(tasks) < 0.3
    assert {"residual", "gate"} <= {part for task in tasks for part in task.pattern.split(", ")}
