"""What a compiler says of vector instructions is believed, what ends it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch._inductor import cpu_vec_isa

pytestmark = pytest.mark.skipif(
    not cpu_vec_isa.x86_isa_checker(),
    reason="torch compiles nothing to find out the vector instructions of this processor",
)

COMPILER = """#!/bin/sh
out= before=
for word; do [ "$before" = -o ] && out=$word; before=$word; done
[ -n "$out" ] || exec g++ "$@"  # asked for its version
echo "$*" >> "$CASE/asked"
mv "$CASE/once" "$CASE/taken" 2> /dev/null && . "$CASE/taken"
[ -e "$CASE/always" ] && . "$CASE/always"
cp "$EMPTY" "$out"
"""
KILLED = 'printf half > "$out"; kill -KILL $$'
FULL = 'echo "x.s: fatal error: error writing to x.s: No space left on device" >&2; exit 1'
REFUSED = 'echo "error: unrecognized command-line option" >&2; exit 1'
TROUBLE = {
    "undisturbed": ("never", ""),
    "killed_once": ("once", KILLED),
    "full_once": ("once", FULL),
    "killed_always": ("always", KILLED),
    "full_always": ("always", FULL),
    "refused_once": ("once", REFUSED),
}
"""What a compiler does once, or always until the checks are asked for a second time."""
PROGRAM = """
import json, os, subprocess, sys
from pathlib import Path
from torch._inductor import cpp_builder, cpu_vec_isa
from sandbox.workers.vector_checks import find_instructions, known
for case in map(Path, sys.argv[1:]):
    if os.fork():
        assert os.wait()[1] == 0, case
        continue
    os.environ.update(CASE=str(case), TORCHINDUCTOR_CACHE_DIR=str(case / "cache"))
    run, told, knows = subprocess.run, [], []
    for _ in range(2):
        told.append(find_instructions())
        knows.append(known())
        assert subprocess.run is run
        (case / "always").unlink(missing_ok=True)
    kinds = {str(isa): isa.build_arch_flags() for isa in cpu_vec_isa.valid_vec_isa_list()}
    (case / "found").write_text(json.dumps({"told": told, "knows": knows, "kinds": kinds}))
    os._exit(0)
"""


@dataclass(frozen=True)
class Found:
    """What two calls in one process said, whether it was known then, and at last the kinds with their flags."""

    told: list[str]
    knows: list[bool]
    kinds: dict[str, str]
    compilations: int


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """By what the compiler does: each in a process of its own, of which one has imported torch for all."""
    place = tmp_path_factory.mktemp("checks")
    compiler, empty = place / "c++", place / "empty.so"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    subprocess.run(["g++", "-shared", "-o", empty, "-x", "c++", os.devnull], check=True)
    cases = {name: place / name for name in TROUBLE}
    for name, (when, trouble) in TROUBLE.items():
        cases[name].mkdir()
        (cases[name] / when).write_text(trouble)
    environment = {**os.environ, "CXX": str(compiler), "EMPTY": str(empty), "TMPDIR": str(place)}
    command = [sys.executable, "-c", PROGRAM, *map(str, cases.values())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: _found(case) for name, case in cases.items()}


def _found(case: Path) -> Found:
    said: dict[str, Any] = json.loads((case / "found").read_text())
    return Found(**said, compilations=len((case / "asked").read_text().splitlines()))


@pytest.mark.parametrize("trouble", ["killed_once", "full_once"])
def test_a_check_that_a_compiler_did_not_live_through_is_made_once_more(
    trouble: str, found: dict[str, Found]
) -> None:
    undisturbed, disturbed = found["undisturbed"], found[trouble]
    assert undisturbed.kinds
    assert disturbed.told == ["", ""] and disturbed.knows == [True, True]
    assert disturbed.kinds == undisturbed.kinds
    assert disturbed.compilations == undisturbed.compilations + 1


@pytest.mark.parametrize(
    ("trouble", "why"), [("killed_always", "SIGKILL"), ("full_always", "No space left")]
)
def test_what_fails_twice_is_said_and_not_remembered(
    trouble: str, why: str, found: dict[str, Found]
) -> None:
    disturbed = found[trouble]
    assert why in disturbed.told[0] and disturbed.told[1] == ""
    assert disturbed.knows == [False, True]
    assert disturbed.kinds == found["undisturbed"].kinds


def test_what_a_compiler_refuses_is_believed_at_once(found: dict[str, Found]) -> None:
    undisturbed, refused = found["undisturbed"], found["refused_once"]
    assert refused.told == ["", ""] and refused.knows == [True, True]
    assert len(refused.kinds) == len(undisturbed.kinds) - 1
    assert refused.compilations <= undisturbed.compilations
