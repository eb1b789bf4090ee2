"""A process that holds some of a device's memory while a run lasts, as a user's own model does, and does nothing else.

``python -m cuda_agent_backend.bench.holder BYTES DEVICE``: it says that it has them, and ends when its input does.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cuda_agent_backend.runtime.child_process import child_environment

READY = "held"


class CannotHold(Exception):
    """The device has not as many bytes, or the process that held them ended too early."""


@contextmanager
def holding(size: int, device: str = "cuda") -> Iterator[None]:
    """While another process holds so many bytes; with 0 there is none. Raises `CannotHold`."""
    if not size:
        yield
        return
    words = [sys.executable, "-m", __name__, str(size), device]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdin=pipe, stdout=pipe, text=True, env=child_environment(), start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                raise CannotHold(f"{size:,} bytes of {device} are not to be had")
            yield
            if process.poll() is not None:
                raise CannotHold(f"the process that held {size:,} bytes ended before the run")
        finally:
            process.kill()


def main(size: int, device: str) -> None:
    """Hold them until standard input ends. Raises what torch raises where they are not there."""
    import torch

    kept = torch.zeros(size, dtype=torch.uint8, device=device)
    print(READY, flush=True)
    sys.stdin.read()
    del kept


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
