"""A compiled graph launched as one: its kernels are recorded into a CUDA graph, which calls then replay.

A network of many small kernels waits for the host, which launches them one by one. Whether a graph is replayed is
measured (see `acceptance`). A recording holds addresses. Parameters and buffers are used where they lie, and recorded
anew where they moved. Other inputs are copied to where the recording reads, and outputs to memory of their own, so that
whoever calls sees no difference. Wherever that would not hold, a graph is called as it was compiled.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_agent_backend import log
from cuda_agent_backend.runtime.graph_capture import Call, CudaRecording, Recording, Unrecordable
from sandbox.failures import back_off_s, why_passing

MOST_RECORDINGS = 8
"""Parameters that keep moving are not followed for ever, nor is memory waited for."""
LARGEST_DIFFERENCE = 1e-2
"""Of a replay's results from a call's, in parts of these."""
CHUNK = 1 << 24
"""Elements of a result that are compared in one go."""

_recording = threading.Lock()
"""One recording at a time in a process: one that begins while another goes on would end it."""


class CudaGraphCall:
    """Records `call` in its first call and replays it from then on. Safe among threads.

    static_inputs: numbers of the inputs that mostly stay where they are. There are inputs; they and the outputs are
    tensors of fixed sizes on one cuda device; of outputs, some may be None. The call must change no input and give
    nothing away that it keeps. It is recorded at once because what compiles it disturbs other work on the device, too.
    """

    def __init__(
        self,
        call: Call,
        static_inputs: Iterable[int],
        record: Callable[[Call, Sequence[Tensor]], Recording] | None = None,
    ) -> None:
        self._call, self._record = call, record or CudaRecording
        self._static_inputs = frozenset(static_inputs)
        self._lock = threading.Lock()
        self._recording: Recording | None = None
        self._own: list[Tensor] = []
        self._recordings = self._failures = 0
        self._not_before = 0.0
        """When it is recorded again after a failure that may pass (`time.monotonic`)."""
        self._device: torch.device | None = None
        self.reason = ""
        """Why it is not replayed any more, "" as long as it is."""

    def __call__(self, *inputs: Any) -> Any:
        """What `call` returns, in memory of its own."""
        if self.reason or not self._at_home():
            return self._call(*inputs)
        with self._lock:
            if self._device is None:
                return self._first(inputs)
            if self._recording is None or self._moved(inputs):
                return self._record_with(inputs, self._call(*inputs))
            return self._again(inputs)

    def _at_home(self) -> bool:
        """Whether the current device is the graph's, and its stream is not recorded by somebody else."""
        if self._device is None or self._device.type != "cuda":
            return True
        here = torch.cuda.current_device() == self._device.index
        return here and not torch.cuda.is_current_stream_capturing()

    def _first(self, inputs: Sequence[Any]) -> Any:
        """A call as it was compiled, which does what is done only once, and then its recording."""
        devices = {value.device if isinstance(value, Tensor) else None for value in inputs}
        device = devices.pop() if len(devices) == 1 else None
        if device is None:
            self._give_up("its inputs are not tensors on one device")
            return self._call(*inputs)
        self._device = device
        before = [_version(value) for value in inputs]
        outputs = self._call(*inputs)
        if before != [_version(value) for value in inputs]:
            self._give_up("it changes its inputs")
            return outputs
        return self._record_with(inputs, outputs) if self._at_home() else outputs

    def _moved(self, inputs: Sequence[Tensor]) -> bool:
        return self._places != [inputs[number].data_ptr() for number in self._fixed]

    def _record_with(self, inputs: Sequence[Tensor], outputs: Any) -> Any:
        """The outputs of a call, after a recording of it that gives the same."""
        self._recording = None
        if time.monotonic() < self._not_before:
            return outputs
        if self._recordings >= MOST_RECORDINGS:
            self._give_up(
                "memory was short too often" if self._failures else "its parameters keep moving"
            )
        elif _recording.acquire(blocking=False):  # else with another call
            self._recordings += 1
            try:
                self._prepare(inputs, outputs)
            except Exception as error:  # whatever a call does that cannot be recorded
                self._not_recorded(error)
            finally:
                _recording.release()
        return outputs

    def _not_recorded(self, error: Exception) -> None:
        """Leave it for a while where the device had no memory, and else for good."""
        if not why_passing(error):
            self._give_up(f"{type(error).__name__}: {error}")
            return
        self._recording = None
        self._own.clear()
        self._failures += 1
        self._not_before = time.monotonic() + back_off_s(self._failures + 1)
        log.logger("cudagraph").info("a graph is launched kernel by kernel for now: %s", error)

    def _prepare(self, inputs: Sequence[Tensor], outputs: Any) -> None:
        self._fixed = sorted(self._static_inputs)
        self._moving = [
            number for number in range(len(inputs)) if number not in self._static_inputs
        ]
        self._places = [inputs[number].data_ptr() for number in self._fixed]
        with torch.inference_mode(False), torch.no_grad():
            copies = {number: _like(inputs[number]) for number in self._moving}
        self._own = [copies[number] for number in self._moving]
        self._take(inputs)
        given = [copies.get(number, value) for number, value in enumerate(inputs)]
        recording = self._record(self._call, given)
        _check(recording.outputs, given)
        self._stream = _stream()
        recording.replay()
        if not all(map(_alike, recording.outputs, outputs)):
            raise Unrecordable("a replay does not give what a call does")
        self._recording = recording

    def _take(self, inputs: Sequence[Tensor]) -> None:
        if self._own:
            with torch.no_grad():
                torch._foreach_copy_(self._own, [inputs[number] for number in self._moving])

    def _again(self, inputs: Sequence[Tensor]) -> list[Any]:
        assert self._recording is not None
        stream = _stream()
        if stream != self._stream:
            stream.wait_stream(self._stream)  # one recording does one call at a time
            self._stream = stream
        self._take(inputs)
        self._recording.replay()
        with torch.no_grad():
            return [_copy(value) for value in self._recording.outputs]

    def _give_up(self, reason: str) -> None:
        self._recording, self._own, self.reason = None, [], reason
        log.logger("cudagraph").info("a graph is launched kernel by kernel: %s", reason)


