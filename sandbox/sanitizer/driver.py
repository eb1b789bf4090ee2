"""Run a candidate's kernels once, under compute-sanitizer: `python sanitized.py FOLDER`.

Every buffer is an allocation of exactly its size. The program imports no torch: all that the sanitizer watches is
then the candidate's, and it starts in a second. The folder holds `job.json` (see `sanitizer.job_of`), the cubin and
the inputs' bytes. Nothing is read back: a copy of an output that was not written would itself be an error.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

FINISHED = "the kernels ran"
DEVICE = 0


class DriverError(RuntimeError):
    """A call of the CUDA driver failed."""


class Device:
    """The first device through libcuda's C interface, with its primary context current."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), DEVICE)
        self._call("cuCtxSetCurrent", context)

    def buffer(self, size: int, content: bytes | None) -> int:
        """The address of fresh memory, uninitialised where there is no content."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(1, size)))
        if content:
            self._call("cuMemcpyHtoD_v2", address, content, ctypes.c_size_t(len(content)))
        return address.value

    def fill(self, address: int, size: int) -> None:
        """Zeros in place of what a library would write, which is not what is watched."""
        self._call("cuMemsetD8_v2", ctypes.c_uint64(address), 0, ctypes.c_size_t(size))

    def synchronize(self) -> None:
        """Wait for all work. Raises `DriverError` if some of it failed."""
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._cuda, name)(*arguments)
        if status != 0:
            raise DriverError(f"{name} returned {status}")


def run(folder: Path) -> None:
    """Carry out the job in the folder."""
    job = json.loads((folder / "job.json").read_text())
    device = Device()
    addresses = [
        device.buffer(entry["bytes"], (folder / name).read_bytes() if name else None)
        for entry in job["buffers"]
        for name in [entry["content"]]
    ]
    steps = [
        (*front, [_argument(item) for item in arguments]) for *front, arguments in job["steps"]
    ]
    launcher, image = _extension(job["launcher"]), (folder / job["binary"]).read_bytes()
    for first, end, filled in job["segments"]:
        if filled is None:
            launcher.load_cuda(image, steps[first:end]).launch(addresses, 0, DEVICE)
        else:
            number, offset, size = filled
            device.fill(addresses[number] + offset, size)
    device.synchronize()
    print(FINISHED)


def _extension(path: str) -> Any:
    """The launcher by its file: the folder that holds the package is not in the view, and cannot be searched."""
    spec = importlib.util.spec_from_file_location("_launcher", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _argument(item: int | str | list[Any]) -> int | bytes | tuple[Any, ...]:
    """A buffer's number, a scalar's bytes, or a tensor map."""
    if isinstance(item, list):
        return tuple(item)
    return item if isinstance(item, int) else base64.b64decode(item)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
