"""Children run with limits."""

from __future__ import annotations

import gc
import sys
import threading
import time
from pathlib import Path

import pytest
from kit.processes import gone

from sandbox.isolation.head_tail import shortened
from sandbox.isolation.limits import (
    OUTPUT_LIMIT,
    Finished,
    Limits,
    StartFailed,
    TimedOut,
    run_limited,
)

PYTHON = sys.executable


def python(
    code: str, folder: Path, limits: Limits | None = None
) -> Finished | TimedOut | StartFailed:
    return run_limited([PYTHON, "-I", "-c", code], folder, limits or Limits(wall_s=30))


def test_status_and_both_streams_come_back(tmp_path: Path) -> None:
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
    result = python(code, tmp_path)
    assert isinstance(result, Finished)
    assert (result.code, result.output) == (3, "out\nerr\n")


def test_a_loop_is_stopped_at_its_deadline_and_what_it_said_is_kept(tmp_path: Path) -> None:
    code = "print('hello', flush=True)\nwhile True: pass"
    for seconds in (0.5, 5.0, 60.0):  # more, where Python had not begun in time
        result = python(code, tmp_path, Limits(wall_s=seconds))
        assert isinstance(result, TimedOut)
        if result.output:
            break
    assert result.output == "hello\n"


def test_grandchildren_do_not_outlive_the_command(tmp_path: Path) -> None:
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '300']).pid)"
    result = python(code, tmp_path)
    assert isinstance(result, Finished)
    pid = int(result.output)
    assert gone([pid])


@pytest.mark.parametrize(
    ("code", "limits"),
    [
        ("x = bytearray(2 << 30)", Limits(memory_bytes=1 << 30)),
        ("open('big', 'wb').write(bytes(1 << 20))", Limits(file_bytes=1 << 16)),
        ("while True: pass", Limits(cpu_s=1)),
    ],
    ids=["memory", "file", "processor"],
)
def test_resource_limits_are_in_force(tmp_path: Path, code: str, limits: Limits) -> None:
    result = python(code, tmp_path, limits)
    assert isinstance(result, Finished)
    assert result.code != 0


def test_the_environment_is_an_allow_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    result = python("import os; print(sorted(os.environ))", tmp_path)
    assert isinstance(result, Finished)
    names = set(eval(result.output))
    assert {"PATH", "HOME", "TMPDIR", "LANG"} <= names
    assert names <= {"PATH", "HOME", "TMPDIR", "LANG", "PWD", "LC_CTYPE", "SHLVL", "_", "OLDPWD"}


def test_a_command_that_does_not_exist_is_a_value(tmp_path: Path) -> None:
    result = run_limited(["/no/such/program"], tmp_path, Limits(wall_s=30))
    assert isinstance(result, Finished) and result.code == 127
    result = run_limited(["true"], tmp_path / "absent", Limits(wall_s=30))
    assert isinstance(result, StartFailed)


def test_endless_output_is_cut_in_the_middle(tmp_path: Path) -> None:
    result = python("print('first'); print('x' * (3 << 20)); print('last')", tmp_path)
    assert isinstance(result, Finished)
    assert result.output.startswith("first") and result.output.endswith("last\n")
    assert len(result.output) < OUTPUT_LIMIT + 100
    size = len("first\n") + (3 << 20) + len("\nlast\n")
    assert f"[... {size - OUTPUT_LIMIT} of {size} bytes left out ...]" in result.output
    assert result.output.count("left out") == 1


def test_short_text_stays_as_it_is() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcdef", 4) == "ab\n[... 2 of 6 characters left out ...]\nef"


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    run_limited(["true"], tmp_path, Limits(wall_s=30))
    gc.collect()  # closes now, and not in between, what earlier tests left open
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        run_limited(["true"], tmp_path, Limits(wall_s=30))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_command_that_is_stopped_ends_at_once_and_what_it_said_is_kept(tmp_path: Path) -> None:
    stop = threading.Event()
    code = "print('hello', flush=True); open('begun', 'w').close()\nwhile True: pass"

    def once_it_has_begun() -> None:
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)
        stop.set()

    threading.Thread(target=once_it_has_begun, daemon=True).start()
    result = python(code, tmp_path, Limits(wall_s=120, stop=stop))
    assert isinstance(result, TimedOut) and result.output == "hello\n" and result.seconds < 60
    late = python(code, tmp_path, Limits(wall_s=120, stop=stop))
    assert isinstance(late, TimedOut) and late.seconds < 60
