"""Who does what in the sandbox: trying out and judging apart, expected values out of reach, sealed host code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from judge_kit import SILU_BIAS, candidate, silu_bias, silu_candidate, sized
from kit.processes import family

from sandbox.accuracy.reference import Reference
from sandbox.failures import Crashed, Refused
from sandbox.isolation.confine import offered
from sandbox.isolation.mechanisms import Isolation
from sandbox.judge import Judge
from sandbox.judge.builds import Builds
from sandbox.judge.roles import Roles
from sandbox.judge.rounds import Effort
from sandbox.judge.session import Session
from sandbox.judge.settings import JudgeSettings, Timeouts
from sandbox.plan.candidate import Candidate
from sandbox.verdict import Correct, Outcome, Wrong
from sandbox.workers.supervisor import WorkerProcess

TASK = silu_bias()
SHORT = Effort(min_rounds=12, max_rounds=24, seconds=2.0)
needs_isolation = pytest.mark.skipif(
    offered().level != "full", reason=f"this machine: {offered().describe()} {offered().why}"
)


@pytest.fixture(scope="module")
def consenting(tmp_path_factory: pytest.TempPathFactory, native_dir: Path) -> Iterator[Judge]:
    """A judge that may run the C++ of a policy."""
    with Judge(
        JudgeSettings(
            "cpu",
            scratch_dir=tmp_path_factory.mktemp("consenting"),
            native_dir=native_dir,
            inductor={"cpp_cache_precompile_headers": False},
            consent=True,
            timeouts=Timeouts(run=5.0),
        )
    ) as made:
        yield made


def pid_of(worker: WorkerProcess) -> int:
    assert worker.pid is not None
    return worker.pid


def acting(act: str, headers: str = "", origin: Any = "policy") -> Candidate:
    """Right only if the body of `act`, a C++ function, returns true on its first call."""
    includes = "".join(f"#include <{name}>\n" for name in headers.split())
    first = "static const bool done = act();\n  if (!done) return;\n  #pragma"
    source = sized(SILU_BIAS, TASK).replace("#pragma", first)
    made = candidate(TASK, f"{includes}static bool act() {{ {act} }}\n{source}")
    return replace(made, origin=origin)


SEALED = {
    "reads a system file": ("fcntl.h", 'return open("/etc/passwd", O_RDONLY) >= 0;'),
    "writes a file": ("fcntl.h", 'return open("x", O_CREAT | O_WRONLY, 0600) >= 0;'),
    "opens a socket": ("sys/socket.h", "return socket(AF_INET, SOCK_STREAM, 0) >= 0;"),
    "forks": ("unistd.h", "const int p = fork(); if (p == 0) _exit(0); return p > 0;"),
    "starts a program": ("cstdlib", 'return system("true") == 0;'),
    "signals its parent": ("signal.h unistd.h", "return kill(getppid(), 0) == 0;"),
    "patches itself": ("fcntl.h", 'return open("/proc/self/mem", O_RDWR) >= 0;'),
}


@needs_isolation
def test_sealed_code_can_do_nothing_but_compute(consenting: Judge) -> None:
    # All acts in one candidate: each one needs a process of its own, and starting that takes seconds.
    headers = " ".join(dict.fromkeys(" ".join(h for h, _ in SEALED.values()).split()))
    parts = [f"[]() -> bool {{ {act} }}()" for _, act in SEALED.values()]
    found = consenting.verify(TASK, acting(f"return {' || '.join(parts)};", headers))
    assert isinstance(found, Wrong), found
    control = consenting.verify(TASK, acting("return true;", headers))
    assert isinstance(control, Correct), control


@needs_isolation
def test_each_untrusted_candidate_has_a_process_of_its_own(consenting: Judge) -> None:
    first = acting("return true;")
    assert isinstance(consenting.verify(TASK, first), Correct)
    generation = consenting.roles.scratch.generation
    assert isinstance(consenting.profile(TASK, first, pairs=4), Correct)
    assert consenting.roles.scratch.generation == generation
    assert isinstance(consenting.verify(TASK, silu_candidate(TASK)), Correct)
    assert consenting.roles.scratch.generation == generation + 1
    assert consenting.roles.scratch.holds == ""


@needs_isolation
def test_source_of_a_policy_is_sealed_though_a_sketch_wrote_the_same(consenting: Judge) -> None:
    for origin in ("sketch", "policy"):
        assert isinstance(consenting.verify(TASK, acting("return true;", "cmath", origin)), Correct)
    assert consenting.roles.scratch.holds == acting("return true;", "cmath").digest


@needs_isolation
def test_a_judgement_rebuilds_and_says_what_was_in_force(
    consenting: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[str] = []
    build = Builds.build

    def noted(self: Builds, made: Candidate, place: str) -> Any:
        places.append(place)
        return build(self, made, place)

    monkeypatch.setattr(Builds, "build", noted)
    mine = acting("return 1 > 0;")
    assert isinstance(consenting.verify(TASK, mine), Correct)
    judging, trying = pid_of(consenting.roles.candidate), pid_of(consenting.roles.scratch)
    found = consenting.judge(TASK, mine, effort=SHORT)
    assert found.status in ("wins", "too_slow", "noisy"), found.reason
    assert places == ["candidates", "judged"]
    isolation = found.evidence["isolation"]
    assert isolation["sealed"]
    assert isolation["worker"]["level"] == isolation["compiler"]["level"] == "full"
    assert pid_of(consenting.roles.scratch) == trying
    assert pid_of(consenting.roles.candidate) != judging  # a new one awaits the next judgement


def test_a_machine_that_cannot_confine_refuses_untrusted_host_code_and_runs_sketches(
    consenting: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = Isolation(syscalls=True, network=True, privileges=True, user="own, no rights")
    monkeypatch.setattr("sandbox.compile.candidate.offered", lambda: lacking)
    found = consenting.verify(TASK, acting("return 2 > 1;"))
    assert isinstance(found, Refused)
    assert "Landlock" in found.reason
    assert isinstance(consenting.verify(TASK, silu_candidate(TASK)), Correct)


def test_trying_out_and_judging_are_different_processes(judge: Judge) -> None:
    judge.start()
    pids = [pid_of(worker) for worker in judge.roles.all]
    assert len(set(pids)) == 3
    folders = {worker.settings.folder for worker in judge.roles.all}
    assert len(folders) == 3
    before = judge.roles.candidate.generation
    crashing = silu_candidate(TASK, change="#pragma => *(volatile int*)0 = 1;\n  #pragma")
    assert isinstance(judge.verify(TASK, crashing), Crashed)
    assert judge.roles.candidate.generation == before


def test_a_worker_sees_no_other_binary_than_its_own(judge: Judge) -> None:
    for factor in ("1.0f", "1.00f"):
        judge.verify(TASK, silu_candidate(TASK, change=f"(1.0f + => ({factor} +"))
    assert len(list(judge.roles.scratch.settings.inbox.iterdir())) == 1


def test_a_process_that_held_a_wrong_candidate_is_given_up(judge: Judge) -> None:
    assert isinstance(judge.verify(TASK, silu_candidate(TASK)), Correct)
    generation = judge.roles.scratch.generation
    assert isinstance(judge.verify(TASK, silu_candidate(TASK)), Correct)
    assert judge.roles.scratch.generation == generation
    wrong = silu_candidate(TASK, special="float v = => float v = 0.01f + ")
    assert isinstance(judge.verify(TASK, wrong), Wrong)
    assert judge.roles.scratch.generation == generation + 1


FORGED = """#include <sys/socket.h>
static void forge() {
  unsigned char reply[17] = {1};
  for (int fd = 3; fd < 4096; ++fd) if (send(fd, reply, sizeof reply, 0) > 0) return;
}
"""


def test_an_answer_that_nobody_asked_for_is_seen(judge: Judge) -> None:
    forging = silu_candidate(
        TASK,
        act="#include <cmath> => #include <cmath>\n" + FORGED,
        call="#pragma => forge();\n  #pragma",
    )
    found = judge.judge(TASK, forging, effort=SHORT)
    assert found.status in ("crashed", "failed"), found.reason
    assert found.reward in (-1, None)


class Listening:
    """Notes what a judge tells its workers, and what it keeps to itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: list[dict[str, Any]] = []
        self.descriptors = 0
        self.expected: list[Reference] = []
        ask, expect = WorkerProcess.ask, Session.reference

        def noted(
            worker: WorkerProcess,
            stage: str,
            message: dict[str, Any],
            timeout: float,
            fds: Any = (),
        ) -> Any:
            if worker.settings.role != "baseline":
                self.messages.append(message)
                self.descriptors += len(fds)
            return ask(worker, stage, message, timeout, fds)

        def kept(session: Session, inputs: Any) -> Any:
            found = expect(session, inputs)
            if isinstance(found, Reference):
                self.expected.append(found)
            return found

        monkeypatch.setattr(WorkerProcess, "ask", noted)
        monkeypatch.setattr(Session, "reference", kept)


