"""What the tests of threads and processes run in processes of their own; each function gives JSON values."""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from deployed_kit import MARK, SIZES, compiled, given, marked, model
from torch import Tensor
from torch.torch_version import TorchVersion

TORCHS_OWN = "using FX to symbolically trace a dynamo-optimized function"
OLD = TorchVersion(torch.__version__) < "2.13.dev0"
"""Whether threads disturb each other in torch itself, whatever the backend."""


def threads(count: str) -> Any:
    """Threads whose first calls meet, each with models of its own; of each call whether it was right, or its error."""
    meet, said = threading.Barrier(int(count)), []

    def work(number: int) -> None:
        try:
            meet.wait()
            functions = [
                model,
                lambda x, w: model(x, w) * number,
                lambda x, w: torch.softmax(x @ w + number, -1),
            ]
            for place, function in enumerate(functions):
                for size in SIZES[:2]:
                    inputs = given(size)
                    with torch.no_grad():
                        result = compiled(function, dynamic=False)(*inputs)
                    mark = (MARK, MARK * number, 0.0)[place]
                    # A frame that one thread meets while another is traced may run as it is.
                    eager = function(*inputs)
                    plain = torch.allclose(result, eager, rtol=1e-5, atol=1e-6)
                    assert plain or torch.allclose(result, eager + mark, atol=1e-3), (place, result)
            said.append("right")
        except BaseException:
            text = traceback.format_exc()
            said.append("right" if TORCHS_OWN in text and OLD else text)

    started = [threading.Thread(target=work, args=(number,)) for number in range(int(count))]
    for one in started:
        one.start()
    for one in started:
        one.join()
    return said


def in_child(work: Callable[[], bool]) -> int:
    """The exit status of a forked child that does the work: 0 where it was right."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork() -> Any:
    """Children of a process that has compiled: one runs the compiled model, one compiles others, one both."""
    run = compiled(dynamic=False)

    def right(function: Any, size: int) -> bool:
        with torch.no_grad():
            return marked(function(*given(size)), model(*given(size)))

    def anew() -> Any:
        return compiled(lambda x, w: torch.exp(x @ w), dynamic=False)

    assert right(run, SIZES[0])
    found = [
        in_child(lambda: right(run, SIZES[0])),
        in_child(lambda: right(run, SIZES[1])),
        in_child(lambda: right(anew(), SIZES[0])),
    ]
    assert right(run, SIZES[2])
    return found


class Compiles(torch.utils.data.Dataset[Tensor]):
    """A data set whose items a compiled function makes: one of the main process's, or one of the worker's own."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        self.function = self.function or compiled(dynamic=False)
        with torch.no_grad():
            found: Tensor = self.function(*given(SIZES[index % 3]))
        return found[:1]


def workers(context: str) -> Any:
    """A loader whose workers call a compiled function, while the main process runs a compiled model on what comes."""
    torch.manual_seed(0)
    run = compiled(dynamic=False)
    data = Compiles(run if context == "fork" else None)
    with torch.no_grad():
        right = [marked(run(*given()), model(*given()))]
        loader = torch.utils.data.DataLoader(
            data, batch_size=2, num_workers=2, multiprocessing_context=context
        )
        for start, batch in enumerate(loader):
            want = [model(*given(SIZES[index % 3]))[:1] for index in (2 * start, 2 * start + 1)]
            right.append(marked(batch, torch.stack(want)))
            right.append(marked(run(*given()), model(*given())))
    return right


def _precompiled() -> list[Any]:
    """How much larger than eager's the result is, and whether the code was there."""
    from torch._dynamo.utils import counters

    torch._dynamo.config.caching_precompile = True
    with torch.no_grad():
        result = compiled(dynamic=False)(*given())
    difference = result - model(*given())
    return [round(float(difference.mean()), 1), counters["dynamo_cache"]["dynamo_cache_hit"]]


def precompiled(path: str) -> Any:
    """Compiles with what torch kept of earlier processes, and keeps it. path: a file for torch's caches."""
    found = _precompiled()
    made = torch.compiler.save_cache_artifacts() if path else None
    if made is not None:
        Path(path).write_bytes(made[0])
    return found


def carried(path: str) -> Any:
    """Compiles with torch's caches from a file."""
    torch.compiler.load_cache_artifacts(Path(path).read_bytes())
    return _precompiled()


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