def _stream() -> Any:
    return torch.cuda.current_stream() if torch.cuda.is_available() else None


def _alike(replayed: Any, called: Any) -> bool:
    """Whether two results are the same but for the order of additions, which some kernels leave open."""
    if replayed is None or called is None:
        return replayed is called
    if not called.is_floating_point():
        return torch.equal(replayed, called)
    pair = replayed, called
    if all(value.is_contiguous() for value in pair):
        pair = replayed.view(-1), called.view(-1)
    apart = size = 0.0
    # In double some at a time: of all of a large result it would take six times as much.
    for parts in zip(*(value.split(CHUNK) for value in pair), strict=True):
        a, b = (torch.nan_to_num(part.double(), 0.0, 0.0, 0.0) for part in parts)
        apart, size = math.hypot(apart, float((a - b).norm())), math.hypot(size, float(b.norm()))
    return apart <= LARGEST_DIFFERENCE * size


def _version(value: Any) -> int:
    return 0 if not isinstance(value, Tensor) or value.is_inference() else value._version


def _like(value: Tensor) -> Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _copy(value: Any) -> Any:
    """In memory of its own, with the same strides."""
    return _like(value).copy_(value) if isinstance(value, Tensor) else value


def _check(outputs: Any, inputs: Sequence[Tensor]) -> None:
    """Raises `Unrecordable` where copies of the outputs would not be what the call returns."""
    if not isinstance(outputs, list | tuple):
        raise Unrecordable(f"it returns a {type(outputs).__name__}")
    taken = {value.untyped_storage().data_ptr() for value in inputs}
    for value in outputs:
        if value is None:
            continue
        if type(value) is not Tensor or value.requires_grad:
            raise Unrecordable(f"an output is a {type(value).__name__}, or has a gradient")
        place = value.untyped_storage().data_ptr()
        if value.numel() and place in taken:
            raise Unrecordable("outputs share memory with each other or with an input")
        if any(s == 0 and n > 1 for n, s in zip(value.shape, value.stride(), strict=True)):
            raise Unrecordable("elements of an output share memory")
        taken.add(place)


# Which graphs may be replayed


# From a graph of Dynamo's to what is known of it
