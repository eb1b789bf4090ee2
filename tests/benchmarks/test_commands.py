"""A process of a benchmark is told what to do, and ends with whoever tells it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from benchmarks.commands import commands

ROOT = Path(__file__).parents[2]


def test_lines_come_as_they_are_written_and_then_the_end() -> None:
    read, write = os.pipe()
    ended = threading.Event()
    found = commands(read, 0.0, ended.set)
    os.write(write, b"time\ngra")
    assert next(found) == "time"
    os.write(write, b"phs\n")
    assert next(found) == "graphs"
    os.close(write)
    assert list(found) == []
    assert ended.wait(60)
    os.close(read)


def test_a_process_that_is_at_something_ends_with_its_input_and_so_does_its_group() -> None:
    code = (
        "import subprocess, sys, time; from benchmarks.commands import commands; "
        "commands(grace_s=0.1); subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print('busy', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"busy\n"
    process.stdin.close()
    assert process.wait(60) == -9
    assert process.stdout.read() == b""  # the other one, which has it too, is gone
    process.stdout.close()


def test_a_process_that_fails_while_it_listens_says_so_by_its_status() -> None:
    code = "from benchmarks.commands import commands; commands(); raise SystemExit(3)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=ROOT)
    assert process.wait(60) == 3
    assert process.stdin is not None
    process.stdin.close()