def test_expected_values_are_not_in_a_candidates_process(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Listening(monkeypatch)
    judge.rest()  # of earlier tests' sets its present process need not have any
    # the process of a wrong candidate is given up at once; here it has to be searched
    monkeypatch.setattr(Roles, "rid", lambda roles, worker, outcome: outcome)
    idle = sized('extern "C" void kernel(void* const* p) {}', TASK)
    found: Outcome = judge.verify(TASK, candidate(TASK, idle), recorded_inputs=None)
    assert isinstance(found, Wrong)
    worker = family(pid_of(judge.roles.scratch))[-1]
    session = judge.sessions.current
    assert session is not None
    given = next(iter(session.sets.values())).tensors[0]
    assert in_memory(worker, given), "the search finds nothing: it would miss expected values too"
    for expected in heard.expected:
        for tensor in (*expected.eager, *expected.oracle):
            assert not in_memory(worker, tensor)


def in_memory(pid: int, tensor: torch.Tensor) -> bool:
    """Whether 64 bytes from the middle of a tensor lie anywhere in a process's writable or shared memory."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    start = flat.numel() // 2 // 8 * 8
    needle = bytes(flat[start : start + 64].tolist())
    try:
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        with Path(f"/proc/{pid}/mem").open("rb") as memory:
            return any(needle in _region(memory, line) for line in maps)
    except PermissionError:
        pytest.skip("the memory of a child cannot be read on this machine")


def _region(memory: Any, line: str) -> bytes:
    match = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(.*)", line)
    assert match is not None
    first, last = int(match[1], 16), int(match[2], 16)
    shared = "memfd:" in match[4]
    if not (shared or match[3].startswith("rw")) or match[4].startswith(("[vvar", "[vsyscall")):
        return b""
    try:
        memory.seek(first)
        return bytes(memory.read(last - first))
    except (OSError, ValueError):
        return b""


def test_what_a_worker_is_told_holds_no_values(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Listening(monkeypatch)
    task = silu_bias(32, 48)
    judge.judge(task, silu_candidate(task), effort=SHORT)
    judge.verify(task, silu_candidate(task))
    allowed = {
        "inputs": {"do", "number", "specs", "offsets"},
        "outputs": {"do", "specs", "offsets"},
        "prepare": {"do", "slot", "mode", "task", "key", "plan"},
        "load": {"do", "key", "seal", "path", "plan"},
        "guarded": {"do", "set", "poison"},
        "fetch": {"do"},
        "forget": {"do"},
    }
    assert heard.messages
    for message in heard.messages:
        assert set(message) <= allowed[message["do"]]
        if message["do"] == "prepare":
            assert (
                "cuda_agent.run" in message["task"]
            )  # the call of the candidate, not what it should compute
