"""Fingerprints of tensors: what changes them, and what does not."""

from __future__ import annotations

import pytest
import torch

from sandbox.accuracy import fingerprint
from sandbox.accuracy.fingerprint import fingerprints

SEED = 987654321
DTYPES = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool", "complex128")  # fmt: skip


def drawn(name: str, *shape: int) -> torch.Tensor:
    values = torch.randint(0, 100, shape or (64,), generator=torch.Generator().manual_seed(7))
    return values.to(getattr(torch, name))


@pytest.mark.parametrize("name", DTYPES)
def test_any_element_that_changes_shows_and_so_do_two_that_change_places(name: str) -> None:
    tensor = drawn(name)
    tensor[3], tensor[40] = 1, 0
    known = fingerprints([tensor], SEED)
    assert fingerprints([tensor.clone()], SEED) == known
    assert fingerprints([tensor], SEED + 1) != known
    for place in (0, 31, 63):
        other = tensor.clone()
        other[place] = ~other[place] if name == "bool" else other[place] + 1
        assert fingerprints([other], SEED) != known
    tensor[[3, 40]] = tensor[[40, 3]]
    assert fingerprints([tensor], SEED) != known


def test_zeros_of_either_sign_and_nans_are_told_apart() -> None:
    zero, negative = torch.zeros(4), torch.tensor([0.0, -0.0, 0.0, 0.0])
    assert fingerprints([zero], SEED) != fingerprints([negative], SEED)
    nan = torch.full((4,), float("nan"))
    assert fingerprints([nan], SEED) == fingerprints([nan.clone()], SEED)


@pytest.mark.parametrize("name", ["float64", "complex128", "float32", "float16"])
def test_signs_of_an_even_number_of_elements_show(name: str) -> None:
    """Of eight bytes they would be the highest bit of a word, which odd numbers only take twice."""
    tensor = drawn(name) + 1
    other = tensor.clone()
    other[[3, 40]] *= -1
    assert fingerprints([other], SEED) != fingerprints([tensor], SEED)
    assert fingerprints([-tensor], SEED) != fingerprints([tensor], SEED)


def test_what_lies_between_elements_does_not_count() -> None:
    line = drawn("float32", 4, 16)
    view = line[:, ::2]
    known = fingerprints([view], SEED)
    line[:, 1::2] = 5
    assert fingerprints([view], SEED) == known
    line[2, 4] += 1
    assert fingerprints([view], SEED) != known


def test_expanded_empty_and_scalar_tensors_have_one_each() -> None:
    row = drawn("float32", 8)
    tensors = [
        row.expand(1 << 20, 8),
        torch.empty(0, 3),
        torch.tensor(2.0),
        drawn("int64", 3, 5).t(),
    ]
    known = fingerprints(tensors, SEED)
    assert len(known) == 4 and known[1] == 0
    row[0] += 1
    changed = fingerprints(tensors, SEED)
    assert changed[0] != known[0] and changed[1:] == known[1:]


def test_chunks_are_places_of_one_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = drawn("float32", 100)
    whole = fingerprints([tensor], SEED)
    monkeypatch.setattr(fingerprint, "CHUNK", 7)
    assert fingerprints([tensor], SEED) == whole


@pytest.mark.gpu
def test_a_device_comes_to_the_same_numbers() -> None:
    tensors = [drawn(name, 33, 65) for name in DTYPES]
    on_device = [tensor.cuda() for tensor in tensors]
    assert fingerprints(on_device, SEED) == fingerprints(tensors, SEED)
