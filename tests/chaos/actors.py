"""The processes of a round: a user's, the search and the acceptance, each what the product runs but for scripted parts.

Scripted are what the search finds (two kernels are known, and are really compiled) and what the measurement decides,
as both take long. In a whole round nothing is.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chaos import faults

KNOWN = {"exp": "std::exp(a)", "neg exp": "std::exp(-a)"}
WHOLE, FORGETS, SEARCH_S = "CHAOS_WHOLE", "CHAOS_FORGETS", "CHAOS_SEARCH_S"
SHAPE = (64, 512)
PATIENCE_S, LOOKING_S, IDLE_S = 20.0, 120.0, 5.0
"""How long a user waits in the background mode; one that looks, for a kernel that there must be; and for none."""
BUDGET_S = 120.0
"""Of a graph. The same for who looks, as another one names another compilation; and long, since on a machine with other
work one that is spent is no fault."""
PACKAGES = ("torch", "cuda_agent_backend", "sandbox", "kernel_cache")
"""Whose code a user's process runs."""
COMPILES = os.path.join("torch", "_inductor", "compile_fx.py")  # noqa: PTH118
"""Where Inductor begins to compile."""
UNWRITTEN = ("File size limit exceeded", "File too large", "No space left", "Read-only file system")
"""What compilers say where they cannot write. Inductor wraps that in an error that is no OSError."""
TELLS = signal.SIGUSR2
"""Has a process say where all its threads are."""
_clock = faults.Clock()
SOURCE = """
#include <cmath>
extern "C" void kernel(void* const* buffers) {{
  for (long i = 0; i < {count}; i++) {{
    float a = ((const float*)buffers[0])[i];
    ((float*)buffers[1])[i] = {expression};
  }}
}}
"""


def install_clock() -> None:
    """Put a clock in place that can be wrong."""
    _clock.install()


def prepare() -> None:
    """Find out and import once what every process would."""
    import torch
    from torch.hub import tqdm

    from cuda_agent_backend.runtime.machine import toolchain_of
    from cuda_agent_backend.sources import source_digest
    from sandbox.isolation.confine import offered

    offered()
    toolchain_of("cpu")
    source_digest()
    torch.set_num_threads(1)
    with torch.no_grad():
        torch.compile(lambda x: torch.cos(x) + 1)(torch.ones(SHAPE))
        torch.compile(lambda x: torch.cos(x) - 1, backend="eager")(torch.ones(SHAPE))
    torch._dynamo.reset()
    # Torch's interpreter of graphs has made tqdm's lock, which all that are forked from here would share: one that is
    # killed while it has it would stop the others.
    if hasattr(tqdm, "set_lock"):  # it is installed
        tqdm.set_lock(threading.RLock())


def act(kind: str, arguments: Sequence[str]) -> int:
    """Be a process of a kind; its exit status."""
    faulthandler.register(TELLS, all_threads=True)
    folder = Path(os.environ[faults.FOLDER])
    _clock.set(os.environ.get(faults.CLOCK, "0,0,0"))
    faults.install_folders(folder)
    with suppress(OSError):
        (folder / "pids" / f"{kind}-{os.getpid()}").touch()
    if not os.environ.get(WHOLE):
        _start_children_warm()
    return {"user": user, "search": search_process, "acceptance": acceptance}[kind](arguments)


def _start_children_warm() -> None:
    import subprocess

    from chaos.warm_fork import WarmPopen
    from cuda_agent_backend.runtime import child_process

    own = SimpleNamespace(
        Popen=WarmPopen, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )
    child_process.subprocess = own  # type: ignore[assignment]


def models() -> dict[str, Callable[[Any], Any]]:
    """The functions that users compile, by name."""
    import torch

    return {
        "exp": lambda x: torch.exp(x),
        "neg exp": lambda x: torch.exp(torch.neg(x)),
        "sin": lambda x: torch.sin(x),
    }


def user(arguments: Sequence[str]) -> int:
    """Compile models and compare them with eager; what came of each goes to standard output, a line each.

    arguments: JSON of fields of a `plan.User`, one after another; "look": whether it is to be seen which models run
    a kernel.
    """
    import torch

    if os.environ.get(FORGETS):
        _forget()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(SHAPE) * 2
    right, open_before = True, _connections()
    for wishes in map(json.loads, arguments):
        torch._dynamo.reset()
        for name in wishes["models"]:
            function = models()[name]
            told = _compiled(name, function, x, function(x), wishes)
            right = right and told["equal"] is not False
            print(json.dumps({"model": name, "mode": wishes["mode"], **told}), flush=True)
    _end_search()
    until = time.monotonic() + 5.0
    while _connections() > open_before and time.monotonic() < until:
        time.sleep(0.05)
    print(json.dumps({"left_open": max(0, _connections() - open_before)}), flush=True)
    return 0 if right else 3


