"""Some rounds of chaos. A failure prints the seed of its round; CHAOS_SEED, a number, runs that one alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import chaos
from benchmarks.store import Results
from chaos import faults
from chaos.actors import is_torchs_own
from chaos.plan import INTERRUPTED, WHOLE_EVERY, plan_of
from chaos.rounds import Ground, describe, run_plan, run_round

SEED = "CHAOS_SEED"
FEW, MORE = (3, 5, 11), range(20, 26)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory, native_dir: Path) -> Iterator[Ground]:
    place = tmp_path_factory.mktemp("chaos")
    (place / "shared").mkdir()
    native_dir.mkdir(parents=True, exist_ok=True)
    (place / "shared" / "native").symlink_to(native_dir)
    made = Ground(place / "ground", place / "shared")
    try:
        made.prepare()
        yield made
    finally:
        made.close()


def without_problems(ground: Ground, seed: int) -> None:
    row = run_round(ground, seed)
    assert not row["problems"], f"{SEED}={seed}: {row['done']}: {row['problems']}\n{row['log']}"


@pytest.mark.alone
@pytest.mark.parametrize("seed", FEW)
def test_chaos_loses_nothing_leaves_nothing_and_decides_nothing_for_good(
    ground: Ground, seed: int
) -> None:
    without_problems(ground, int(os.environ.get(SEED, seed)))


@pytest.mark.alone
def test_a_search_that_is_cut_short_decides_nothing_for_good(ground: Ground) -> None:
    row = run_plan(ground, INTERRUPTED)
    assert row["notes"] == ["SIGINT user"] and not row["problems"], row


@pytest.mark.alone
def test_chaos_sees_a_graph_that_is_left_without_its_kernels_for_good(ground: Ground) -> None:
    """Without the step that counts an unfinished search as a change, torch's caches keep the graph as it was."""
    row = run_plan(ground, replace(INTERRUPTED, forgets=True))
    assert row["problems"] == ["final: exp has no kernel afterwards in search"], row


@pytest.mark.alone
@pytest.mark.slow
def test_more_chaos_loses_nothing_leaves_nothing_and_decides_nothing_for_good(
    ground: Ground,
) -> None:
    for seed in MORE:
        without_problems(ground, seed)


TRIES = """
import os, sys
from pathlib import Path
from chaos import faults
place, wrong = Path(sys.argv[1]), sys.argv[2]
faults.install_folders(place)
(place / wrong).touch()
there = os.open(place / "tmp", os.O_RDONLY)
for name, change in {
    "write": lambda: (place / "tmp" / "new").touch(),
    "folder": lambda: os.mkdir("below", dir_fd=there),
    "remove": lambda: os.unlink("first", dir_fd=there),
    "remove by path": lambda: os.unlink(place / "tmp" / "second"),
    "elsewhere": lambda: (place / "other").touch(),
}.items():
    try:
        change()
    except OSError as error:
        print(name, error.errno)
"""


