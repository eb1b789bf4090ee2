"""Torch's global flags: each is read, set, left as it was, and part of a key where somebody touched it."""

from __future__ import annotations

from operator import attrgetter

import pytest
import torch

from cuda_agent_backend.runtime import machine
from sandbox.task import flags

OTHER = {"highest": "high", "high": "highest", "none": "bf16", True: False, False: True}


@pytest.mark.parametrize("name", flags.current())
def test_each_flag_is_set_within_a_block_and_as_before_behind_it(name: str) -> None:
    before = flags.current()
    other = {name: OTHER[before[name]]}
    if name == "deterministic_warn_only":  # torch forgets it where determinism is off
        other["deterministic"] = True
    with flags.applied(other):
        assert flags.current() == before | other
    assert flags.current() == before


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(KeyError, match="speed"):
        flags.apply({"speed": True})


def test_what_is_refused_within_a_block_leaves_nothing_behind() -> None:
    before = flags.current()
    with (
        pytest.raises(KeyError, match="speed"),
        flags.applied({"cudnn_benchmark": True, "speed": 1}),
    ):
        pass
    try:
        assert flags.current() == before
    finally:
        flags.apply(before)


def test_defaults_are_as_torch_starts() -> None:
    assert {name: flags.current()[name] for name in flags.DEFAULTS} == flags.DEFAULTS


@pytest.mark.parametrize("name", flags.DEFAULTS)
def test_a_flag_that_somebody_touched_is_part_of_a_key_and_travels(name: str) -> None:
    usual, other = machine.precision_flags(), {name: OTHER[flags.DEFAULTS[name]]}
    assert name not in usual
    with flags.applied(other):
        assert machine.precision_flags() == usual | other
        travels = machine.all_flags()
    machine.apply_flags(travels)
    try:
        assert flags.current()[name] == other[name]
    finally:
        flags.apply(flags.DEFAULTS)


NEWER = {
    "cuda.matmul.fp32_precision": "tf32",
    "cudnn.conv.fp32_precision": "ieee",
    "cudnn.rnn.fp32_precision": "ieee",
    "mkldnn.matmul.fp32_precision": "bf16",
}


@pytest.mark.parametrize("name", NEWER)
def test_precision_set_the_newer_way_travels(name: str) -> None:
    """Where one is set that the older flags cannot tell torch refuses to read those, so all go by the newer ones."""
    before = flags.current()
    assert not {*before} & {*flags.FLOAT32}
    owner, _, attribute = name.rpartition(".")
    setattr(attrgetter(owner)(torch.backends), attribute, NEWER[name])
    try:
        found, key = flags.current(), machine.precision_flags()
        assert found[name] == key[name] == NEWER[name]
        assert {*found} > {*flags.FLOAT32} and "float32_matmul_precision" not in found
        travels = machine.all_flags()
        flags.apply(before)
        assert flags.current() == before
        machine.apply_flags(travels)
        assert flags.current() == found
    finally:
        flags.apply(before)


def test_tf32_is_allowed_by_either_way() -> None:
    older = {"float32_matmul_precision": "highest", "cudnn_allow_tf32": False}
    with flags.applied(older):
        assert flags.tf32_operators() == ()
        with flags.applied({"float32_matmul_precision": "high"}):
            assert flags.tf32_operators() == ("matmul",)
        with flags.applied({"cudnn_allow_tf32": True}):
            assert flags.tf32_operators() == ("conv", "rnn")
        for name, operator in zip(flags.FLOAT32, ("matmul", "conv", "rnn"), strict=False):
            with flags.applied({name: "tf32"}):
                assert flags.tf32_operators() == (operator,)
        assert flags.tf32_operators() == ()


def test_a_user_of_cudnns_own_measurements_is_compared_with_them() -> None:
    """It is a key of its own: without them a kernel may be faster than the baseline, and not with them."""
    before = machine.precision_flags()
    with torch.backends.cudnn.flags(benchmark=True, allow_tf32=None, fp32_precision=None):
        assert machine.precision_flags() != before


def test_flags_that_torch_has_frozen_are_set_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who imports the utilities of `torch.testing` freezes them for the whole process."""
    of_torch = torch.backends.disable_global_flags.__globals__
    monkeypatch.setitem(of_torch, "__allow_nonbracketed_mutation_flag", False)
    before = torch.backends.cudnn.allow_tf32
    with flags.applied({"cudnn_allow_tf32": not before}):
        assert torch.backends.cudnn.allow_tf32 is not before
    assert torch.backends.cudnn.allow_tf32 is before
    with pytest.raises(RuntimeError, match="disable_global_flags"):
        torch.backends.cudnn.allow_tf32 = not before
