"""Torch's global flags: each is read, set, left as it was, and part of a key where somebody touched it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuda_agent_backend import machine
from sandbox import flags

OTHER = {"highest": "high", "high": "highest", True: False, False: True}


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


def test_defaults_are_as_torch_starts() -> None:
    assert {name: flags.current()[name] for name in flags.DEFAULTS} == flags.DEFAULTS


@pytest.mark.parametrize("name", flags.DEFAULTS)
def test_a_flag_that_somebody_touched_is_part_of_a_key_and_travels(name: str) -> None:
    usual, other = machine.precision_flags(), {name: not flags.DEFAULTS[name]}
    assert name not in usual
    with flags.applied(other):
        assert machine.precision_flags() == usual | other
        travels = machine.all_flags()
    machine.apply_flags(travels)
    try:
        assert flags.current()[name] == other[name]
    finally:
        flags.apply(flags.DEFAULTS)


def test_flags_set_in_two_ways_cannot_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> dict[str, Any]:
        raise RuntimeError("both ways")

    monkeypatch.setattr(flags, "current", unreadable)
    assert machine.precision_flags() == {"unreadable": True}
    with pytest.raises(ValueError, match="two ways"):
        machine.apply_flags(machine.all_flags())


def test_a_user_of_cudnns_own_measurements_is_compared_with_them() -> None:
    """It is a key of its own: without them a kernel may be faster than the baseline, and not with them."""
    before = machine.precision_flags()
    with torch.backends.cudnn.flags(benchmark=True, allow_tf32=None, fp32_precision=None):
        assert machine.precision_flags() != before
