"""A run beside a process that holds some of the device."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from bench_kit import WISHES, task
from kit.processes import children

from cuda_agent_backend.bench.holder import CannotHold, holding
from cuda_agent_backend.bench.request import Wishes
from cuda_agent_backend.bench.results import Identity
from cuda_agent_backend.cli import command as cli


def test_it_is_there_while_it_is_held_and_ends_then() -> None:
    before = set(children(os.getpid()))  # those of earlier tests may end meanwhile
    with holding(0, "cpu"):
        assert set(children(os.getpid())) <= before
    with holding(1 << 26, "cpu"):
        (pid,) = set(children(os.getpid())) - before
        held = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert held > 1 << 26
    assert set(children(os.getpid())) <= before


def test_a_run_whose_holder_ended_is_told(tmp_path: Path) -> None:
    before = set(children(os.getpid()))
    with pytest.raises(CannotHold, match="ended"), holding(1, "cpu"):
        (pid,) = set(children(os.getpid())) - before
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_bytes_that_are_not_there_are_told() -> None:
    with pytest.raises(CannotHold, match="bytes of cpu"), holding(1 << 62, "cpu"):
        raise AssertionError("nothing is held")


def test_results_beside_it_are_others(tmp_path: Path) -> None:
    one = task(tmp_path / "tasks" / "a.py")
    alone = Identity("sources", WISHES, {})
    beside = Identity("sources", replace(WISHES, holds=40), {})
    assert alone.of(one) != beside.of(one)


def test_bytes_are_read_as_people_write_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = cli.parser().parse_args(["bench", str(tmp_path), "--holds", "40e9"])
    assert arguments.holds == 40 * 10**9 and Wishes("cuda").holds == 0
    with pytest.raises(SystemExit):
        cli.parser().parse_args(["bench", str(tmp_path), "--holds", "much"])
    assert cli.main(["bench", str(tmp_path), "--device", "cpu", "--holds", "9"]) == 2
    assert "GPU" in capsys.readouterr().err
