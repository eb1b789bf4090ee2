"""Processes of a cell: what they are given, what they answer, and how they end."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.store import ROOT, Facts
from benchmarks.whole_models.contestant import Request
from sandbox.compile.toolchain import TRITON_ASSEMBLER, Toolchain, find_triton
from sandbox.verdict import OUT_OF_MEMORY

CONTESTANT = "benchmarks.whole_models.contestant"
START_LIMIT_S, CALL_LIMIT_S, END_S = 900.0, 120.0, 20.0
"""For building, compiling and calling once, for one timed call, and for ending."""
LATE_END_S = 1.0
"""For ending once the time of the run is up: several end one after another."""
TAIL_LINES = 40
"""Of its log, in the reason why a contestant failed: the cause of an error of Inductor lies far above its end."""


@dataclass(frozen=True)
class Plan:
    """How cells are run. folder: for caches and logs, emptied for each cell. native_dir: where ours is built once.

    kept: what cells of one model, dtype and kind share, in whatever mode. budget_s: of search for each graph.
    seconds: of timing. deadline: by `time.monotonic`, when a cell is cut.
    """

    folder: Path
    kept: Path
    native_dir: Path
    budget_s: float
    seconds: float
    deadline: float = float("inf")
    toy: bool = False

    @property
    def search(self) -> Path:
        """The folder with the kernel cache, and what searches note beside it."""
        return self.kept / "search"

    @property
    def kernels(self) -> Path:
        """The kernel cache, whose keys name no mode of Inductor."""
        return self.search / "kernels"

    @property
    def reference(self) -> Path:
        """What errors are held against."""
        return self.kept / "reference.pt"


class Lost(Exception):
    """A process gave no answer; the message says why, with the end of its log. full: the device's memory was."""

    def __init__(self, what: str, log: str) -> None:
        last = "\n".join(log.splitlines()[-TAIL_LINES:])
        super().__init__(f"{what}\n{last}" if last else what)
        self.full = bool(OUT_OF_MEMORY.search(log))


class Cut(Exception):
    """The time of the whole run was up."""


class Process:
    """One contestant; it ends with its context."""

    def __init__(
        self, name: str, request: Request, environment: Mapping[str, str], plan: Plan
    ) -> None:
        self._name, self._log, self._deadline = name, plan.folder / f"{name}.log", plan.deadline
        file = plan.folder / f"{name}.json"
        file.write_text(request.to_text(), encoding="utf-8")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", CONTESTANT, str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=ROOT,
                text=True,
                start_new_session=True,
            )
        self._closed = False
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it. Once it has ended, its number may be another's, and it is not ended again."""
        if self._closed:
            return
        self._closed = True
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S if time.monotonic() < self._deadline else LATE_END_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()

    def ready(self) -> Facts:
        """What it says of its first call, once it was told to go. Raises `Lost` or `Cut`."""
        return self._answer(START_LIMIT_S)

    def tell(self, command: str) -> None:
        """Give it a command. Where it has ended, its answer says so."""
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()

    def ask(self, command: str, limit_s: float = CALL_LIMIT_S) -> Facts:
        """Its answer to a command. Raises `Lost` or `Cut`."""
        self.tell(command)
        return self._answer(limit_s)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _answer(self, limit_s: float) -> Facts:
        left = self._deadline - time.monotonic()
        try:
            line = self._lines.get(timeout=max(0.0, min(limit_s, left)))
        except queue.Empty:
            if left <= limit_s:
                raise Cut from None
            raise Lost(f"{self._name}: no answer after {limit_s:.0f} s", self._said()) from None
        if not line:
            code = self._process.wait()
            raise Lost(f"{self._name}: ended with status {code}", self._said())
        found: Facts = json.loads(line)
        return found

    def _said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")


class Line:
    """The processes of a cell in their order.

    ahead: each is started while the one before it is at its first call, so that nobody waits for its imports. No more
    than that is done before its turn: a model on the device would take room from a search, and building it there would
    disturb what searches and compilers time.
    """

    def __init__(
        self, stack: ExitStack, starts: Sequence[Callable[[], Process]], ahead: bool
    ) -> None:
        self._stack, self._starts, self._ahead = stack, iter(starts), ahead
        self._waiting = self._start() if ahead else None

    def _start(self) -> Process | None:
        start = next(self._starts, None)
        return self._stack.enter_context(start()) if start else None

    def next(self) -> tuple[Process, Facts]:
        """The next process, and what it says when it is ready. Raises `Lost` or `Cut`, and the process is ended."""
        process = self._waiting or self._start()
        assert process
        try:
            process.tell("go")
            self._waiting = self._start() if self._ahead else None
            return process, process.ready()
        except BaseException:
            process.close()
            raise


def environment(plan: Plan, name: str, target: str) -> dict[str, str]:
    """Torch's caches of their own for each of the two compilers, empty where the cell begins, and the kernel cache.

    On cuda both have one assembler, Triton's own. Torch 2.11's compile workers take the one that torch brings, so that
    the process finds nothing of what they compiled, and compiles the templates of max-autotune once more by itself.
    """
    folder = plan.folder / name
    found = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUDA_AGENT_CACHE_DIR": str(plan.kernels),
        "CUDA_AGENT_NATIVE_DIR": str(plan.native_dir),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
    }
    triton = find_triton()
    if target == "cuda" and isinstance(triton, Toolchain):
        found.setdefault("TRITON_PTXAS_PATH", str(triton.path / TRITON_ASSEMBLER))
    return found
