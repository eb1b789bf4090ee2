"""The sets of training tasks that the project brings are what their card and the filters say."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.synthesis.compose.rules import RuleComposer
from trainer.synthesis.compose.task import Composed, Wishes
from trainer.synthesis.dataset import parquet
from trainer.synthesis.dataset.rows import split_of
from trainer.synthesis.filters.duplicates import without_numbers
from trainer.synthesis.filters.quotas import FAMILY, TWO_OPERATORS

FOLDER = Path(__file__).parents[2] / "trainer" / "data"
SETS = {"h200": 6000, "cpu": 500}


@cache
def rows_of(name: str) -> list[dict[str, Any]]:
    pq = pytest.importorskip("pyarrow.parquet")
    found: list[dict[str, Any]] = pq.read_table(FOLDER / f"ops-{name}.parquet").to_pylist()
    return found


@pytest.mark.parametrize("name", SETS)
def test_no_two_tasks_are_one(name: str) -> None:
    rows = rows_of(name)
    assert len(rows) == SETS[name]
    keys = (
        lambda row: row["id"],
        lambda row: without_numbers(row["code"]),
        lambda row: (*row["graph_digests"], row["training"]),
    )
    for key in keys:
        assert len(set(map(key, rows))) == len(rows)


@pytest.mark.parametrize("name", SETS)
def test_no_kind_of_task_is_most_of_a_set(name: str) -> None:
    rows = rows_of(name)
    families = Counter(family for row in rows for family in set(row["families"]))
    assert len(families) >= 40 and max(families.values()) <= FAMILY * len(rows)
    assert sum(len(row["ops"]) == 2 for row in rows) <= TWO_OPERATORS * len(rows)
    assert {row["dtype"] for row in rows} == {"float32", "float16", "bfloat16"}
    assert 0.1 < sum(row["training"] for row in rows) / len(rows) < 0.3
    assert all(row["inductor_ms"] > 0 and 0 < row["eager_ms"] < 200 for row in rows)


@pytest.mark.parametrize("name", SETS)
def test_no_task_has_a_neighbour_in_another_split(name: str) -> None:
    rows = rows_of(name)
    assert [row["split"] for row in rows] == [split_of(row["families"]) for row in rows]
    assert {row["split"] for row in rows} == {"train", "validation", "test"}
    assert [row["seed"] for row in rows] == sorted(row["seed"] for row in rows)


def test_a_seed_number_gives_the_task_that_is_in_the_set() -> None:
    rows = rows_of("cpu")
    if torch.__version__ != rows[0]["torch"]:
        pytest.skip(f"its operators are those of torch {rows[0]['torch']}")
    composer = RuleComposer(Wishes.of("cpu"))
    plain = [row for row in rows if not row["data_source"].startswith("transformers")][::20]
    assert len(plain) > 15
    for row in plain:
        made = composer.compose(row["seed"], row["rung"])
        assert isinstance(made, Composed) and made.code == row["code"], row["id"]


def test_the_card_counts_what_is_there() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name, count in SETS.items():
        families = {family for row in rows_of(name) for family in row["families"]}
        assert f"| `{name}` | {count} | {len(families)} |" in card
        assert parquet.dropped(FOLDER / f"ops-{name}.parquet")
