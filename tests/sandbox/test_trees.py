"""Folders that are deeper than paths and stacks, hold links, or are closed to their owner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.isolation import privileges, trees
from sandbox.isolation.trees import remove, temporary, walk

DEPTH = 3000


def deepen(folder: Path, depth: int = DEPTH) -> None:
    """Folders in folders, with a file in the last one."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)


@pytest.fixture(autouse=True)
def _nothing_deep_is_left(tmp_path: Path) -> Iterator[None]:
    """Whatever becomes of the test: pytest's own removal of old folders calls itself for each level."""
    yield
    for path in tmp_path.iterdir():
        remove(path)


def test_all_is_walked_through_and_folders_come_after_what_is_in_them(tmp_path: Path) -> None:
    deepen(tmp_path)
    (tmp_path / "e/f").mkdir(parents=True)
    found = [(name, folder) for _, name, folder in walk(tmp_path)]
    assert len(found) == DEPTH + 3 and found.count(("d", True)) == DEPTH
    assert found.index(("file", False)) < found.index(("d", True))
    assert found.index(("f", True)) < found.index(("e", True))
    remove(tmp_path / "d")


def test_a_folder_is_removed_with_all_that_is_in_it_and_no_link_is_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    with temporary("made-", tmp_path) as name:
        deepen(Path(name))
        (Path(name) / "link").symlink_to(kept)
        (Path(name) / "dangling").symlink_to("nowhere")
        os.mkfifo(Path(name) / "pipe")
        (Path(name) / "closed").mkdir()
        (Path(name) / "closed/file").write_text("")
        (Path(name) / "closed").chmod(0)
        Path(name).chmod(0o500)
    assert os.listdir(tmp_path) == ["kept"] and os.listdir(kept) == ["file"]  # noqa: PTH208
    (tmp_path / "link").symlink_to(kept)
    remove(tmp_path / "link")
    remove(tmp_path / "nothing")
    assert (kept / "file").exists()


def test_a_folder_that_is_moved_meanwhile_leads_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "top/a/b").mkdir(parents=True)
    (tmp_path / "top/a/b/file").write_text("")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(OSError, match="moved"):
        for _, name, _ in walk(tmp_path / "top"):
            if name == "file":
                (tmp_path / "top/a/b").rename(tmp_path / "elsewhere/b")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_folders_of_any_depth_are_given_away_and_taken_back(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    deepen(top)
    (top / "link").symlink_to("/etc/passwd")

    def owners() -> set[int]:
        stats = (os.stat(n, dir_fd=at, follow_symlinks=False) for at, n, _ in trees.walk(top))
        return {found.st_uid for found in stats}

    privileges.own([str(top)], 12345)
    assert owners() == {12345} and os.stat("/etc/passwd").st_uid == 0  # noqa: PTH116
    (top / "link").unlink()
    privileges.keep([str(top)])
    assert owners() == {0}
    remove(top)


def test_a_folder_is_removed_though_a_walk_through_it_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does where others remove what it is in."""
    top = tmp_path / "top"
    (top / "below").mkdir(parents=True)
    walks = [OSError("gone meanwhile")]

    def breaking(folder: str | Path, mend: bool = False) -> Iterator[tuple[int, str, bool]]:
        for found in walk(folder, mend):
            if walks:
                raise walks.pop()
            yield found

    monkeypatch.setattr(trees, "walk", breaking)
    remove(top)
    assert not top.exists() and not walks
