"""What Inductor compiles once for every empty folder is kept from the baseline worker, and copied to others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sandbox.workers import inductor_store
from sandbox.workers.inductor_store import checks_of, give, headers_of, keep


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    """A scratch folder as a worker leaves it that has compiled a task."""
    folder = tmp_path / "baseline"
    (headers_of(folder) / "ab").mkdir(parents=True)
    (headers_of(folder) / "locks").mkdir()
    (headers_of(folder) / "ab" / "h.h").write_text("#include <x>")
    (headers_of(folder) / "ab" / "h.h.gch").write_bytes(b"header")
    for name, text in (("cd", "void __avx_chk_kernel() {}"), ("ef", "void task() {}")):
        (checks_of(folder) / name).mkdir(parents=True)
        (checks_of(folder) / name / f"{name}.cpp").write_text(text)
        (checks_of(folder) / name / f"{name}.so").write_bytes(b"library")
    return folder


def files(folder: Path) -> set[str]:
    return {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()}


def test_headers_and_checks_are_given_and_the_tasks_code_is_not(
    baseline: Path, tmp_path: Path
) -> None:
    native, new = str(tmp_path / "native"), tmp_path / "new"
    Path(native).mkdir()
    keep(native, baseline)
    give(native, new, headers=True)
    assert files(headers_of(new)) == {"ab/h.h", "ab/h.h.gch"}
    assert files(checks_of(new)) == {"cd/cd.cpp", "cd/cd.so"}


def test_workers_for_candidates_are_given_the_checks_alone(baseline: Path, tmp_path: Path) -> None:
    native, new = str(tmp_path), tmp_path / "new"
    keep(native, baseline)
    give(native, new, headers=False)
    assert files(checks_of(new)) and not headers_of(new).exists()


def test_what_a_worker_changes_in_its_copy_reaches_no_other(baseline: Path, tmp_path: Path) -> None:
    native = str(tmp_path)
    keep(native, baseline)
    for name in ("first", "second"):
        give(native, tmp_path / name, headers=True)
        found = headers_of(tmp_path / name) / "ab" / "h.h.gch"
        assert found.read_bytes() == b"header"
        found.write_bytes(b"forged")


def test_a_worker_that_compiled_no_header_leaves_nothing(tmp_path: Path) -> None:
    keep(str(tmp_path), tmp_path / "empty")
    assert not list(tmp_path.glob("inductor-*"))


def test_without_a_folder_for_binaries_nothing_is_kept(baseline: Path, tmp_path: Path) -> None:
    keep("", baseline)
    give("", tmp_path / "new", headers=True)
    assert not (tmp_path / "new").exists()


def test_a_store_that_is_not_used_any_more_is_removed(baseline: Path, tmp_path: Path) -> None:
    old = tmp_path / "inductor-old"
    old.mkdir()
    long_ago = time.time() - inductor_store.UNUSED_S - 60
    os.utime(old, (long_ago, long_ago))
    keep(str(tmp_path), baseline)
    assert not old.exists()
    assert len(list(tmp_path.glob("inductor-*"))) == 1