@pytest.mark.parametrize(
    ("wrong", "refused"),
    [
        (faults.FULL, ["write", "folder"]),
        (faults.READ_ONLY, ["write", "folder", "remove", "remove by path"]),
    ],
)
def test_a_full_disk_lets_things_be_removed_and_a_read_only_one_nothing(
    wrong: str, refused: list[str], tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    for name in ("first", "second"):
        (tmp_path / "tmp" / name).touch()
    done = subprocess.run(
        [sys.executable, "-c", TRIES, str(tmp_path), wrong],
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [f"{name} {faults.ERRNOS[wrong]}" for name in refused]


def test_a_round_is_drawn_from_its_seed_alone() -> None:
    plans = [plan_of(seed) for seed in range(3 * WHOLE_EVERY)]
    assert plans == [plan_of(plan.seed) for plan in plans]
    assert sum(plan.whole for plan in plans) == 3 and len(set(map(describe, plans))) > 290


def test_a_run_logs_a_problem_while_later_rounds_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, kept = tmp_path / "chaos.log", []
    log.touch()

    def rounds(_: Any, seed: int) -> dict[str, Any]:
        if seed:
            until = time.monotonic() + 60.0
            while f"said in round {seed - 1}" not in log.read_text() and time.monotonic() < until:
                time.sleep(0.01)
            kept.append(log.read_text())
        row = {"done": "a kill", "notes": [], "problems": ["lost: a kernel"], "seconds": 1.0}
        return {**row, "log": f"said in round {seed}"}

    monkeypatch.setattr(chaos, "WRITE_EVERY_S", 0.01)
    monkeypatch.setattr(chaos, "Ground", lambda *_: SimpleNamespace(prepare=noop, close=noop))
    monkeypatch.setattr(chaos, "run_round", rounds)
    monkeypatch.setenv("HOME", os.environ.get("HOME", str(tmp_path)))
    for seeds in ([0, 1], [2]):
        chaos.run(Results("chaos", chaos.summarise, tmp_path), seeds, jobs=1, limit_s=1e9)
    assert "said in round 0" in kept[0] and "said in round 1" not in kept[0]
    assert kept[1].count("said in round") == 2, "a run that goes on keeps what the first one logged"
    assert log.read_text().count("lost: a kernel") == 3


def noop() -> None:
    """Nothing to make ready, nothing to end."""


INDUCTOR, OURS = "x/torch/_inductor/compile_fx.py", "x/cuda_agent_backend/backend.py"
OTHERS = "x/torch/serialization.py"
DISK = "OSError(28, 'full')"
BEGUN = "ImportError('/x/cabc.main.so: file too short')"
LIMIT = "type('CppCompileError', (RuntimeError,), {})('File size limit exceeded signal: cc1plus')"
SYNTAX = "type('CppCompileError', (RuntimeError,), {})('expected a semicolon')"


@pytest.mark.parametrize(
    ("files", "what", "forgiven"),
    [
        ([INDUCTOR, "x/pathlib.py"], DISK, True),
        (["x/torch/_dynamo/eval_frame.py", OURS, "x/contextlib.py", INDUCTOR, OTHERS], DISK, True),
        ([INDUCTOR, OURS, INDUCTOR, OTHERS], DISK, True),
        ([INDUCTOR, OTHERS], "ValueError()", False),
        ([OURS, INDUCTOR, OTHERS], BEGUN, False),
        ([OURS, INDUCTOR, OTHERS], LIMIT, True),
        ([OURS, INDUCTOR, OTHERS], SYNTAX, False),
        ([OURS, OTHERS], LIMIT, False),
        ([OURS, INDUCTOR, OTHERS], "ImportError('no module')", False),
        ([OURS, OTHERS], DISK, False),
        ([INDUCTOR, OURS], DISK, False),
        ([INDUCTOR, "x/sandbox/scratch.py", "x/pathlib.py"], DISK, False),
        ([OURS, INDUCTOR, "x/kernel_cache/cache.py", OTHERS], DISK, False),
        (["x/pathlib.py"], DISK, False),
    ],
)
def test_only_what_inductor_could_not_write_is_torchs_own(
    files: list[str], what: str, forgiven: bool
) -> None:
    """files: of the frames, from the outermost to where it was raised."""
    with pytest.raises(Exception) as caught:
        through(files, what)
    assert is_torchs_own(caught.value) is forgiven
    wrapped = RuntimeError("around it")
    wrapped.inner_exception = caught.value  # type: ignore[attr-defined]
    assert is_torchs_own(wrapped) is forgiven


def through(files: list[str], what: str) -> None:
    """Raise something from a frame of each file, each called by the one before."""
    text = "through(files[1:], what)" if files[1:] else f"raise {what}"
    names: dict[str, Any] = {"files": files, "what": what, "through": through}
    exec(compile(text, files[0], "exec"), names)
