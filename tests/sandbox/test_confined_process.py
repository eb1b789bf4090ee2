"""Processes that are forked and confined: how they end, what they get, and what they keep nobody from."""

from __future__ import annotations

import getpass
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch._inductor.codecache  # noqa: F401 - else each process imports it
from kit.processes import gone

from sandbox.isolation.confine import offered
from sandbox.workers.confined_process import ConfinedProcess, Wanted, write_all

Makes = Callable[..., ConfinedProcess]


@pytest.fixture
def makes() -> Iterator[Makes]:
    """Makes processes, each ended at the latest with the test."""
    with ExitStack() as stack:

        def made(
            run: Callable[[Path], object],
            given: Sequence[int] = (),
            kept: Sequence[int] = (),
            read: Sequence[Path] = (),
        ) -> ConfinedProcess:
            wanted = Wanted("test", "cpu", 1, 4 << 30, read)
            process = ConfinedProcess(wanted, run, given, kept)
            stack.callback(process.end)
            return process

        yield made


def answer(makes: Makes, run: Callable[[Path], str], read: Sequence[Path] = ()) -> str:
    """What a process says, once it has ended."""
    ours, theirs = os.pipe()
    makes(lambda folder: write_all(theirs, run(folder).encode()), (theirs,), (ours,), read)
    with os.fdopen(ours) as file:
        return file.read()


def fails(folder: Path) -> None:
    raise ValueError("of the task")


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (lambda folder: None, 0),
        (fails, 1),
        (lambda folder: os._exit(3), 3),
        (lambda folder: os.kill(os.getpid(), signal.SIGKILL), 128 + signal.SIGKILL),
    ],
    ids=["returns", "raises", "exits", "is killed"],
)
def test_the_end_of_a_process_is_told(
    makes: Makes, run: Callable[[Path], object], status: int
) -> None:
    ours, theirs = os.pipe()
    process = makes(run, (theirs,), (ours,))
    with os.fdopen(ours) as file:
        assert file.read() == ""  # until it has ended by itself
    assert process.end() == status == process.end()


def test_its_user_has_a_name(makes: Makes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch names a folder after it; the number of such a user has none."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    assert answer(makes, lambda folder: getpass.getuser()) == "sandbox"


def test_a_process_writes_to_its_folder_which_goes_with_it(makes: Makes) -> None:
    def works(folder: Path) -> str:
        (folder / "file").write_text("mine")
        return f"{folder} {(folder / 'file').read_text()} {Path.cwd() == folder}"

    ours, theirs = os.pipe()
    process = makes(lambda folder: write_all(theirs, works(folder).encode()), (theirs,), (ours,))
    with os.fdopen(ours) as file:
        folder, said, there = file.read().split()
    assert (said, there) == ("mine", "True") and Path(folder).is_dir()
    process.end()
    assert not Path(folder).parent.exists()


def test_a_process_reads_what_it_is_given_and_nothing_else(makes: Makes, tmp_path: Path) -> None:
    if offered().why_no_untrusted_code:
        pytest.skip(str(offered().why_no_untrusted_code))
    tmp_path.chmod(0o755)
    for name in ("given", "secret"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)

    def reads(folder: Path) -> str:
        found = []
        for name in ("given", "secret"):
            try:
                found.append((tmp_path / name / "file").read_text())
            except OSError as error:
                found.append(type(error).__name__)
        return " ".join(found)

    said = answer(makes, reads, [tmp_path / "given"]).split()
    assert said[0] == "given" and said[1] in ("PermissionError", "FileNotFoundError")


def test_a_process_is_ended_while_later_ones_run(makes: Makes) -> None:
    """A fork inherits the pipe that keeps an earlier one alive: it would live as long as the later one."""
    first, second = (makes(lambda folder: time.sleep(600)) for _ in range(2))
    assert first.end() == 128 + signal.SIGKILL
    assert second.end() == 128 + signal.SIGKILL


def test_a_process_that_is_let_go_takes_no_later_one_with_it(makes: Makes) -> None:
    """Its pipe's number is free as soon as it is let go, and the next process gets it."""
    first = makes(lambda folder: time.sleep(600))
    assert not first.ended()
    first.let_go()
    second = makes(lambda folder: time.sleep(600))
    while not first.ended():
        time.sleep(0.01)
    assert first.end() == 128 + signal.SIGKILL
    first.let_go()
    time.sleep(0.2)
    assert not second.ended() and second.end() == 128 + signal.SIGKILL


def test_what_a_process_has_started_ends_with_it(makes: Makes) -> None:
    def starts(folder: Path) -> None:
        child = os.fork()
        if child:
            write_all(theirs, f"{os.getpid()} {child}\n".encode())
        time.sleep(600)

    ours, theirs = os.pipe()
    process = makes(starts, (theirs,), (ours,))
    with os.fdopen(ours) as file:
        said = [int(word) for word in file.readline().split()]
        process.end()
        assert file.read() == ""  # nobody has the other end any more
    assert len(said) == 2 and gone(said)
