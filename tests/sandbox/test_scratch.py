"""Temporary folders: whose they are, and what becomes of those of the dead."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox import scratch

MAKES = """
import os, signal, sys, tempfile, time
from sandbox import scratch
def then(home, name, effect):
    before = getattr(home, name)
    def wrapper(*arguments, **more):
        done = before(*arguments, **more)
        setattr(home, name, before)
        effect()
        return done
    setattr(home, name, wrapper)
tempfile.gettempdir()  # opens a file of its own
if sys.argv[1:] and "after" in sys.argv[1]:
    way, step = sys.argv[1:3]
    owner = {"mkdir": scratch.Path, "lock_at_once": scratch}.get(step, os)
    die = lambda: os.kill(os.getpid(), signal.SIGKILL)
    then(owner, step, die if way == "dies after" else scratch.sweep)
made = scratch.make("deep")
(made / "below").mkdir()
(made / "below" / "file").write_bytes(bytes(100))
print(made, flush=True)
if sys.argv[1:] == ["dies over it"]:
    from sandbox.isolation import trees
    remove_once = trees._remove_once
    def remove_and_die(top):
        remove_once(top)
        os.kill(os.getpid(), signal.SIGKILL)
    trees._remove_once = remove_and_die
if sys.argv[-1] == "wait":
    time.sleep(600)
"""


def started(place: Path, *arguments: str) -> tuple[subprocess.Popen[str], Path]:
    """A process that has made a folder in `place`."""
    child = subprocess.Popen(
        [sys.executable, "-c", MAKES, *arguments],
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def homes(place: Path) -> list[Path]:
    return [path for path in place.iterdir() if "cuda_agent-" in path.name]


def test_a_process_that_ends_leaves_no_folder(tmp_path: Path) -> None:
    child, made = started(tmp_path)
    assert child.wait(30) == 0 and made.name.startswith("deep-") and homes(tmp_path) == []


def test_a_process_that_is_interrupted_leaves_no_folder(tmp_path: Path) -> None:
    child, made = started(tmp_path, "wait")
    assert (made / "below" / "file").exists()
    child.send_signal(signal.SIGINT)
    child.wait(30)
    assert homes(tmp_path) == []


def test_what_a_killed_process_leaves_goes_with_the_next_process(tmp_path: Path) -> None:
    child, made = started(tmp_path, "wait")
    child.kill()
    child.wait(30)
    assert made.exists()
    assert scratch.sweep(tmp_path) == [made.parent] and homes(tmp_path) == []


def test_what_is_left_by_a_process_that_is_killed_while_it_leaves_goes_likewise(
    tmp_path: Path,
) -> None:
    child, made = started(tmp_path, "dies over it")
    assert child.wait(30) == -signal.SIGKILL and not made.exists()
    assert homes(tmp_path) == [made.parent]
    assert scratch.sweep(tmp_path) == [made.parent] and homes(tmp_path) == []


def test_the_folder_of_a_living_process_stays(tmp_path: Path) -> None:
    child, made = started(tmp_path, "wait")
    try:
        assert scratch.sweep(tmp_path) == [] and made.exists()
    finally:
        child.kill()
        child.wait(30)


def test_a_forked_child_that_ends_takes_nothing_of_its_parent_along(tmp_path: Path) -> None:
    with scratch.folder("mine", tmp_path) as name:
        child = os.fork()
        if child == 0:
            with scratch.folder("own", tmp_path) as own:
                os._exit(0 if Path(own).parent != Path(name).parent else 1)
        assert os.waitpid(child, 0)[1] == 0 and Path(name).is_dir()
        left = scratch.sweep(tmp_path)
        assert len(left) == 1 and Path(name).is_dir()
    assert not Path(name).exists()


def test_an_owner_whose_id_another_process_has_now_is_dead(tmp_path: Path) -> None:
    home = tmp_path / f"cuda_agent-{os.geteuid()}-{os.getpid()}-0"
    home.mkdir()
    (home / "owner").write_text(json.dumps({"pid": os.getpid(), "start": 1, "since": 0}))
    assert scratch.sweep(tmp_path) == [home]


def test_nothing_stays_in_a_place_of_ones_choice_when_its_last_folder_goes(tmp_path: Path) -> None:
    with scratch.folder("one", tmp_path) as one, scratch.folder("two", tmp_path) as two:
        assert Path(one).parent == Path(two).parent and Path(one) != Path(two)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["cuda_agent-mine", "cuda_agent-{uid}-link", "notes"])
def test_what_is_no_home_of_this_user_is_left_alone(tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "owner").write_text("{}")
    other = tmp_path / name.format(uid=os.geteuid())
    if name.endswith("link"):
        other.symlink_to(elsewhere)
    else:
        other.mkdir()
    assert scratch.sweep(tmp_path) == [] and other.exists() and (elsewhere / "owner").exists()


@pytest.mark.parametrize("step", ["mkdir", "open", "lock_at_once", "write"])
def test_what_is_left_by_a_process_that_is_killed_while_it_makes_a_home_goes_at_once(
    tmp_path: Path, step: str
) -> None:
    child, made = started(tmp_path, "dies after", step)
    assert child.wait(30) == -signal.SIGKILL and made == Path()
    left = homes(tmp_path)
    assert len(left) == 1 and scratch.sweep(tmp_path) == left and homes(tmp_path) == []


@pytest.mark.parametrize("step", ["mkdir", "open", "lock_at_once"])
def test_a_home_that_goes_while_it_is_made_is_made_again(tmp_path: Path, step: str) -> None:
    """Somebody who sweeps at the worst moment cannot tell it from a dead one's, and removes it."""
    child, made = started(tmp_path, "is swept after", step, "wait")
    assert made.is_dir() and homes(tmp_path) == [made.parent]
    child.send_signal(signal.SIGINT)
    child.wait(30)
    assert homes(tmp_path) == []


def test_a_place_where_every_home_goes_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "_is_there", lambda path, lock: False)
    with pytest.raises(OSError, match=f"{tmp_path}: other processes remove each folder there"):
        scratch.make("deep", tmp_path)


def test_without_locks_a_home_whose_owner_has_not_written_its_id_is_left_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, kind: int) -> bool:
        raise OSError("no locks here")

    monkeypatch.setattr(scratch, "lock_at_once", no_locks)
    young = tmp_path / f"cuda_agent-{os.geteuid()}-1-0"
    young.mkdir()
    (young / "owner").touch()
    assert scratch.sweep(tmp_path) == []
    os.utime(young, (0, 0))
    assert scratch.sweep(tmp_path) == [young]


def test_a_home_whose_removal_was_cut_short_after_its_owner_goes(tmp_path: Path) -> None:
    home = tmp_path / f"cuda_agent-{os.geteuid()}-1-0"
    (home / "deep-1").mkdir(parents=True)
    assert scratch.sweep(tmp_path) == [home]