def _forget() -> None:
    """Leave out what keeps a graph whose search is not over from other processes."""
    from cuda_agent_backend.hook.compilation import Compilation

    Compilation.outdate = lambda self: None  # type: ignore[method-assign]


def _connections() -> int:
    """Pipes, sockets and shared memory that this process has open."""
    count = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += str(fd.readlink()).startswith(
                ("pipe:", "socket:", "/memfd:", "anon_inode:[pidfd")
            )
    return count


def _compiled(
    name: str, function: Callable[[Any], Any], x: Any, expected: Any, wishes: dict[str, Any]
) -> dict[str, Any]:
    import torch

    from cuda_agent_backend.backend import cuda_agent  # not by its name: it may not be installed

    own = {
        "search": "search" if wishes["mode"] == "warm" else wishes["mode"],
        "acceptance": wishes["acceptance"],
        "budget_s": wishes.get("budget_s", BUDGET_S),
        "min_bytes": 0,
        "progress": "off",
    }
    options = {f"cuda_agent.{name}": value for name, value in own.items()}
    try:
        if wishes["mode"] == "warm":
            from cuda_agent_backend.tools.warm import warm

            warm(function, [x], budget_s=own["budget_s"], options=options)
            options["cuda_agent.search"] = "cached"
        compiled = torch.compile(function, backend=cuda_agent, options=options)
        equal = bool(torch.allclose(compiled(x), expected, rtol=1e-4, atol=1e-5))
    except Exception as error:
        if wishes["look"] or not is_torchs_own(error):
            raise
        return {"equal": None, "torchs_own": f"{type(error).__name__}: {error}"[:200]}
    patience_s = _patience_s(name, wishes["look"])
    until = time.monotonic() + (patience_s if wishes["mode"] == "background" else 0.0)
    uses = wishes["look"] and _uses_kernel(compiled, x)
    while wishes["mode"] == "background" and time.monotonic() < until and not uses:
        time.sleep(0.2)
        equal = equal and bool(torch.allclose(compiled(x), expected, rtol=1e-4, atol=1e-5))
        uses = _uses_kernel(compiled, x)
        if not wishes["look"] and _waited_enough(until):
            break
    return {"equal": equal, "kernel": uses}


def is_torchs_own(error: Exception) -> bool:
    """Whether torch could not write a file of its own: with a full disk that fails without us as well.

    Torch raised it, and if code of ours was on the way, all that this did was to have Inductor compile.
    """
    inner = getattr(error, "inner_exception", error)
    frames = [frame.filename for frame in traceback.extract_tb(inner.__traceback__)]
    whose = [(_package(name), name) for name in frames if _package(name)]
    ours = [number for number, (package, _) in enumerate(whose) if package != "torch"]
    below = whose[ours[-1] + 1 :] if ours else whose
    unwritten = type(inner).__name__ == "CppCompileError" and any(
        w in str(inner) for w in UNWRITTEN
    )
    if not (isinstance(inner, OSError) or unwritten) or not below:
        return False
    return not ours or below[0][1].endswith(COMPILES)


def _package(filename: str) -> str:
    """Which of `PACKAGES` a file is of; "" for another."""
    parts = Path(filename).parts
    return next((part for part in reversed(parts) if part in PACKAGES), "")


def _patience_s(name: str, looks: bool) -> float:
    if os.environ.get(WHOLE) or not looks:
        return PATIENCE_S
    return LOOKING_S if name in KNOWN else IDLE_S


def _waited_enough(until: float) -> bool:
    """A user of the background mode who is not asked about kernels goes on after a few calls."""
    return until - time.monotonic() < PATIENCE_S - 3.0


def _uses_kernel(compiled: Callable[[Any], Any], x: Any) -> bool:
    """Whether a call runs an operator of ours."""
    import torch

    with torch.autograd.profiler.profile(use_kineto=False) as seen:
        compiled(x)
    return any("cuda_agent" in event.name for event in seen.function_events)


def _end_search() -> None:
    from cuda_agent_backend.search import client

    if client._process is not None:
        client._process.stop()


