"""What Inductor compiles once is the judge's own: workers may read it, and nothing that they made is taken."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import codecache, config
from torch._inductor.utils import fresh_cache

from sandbox import scratch
from sandbox.workers import inductor_store
from sandbox.workers.inductor_store import (
    HEADER,
    PAYS_FROM,
    WRITTEN_S,
    give,
    headers_of,
    known_headers,
    leave_headers,
    lend_headers,
    make_header,
    options,
    own_headers,
    torch_folder,
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


OURS = f"{torch_folder()}/include/x.h"
"""What a header that this torch has made names."""


def header(
    folder: Path, name: str, age_s: float = 2 * WRITTEN_S, content: str = f"1\0{OURS}\0"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.h").write_text("#include <x>")
    made = folder / f"{name}.h.gch"
    made.write_text(content)
    os.utime(made, (time.time() - age_s,) * 2)
    return made


def files(folder: Path) -> list[str]:
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where Inductor keeps this process's headers, which it remembers no longer than the folder is there."""
    (tmp_path / "user").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "user"))
    assert own_headers().is_relative_to(tmp_path)
    remembers = codecache._precompile_header
    yield own_headers()
    remembers.cache_clear()


def test_whole_headers_are_lent_and_those_being_written_are_not(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    header(shared / "ab", "whole")
    header(shared / "cd", "half", 0.0)
    (shared / "ab" / "alone.h.gch").write_text(OURS)  # without its source
    lend_headers(shared, own)
    assert files(own) == ["ab/whole.h", "ab/whole.h.gch"]


def test_headers_of_another_torch_and_of_an_earlier_one_are_none_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header(tmp_path, "other", content="/elsewhere/torch/include/x.h")
    header(tmp_path, "beside", content=f"{torch_folder()}/include_of_another/x.h")
    header(tmp_path, "empty", content="")
    ours = header(tmp_path, "ours")
    assert known_headers(tmp_path) == [ours]

    torch = tmp_path / "torch"
    installed = torch / "include" / inductor_store.PREFIX
    ours.write_text(f"{torch}/include/x.h")
    os.utime(ours, (time.time() - 2 * WRITTEN_S,) * 2)
    monkeypatch.setattr(inductor_store, "torch_folder", lambda: torch)
    assert known_headers(tmp_path) == [ours]
    time.sleep(0.02)  # the clock of the file system goes by steps
    installed.parent.mkdir(parents=True)
    installed.touch()
    assert known_headers(tmp_path) == []


def test_only_the_newest_headers_are_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(inductor_store, "_names", lambda made, *_: bool(looked.append(made.name)))
    for number in range(inductor_store.LOOKED_AT + 2):
        header(tmp_path, f"{number}", 1000.0 + number)
    assert not known_headers(tmp_path)
    assert looked == [f"{number}.h.gch" for number in range(inductor_store.LOOKED_AT)]


def test_a_user_without_any_has_none_to_lend(tmp_path: Path) -> None:
    lend_headers(tmp_path / "shared", tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_a_header_is_linked_where_all_may_read_it_and_copied_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = header(tmp_path / "shared", "h")
    for open_to_all in (True, False):
        monkeypatch.setattr(
            inductor_store, "_is_open_to_all", lambda _, all_may=open_to_all: all_may
        )
        own = tmp_path / str(open_to_all)
        lend_headers(tmp_path / "shared", own)
        assert (own / "h.h.gch").is_symlink() == open_to_all
        assert (own / "h.h.gch").read_bytes() == made.read_bytes()
        assert not (own / "h.h").is_symlink()  # or nothing would compile once it is gone


@pytest.mark.parametrize("closed", [0o704, 0o701])
def test_all_may_read_what_lies_in_folders_that_all_may_enter(
    closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scratch.folder("open", "/tmp") as name:
        folder = Path(name)
        for outer in (folder, folder.parent):
            outer.chmod(0o711)
        made = header(folder / "headers", "h")
        made.parent.chmod(0o755)
        made.chmod(0o644)
        assert inductor_store._is_open_to_all(made)
        (made.parent if closed == 0o704 else made).chmod(closed)
        assert not inductor_store._is_open_to_all(made)


def test_what_a_worker_changes_in_its_copy_reaches_no_other(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor_store, "_is_open_to_all", lambda _: False)
    before = header(user, "h").read_bytes()
    for name in ("first", "second"):
        give(tmp_path / name)
        found = headers_of(tmp_path / name) / "h.h.gch"
        assert found.read_bytes() == before
        found.write_bytes(b"forged")
    assert (user / "h.h.gch").read_bytes() == before


def test_a_header_that_was_made_is_left_for_the_user_and_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor_store, "_is_open_to_all", lambda _: True)
    own, shared = tmp_path / "own", tmp_path / "shared"
    new, users = header(own, "new", 0.0), header(shared, "known", content=f"the user's {OURS}")
    lend_headers(shared, own)
    header(own, "twin", 0.0)
    twin = header(shared, "twin", content=f"the user's too {OURS}")
    kept = [users.read_bytes(), twin.read_bytes()]
    long_ago = twin.stat().st_ctime_ns, users.stat().st_ctime_ns
    time.sleep(0.02)  # the clock of the file system goes by steps
    leave_headers(own, shared)
    assert (shared / "new.h.gch").read_bytes() == new.read_bytes()
    assert [users.read_bytes(), twin.read_bytes()] == kept
    # What was made again is new, and what was only lent is as old as it was.
    assert twin.stat().st_ctime_ns > long_ago[0]
    assert users.stat().st_ctime_ns == long_ago[1]
    assert files(shared) == [
        f"{n}.h{end}" for n in ("known", "new", "twin") for end in ("", ".gch")
    ]
    assert shared / "new.h.gch" in known_headers(shared)


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
