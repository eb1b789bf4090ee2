"""A judge with running workers, shared by the tests of this folder: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.judge import Judge
from sandbox.judge.settings import JudgeSettings, Timeouts

FAST_COMPILE = {"cpp_cache_precompile_headers": False}
"""Saves the building of a precompiled header, which pays only after many compilations."""


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory, native_dir: Path) -> Iterator[Judge]:
    """A judge for cpu with short time-outs."""
    folder = tmp_path_factory.mktemp("judge")
    with Judge(
        JudgeSettings(
            "cpu",
            scratch_dir=folder,
            native_dir=native_dir,
            inductor=FAST_COMPILE,
            timeouts=Timeouts(run=5.0),
        )
    ) as made:
        yield made
