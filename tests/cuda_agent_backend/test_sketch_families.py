"""Which sketch a kernel is of, by its parameters: all are told apart, also in labels that were kept."""

from __future__ import annotations

import pytest

from cuda_agent_backend.codegen.ir.parameters import meanings
from cuda_agent_backend.codegen.registry import FAMILIES, family_of


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_every_sketch_without_a_name_is_known_by_its_parameters(target: str) -> None:
    for family in FAMILIES[target]:
        if not family.is_named:
            assert family_of(dict.fromkeys(meanings(family.params), 1)) == family.name


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ({"sketch": "row", "keys": 4}, "row"),
        ({"flight": 8, "scatter": "global", "test": 1, "threads": 256, "vector": 1}, "scatter"),
        ({"flight": 8, "scatter": "shared", "threads": 512, "tile": 32}, "scatter"),
        ({"kept": 1, "ranks": 8, "rows": 2, "splits": 4, "threads": 512, "tile": 64}, "recurrent layers"),
        ({"keys": 64, "rows": 64, "warp": 16}, "attention"),
        ({"each": 5, "rewrite": "layouts", "team": 32}, "sort"),
    ],
)  # fmt: skip
def test_kept_schedules_say_their_sketch(kernel: dict[str, object], name: str) -> None:
    assert family_of(kernel) == name
