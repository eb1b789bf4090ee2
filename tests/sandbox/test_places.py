"""Where an output is wrong: elements by themselves, the worst one, and none where all are a little off."""

from __future__ import annotations

import math

import pytest
import torch

from sandbox.accuracy import rule as compare_module
from sandbox.accuracy.misses import SHOWN, Place, misses
from sandbox.accuracy.pieces import Piece
from sandbox.accuracy.rule import compare


def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    oracle = torch.linspace(-3, 5, 6 * 50, dtype=torch.float64).reshape(6, 50).sin()
    eager = oracle.float()
    return eager.clone(), eager, oracle


def test_wrong_elements_are_counted_and_the_first_are_shown_in_order() -> None:
    found, eager, oracle = drawn()
    found[2, 48:] = 7.0
    found[5] += 1e-3
    made = misses(found, eager, Piece(0, oracle))
    assert (made.count, made.elements) == (52, 300)
    assert [p.index for p in made.first] == [(2, 48), (2, 49), (5, 0), (5, 1)]
    assert len(made.first) == SHOWN
    assert made.first[0] == Place((2, 48), "7", f"{oracle[2, 48].item():.7g}")
    assert made.worst is not None and made.worst.index in {(2, 48), (2, 49)}


def test_what_is_not_finite_counts_where_eager_is_another() -> None:
    found, eager, oracle = drawn()
    eager[0, :3] = oracle[0, :3] = torch.tensor([math.inf, math.nan, -math.inf])
    found[0, :3] = torch.tensor([math.inf, math.nan, math.inf])
    found[4, 4] = math.nan
    made = misses(found, eager, Piece(0, oracle))
    assert [p.index for p in made.first] == [(0, 2), (4, 4)]
    assert made.first[0].found == "inf" and made.first[0].wanted == "-inf"
    assert made.count == 2


def test_where_all_are_a_little_off_none_is_wrong_by_itself() -> None:
    found, eager, oracle = drawn()
    found = (oracle * (1 + 3e-7)).float()
    made = misses(found, eager, Piece(0, oracle))
    assert made.count == 0 and made.worst is not None


def test_integers_and_booleans_are_compared_with_eager() -> None:
    eager = torch.arange(12).reshape(3, 4)
    found = eager.clone()
    found[1, 2] = 99
    made = misses(found, eager, Piece(0, eager))
    assert made.count == 1 and made.first == (Place((1, 2), "99", "6"),)
    assert misses(eager > 3, eager > 2, Piece(0, eager > 2)).first == (
        Place((0, 3), "False", "True"),
    )


def test_a_scalar_and_an_empty_output_have_places_too() -> None:
    one = torch.tensor(2.0)
    assert misses(one + 1, one, Piece(0, one.double())).first == (Place((), "3", "2"),)
    empty = torch.empty(0, 3)
    assert misses(empty, empty, Piece(0, empty.double())).count == 0


def test_a_report_says_where_an_output_is_wrong_and_nothing_of_one_that_is_right() -> None:
    found, eager, oracle = drawn()
    spoilt = found.clone()
    spoilt[3, 7] = 100.0
    report = compare([found, spoilt], [eager, eager], [oracle, oracle])
    right, wrong = report.outputs
    assert right.passes and right.misses is None
    assert not wrong.passes and wrong.misses is not None
    assert wrong.misses.first[0].index == (3, 7)
    assert report.to_dict()["outputs"][1]["misses"]["first"][0]["found"] == "100"


def test_a_verdict_stands_where_there_is_no_memory_to_look_for_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory is left")

    monkeypatch.setattr(compare_module, "misses", none_left)
    found, eager, oracle = drawn()
    (report,) = compare([found + 1], [eager], [oracle]).outputs
    assert not report.passes and report.misses is None
