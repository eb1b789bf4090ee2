"""A process that measures a graph takes over what Inductor has compiled for the user, and writes nothing there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from cuda_agent_backend.acceptance.process import WRITTEN_S, _take_headers


def header(folder: Path, name: str, age_s: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.h").write_text("#include <x>")
    made = folder / f"{name}.h.gch"
    made.write_bytes(name.encode())
    os.utime(made, (time.time() - age_s,) * 2)


def test_whole_headers_are_copied_and_those_being_written_are_not(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    header(shared / "ab", "whole", 2 * WRITTEN_S)
    header(shared / "cd", "half", 0.0)
    (shared / "ab" / "alone.h.gch").write_bytes(b"without its source")
    _take_headers(shared, own)
    assert sorted(f.name for f in own.rglob("*") if f.is_file()) == ["whole.h", "whole.h.gch"]


def test_a_user_without_any_has_none_to_give(tmp_path: Path) -> None:
    _take_headers(tmp_path / "shared", tmp_path / "own")
    assert not (tmp_path / "own").exists()
