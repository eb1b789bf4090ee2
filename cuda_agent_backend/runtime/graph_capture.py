"""The work that a call gives to a device, recorded into a CUDA graph, and what is undone where that fails."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

MEMORY_SHARE = 1 / 16
"""Of the device's memory, what a recording may keep for itself."""

NON_BLOCKING = 1
"""CUDA's flag of a stream that does not wait for the default one, nor that for it."""

Call = Callable[..., Any]


class Unrecordable(Exception):
    """Why a call cannot be replayed."""


class Recording(Protocol):
    """A call on tensors that stay where they are. outputs: what it made, and what each replay makes again."""

    outputs: Sequence[Any]

    def replay(self) -> None:
        """Do again what the call did."""


class CudaRecording:
    """The work that a call gives to the device of its inputs. Raises `Unrecordable`, or what the call raises."""

    def __init__(self, call: Call, inputs: Sequence[Tensor]) -> None:
        device = inputs[0].device
        with torch.cuda.device(device), _stream_kept(device):
            stream = own_stream(device)
            call(*inputs)  # what it loads for these inputs, it loads here
            self._graph = torch.cuda.CUDAGraph()
            torch.cuda.empty_cache()  # as recording does: what is reserved more after it, is reserved by it
            before = torch.cuda.memory_reserved()
            with _captured(self._graph, stream):
                self.outputs: Sequence[Any] = call(*inputs)
            kept = torch.cuda.memory_reserved() - before
            total = torch.cuda.get_device_properties(device).total_memory
        if kept > MEMORY_SHARE * total:
            raise Unrecordable(f"it would keep {kept} bytes of memory")

    def replay(self) -> None:
        """See `Recording`."""
        self._graph.replay()


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream on which nothing ran before, and nothing else ever will; `device` is the current one.

    cuBLAS has work space by stream, of which a recording holds the address, and torch keeps it until somebody has all
    of it freed, as CUDA graphs of torch.compile have (`mode="max-autotune"`) and, in later releases, the end of any
    graph that was recorded on that stream. Here it is first needed while it is recorded, and so lies in the recording's
    own pool, of which nobody else is given anything. Torch hands out 32 streams in turn. This one is never destroyed,
    since another could then have its address. Releases of torch that keep a stream's work space beyond the end of its
    recording hold that of one given up (32 MiB on Hopper) until all is freed. Raises `Unrecordable` where the driver
    gives none, OSError where there is no driver.
    """
    found = ctypes.c_void_p()
    error = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(found), NON_BLOCKING)
    if error or not found.value:
        raise Unrecordable(f"the driver gives no stream: CUDA error {error}")
    return torch.cuda.ExternalStream(found.value, device)


@contextmanager
def _stream_kept(device: torch.device) -> Iterator[None]:
    """The current stream again at the end: torch leaves a thread on that of a recording that failed."""
    stream = torch.cuda.current_stream(device)
    try:
        yield
    finally:
        torch.cuda.set_stream(stream)


@contextmanager
def _captured(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> Iterator[None]:
    """What is done within is recorded; what cannot be, leaves no trace."""
    pool = torch.cuda.graph_pool_handle()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*CUDA Graph is empty.*")
            with torch.cuda.graph(
                graph, pool=pool, stream=stream, capture_error_mode="thread_local"
            ):
                yield
    except BaseException:
        if give_back(pool, stream.device_index):
            _draw_again(stream)
        raise


def give_back(pool: Any, device_index: int) -> bool:
    """End and free the memory pool of a recording that failed; False where torch has ended it itself.

    Torch does so only after a recording that went well. Its allocator would take the recording for one that goes on,
    reuse no memory that several streams have used, and raise where it is short of memory.
    """
    try:
        torch._C._cuda_endAllocateToPool(device_index, pool)
    except RuntimeError:
        return False
    torch._C._cuda_releasePool(device_index, pool)
    return True


def _draw_again(stream: torch.cuda.Stream) -> None:
    """Have the device draw random numbers again, by a recording that goes well.

    After one that did not, torch's generator takes itself for recorded and refuses all that is drawn outside.
    """
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local"):
        torch.zeros(1, device=stream.device)