def search_process(_: Sequence[str]) -> int:
    """The search process, with a scripted search."""
    from cuda_agent_backend.search import promotion, service, task_searches

    folder = Path(os.environ[faults.FOLDER])

    def keep(cache: Any, key: Any, task: Any, found: Any, *more: Any, **named: Any) -> str:
        why = promotion.keep(cache, key, task, found, *more, **named)
        if not why and hasattr(found, "binary"):
            (folder / "promoted" / key.digest).touch()
        return why

    task_searches.keep = keep
    return service.main() if os.environ.get(WHOLE) else service.main(scripted_search)


def scripted_search(
    task: Any, judges: Any, setup: Any, budget_s: float, recorded: Any, say: Callable[[str], None]
) -> Any:
    """Compile a known kernel as a judge would, and call it a winner."""
    from cuda_agent_backend.search.outcome import NothingFound
    from cuda_agent_backend.search.passing_failures import WatchedJudge
    from sandbox import scratch
    from sandbox.compile.outcome import Compiled
    from sandbox.judge.builds import Builds
    from sandbox.judge.settings import JudgeSettings

    say("a scripted search")
    with scratch.folder("judge") as place:
        (Path(place) / "large").write_bytes(bytes(100_000))
        time.sleep(float(os.environ.get(SEARCH_S, 0)) + int.from_bytes(os.urandom(1)) / 400)
        expression = KNOWN.get(" ".join(node.op.split(".")[1] for node in task.nodes))
        if expression is None:
            return NothingFound("at the limit", exhausted=True, turns=1)
        judge = WatchedJudge(Builds(JudgeSettings("cpu", scratch_dir=place)))
        candidate = _candidate(task, expression)
        made = judge.compile(candidate)
        if not isinstance(made, Compiled):
            why = judge.passing
            return NothingFound(f"{made.reason} ({why})", exhausted=not why, keep=not why)
        return _winner(candidate, made)


def _candidate(task: Any, expression: str) -> Any:
    from sandbox.plan.candidate import Candidate
    from sandbox.plan.plan import Buffer, Launch, Plan

    buffers = [Buffer(f"in{n}", "input", spec) for n, spec in enumerate(task.inputs)]
    buffers += [Buffer(f"out{n}", "output", spec) for n, spec in enumerate(task.output_specs)]
    plan = Plan("cpu", tuple(buffers), (Launch("kernel"),))
    source = SOURCE.format(count=SHAPE[0] * SHAPE[1], expression=expression)
    return Candidate("cpu", "c++", source, plan, "sketch", "by hand")


def _winner(candidate: Any, made: Any) -> Any:
    from cuda_agent_backend.search.outcome import SearchResult
    from sandbox.timing.decision import Interval, SpeedReport
    from sandbox.verdict import VERIFIER_VERSION, Verdict

    interval = Interval(2.0, 1.5, 2.1, 20)
    seconds = {"eager": 2.0, "inductor": 2.0}
    speed = SpeedReport(seconds, {"inductor": interval}, "inductor", None, True)
    evidence = {"verifier": VERIFIER_VERSION, "samples": []}
    verdict = Verdict("wins", "2.00x", 3.0, None, speed, evidence)
    binary = made.path.read_bytes()
    return SearchResult(candidate, verdict, binary, made.toolchain.version, "by hand", "won", 1)


def acceptance(arguments: Sequence[str]) -> int:
    """The measuring process, which finds every graph faster with its kernels."""
    from cuda_agent_backend.acceptance import process

    if not os.environ.get(WHOLE):
        process.run = _scripted_measurement
    return process.main()


def _scripted_measurement(request: Any, say: Callable[[str], None], *_: Any) -> Any:
    from cuda_agent_backend.acceptance.process import _promises
    from cuda_agent_backend.acceptance.rule import Acceptance, Measurement
    from cuda_agent_backend.runtime.kernels import open_kernels
    from kernel_cache import CacheUnavailable
    from sandbox import scratch

    kernels = open_kernels(Path(request["cache_dir"]), Path(request["native_dir"]))
    if isinstance(kernels, CacheUnavailable):
        return str(kernels)
    promises = _promises(request, kernels)
    if isinstance(promises, str):
        return promises
    say("a scripted measurement")
    with scratch.folder("measured") as place:
        (Path(place) / "large").write_bytes(bytes(100_000))
        time.sleep(int.from_bytes(os.urandom(1)) / 500)
    found = Measurement(1.5, 1.4, 1.6, True)
    return replace(Acceptance(tuple(sorted(promises)), "", True, found, 1))


if __name__ == "__main__":
    sys.exit("run by chaos.warm_fork")
