"""A test that changes its process for good fails, and names what it changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LEAKS = """
import os, torch
def test_leaves_one_thread(): torch.set_num_threads(torch.get_num_threads() + 1)
def test_leaves_a_variable(): os.environ["LEFT_BY_A_TEST"] = "x"
def test_gives_back(monkeypatch): monkeypatch.setenv("GIVEN_BACK", "x")
"""


def test_what_a_test_leaves_changed_makes_it_fail(tmp_path: Path) -> None:
    file = tmp_path / "test_leaks.py"
    file.write_text(LEAKS)
    folder = Path(__file__).parent
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "--rootdir", str(tmp_path), "-p",
         "no:cacheprovider", str(file)],
        env={**own, "PYTHONPATH": os.pathsep.join([str(folder), str(folder.parent)])},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert "3 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    assert "'threads of torch'" in done.stdout and "'LEFT_BY_A_TEST'" in done.stdout
