"""What Inductor compiles once is the judge's own: workers get copies, and nothing that they made is taken."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import codecache, config
from torch._inductor.utils import fresh_cache

from sandbox.workers import inductor_store
from sandbox.workers.inductor_store import (
    HEADER,
    PAYS_FROM,
    WRITTEN_S,
    copy_headers,
    give,
    headers_of,
    leave_headers,
    make_header,
    options,
    own_headers,
)


def test_the_places_are_torchs_own_and_to_know_them_imports_no_compiler() -> None:
    program = (
        "import sys; from sandbox.workers.inductor_store import own_cache, own_headers;"
        "print(own_cache(), own_headers(), 'torch._inductor' in sys.modules);"
        "from torch._inductor import codecache;"
        "from torch._inductor.runtime.cache_dir_utils import cache_dir;"
        "print(cache_dir(), codecache._HEADER_DIR, False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    found, torchs = done.stdout.splitlines()
    assert found == torchs


def header(folder: Path, name: str, age_s: float = 2 * WRITTEN_S) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.h").write_text("#include <x>")
    made = folder / f"{name}.h.gch"
    made.write_bytes(name.encode())
    os.utime(made, (time.time() - age_s,) * 2)
    return made


def files(folder: Path) -> list[str]:
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Inductor keeps this process's headers."""
    (tmp_path / "user").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "user"))
    assert own_headers().is_relative_to(tmp_path)
    return own_headers()


def test_whole_headers_are_copied_and_those_being_written_are_not(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    header(shared / "ab", "whole")
    header(shared / "cd", "half", 0.0)
    (shared / "ab" / "alone.h.gch").write_bytes(b"without its source")
    copy_headers(shared, own)
    assert files(own) == ["ab/whole.h", "ab/whole.h.gch"]


def test_a_user_without_any_has_none_to_give(tmp_path: Path) -> None:
    copy_headers(tmp_path / "shared", tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_what_a_worker_changes_in_its_copy_reaches_no_other(user: Path, tmp_path: Path) -> None:
    header(user, "h")
    for name in ("first", "second"):
        give(tmp_path / name)
        found = headers_of(tmp_path / name) / "h.h.gch"
        assert found.read_bytes() == b"h"
        found.write_bytes(b"forged")
    assert (user / "h.h.gch").read_bytes() == b"h"


def test_a_header_that_was_made_is_left_for_the_user_and_replaces_none(tmp_path: Path) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    header(own, "new", 0.0)
    header(own, "known", 0.0)
    header(shared, "known").write_bytes(b"the user's")
    leave_headers(own, shared)
    assert (shared / "new.h.gch").read_bytes() == b"new"
    assert (shared / "known.h.gch").read_bytes() == b"the user's"
    assert files(shared) == ["known.h", "known.h.gch", "new.h", "new.h.gch"]
    copy_headers(shared, tmp_path / "next")
    assert "new.h.gch" in files(tmp_path / "next")


def test_a_header_is_made_only_where_it_pays(user: Path) -> None:
    assert options(0) == {HEADER: False}
    assert options(PAYS_FROM) == {}
    header(user, "there")
    assert options(0) == {}


def test_releases_without_that_option_are_told_nothing(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor_store, "HEADER", "no_such_option")
    assert options(0) == {}


@pytest.mark.parametrize("fails", [False, True])
def test_a_header_is_made_aside_and_only_whole_ones_are_seen(
    fails: bool, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR
    compiled: list[str] = []
    remembered = cache(lambda: "where Inductor compiled one before, for other code of this process")
    remembered()
    monkeypatch.setattr(codecache, "_precompile_header", remembered)

    def compile_loop(_: Any, source: str) -> None:
        assert not remembered.cache_info().currsize
        compiled.append(source)
        header(Path(codecache._HEADER_DIR), "new", 0.0)
        assert not user.exists()
        if fails:
            raise RuntimeError("killed over it")

    monkeypatch.setattr(codecache.CppPythonBindingsCodeCache, "load_pybinding", compile_loop)
    make_header()
    assert places == (codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR)
    assert files(user) == ([] if fails else ["new.h", "new.h.gch"])
    make_header()
    assert len(compiled) == 1 + fails


@pytest.mark.slow
def test_the_header_that_is_made_is_the_one_that_inductors_code_takes(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fresh_cache():  # what is compiled already needs no header
        make_header()
    made = files(user)
    assert len(made) == 2
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(user))
    monkeypatch.setattr(codecache, "_HEADER_LOCK_DIR", str(user / "locks"))
    with config.patch(compile_threads=1), fresh_cache():
        torch.compile(lambda x: torch.exp(x) + 1)(torch.ones(300))
    assert [name for name in files(user) if "locks" not in name] == made
