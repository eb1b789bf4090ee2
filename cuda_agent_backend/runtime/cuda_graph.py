"""A compiled graph launched as one: its kernels are recorded into a CUDA graph, which calls then replay.

A network of many small kernels waits for the host, which launches them one by one. Whether a graph is replayed is
measured (see `accept`). A recording holds addresses: parameters and buffers are used where they lie, and recorded anew
where they moved; other inputs are copied to where it reads, and outputs to memory of their own, so that whoever calls
sees no difference. Wherever that would not hold, a graph is called as it was compiled.
"""

from __future__ import annotations

import hashlib
import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cuda_agent_backend import log
from cuda_agent_backend.operators.kinds import Kind, kind_of
from cuda_agent_backend.options import CUDAGRAPHS, Options
from cuda_agent_backend.runtime.graph_capture import Call, CudaRecording, Recording, Unrecordable

LEAST_LAUNCHES = 4
"""With fewer of them there is nothing to be gained. A library does a recurrent layer in more."""
FUSED = (Kind.SOURCE, Kind.VIEW, Kind.CONSTANT, Kind.COMPUTE)
"""Nodes without a launch of their own."""
MOST_RECORDINGS = 8
"""Parameters that keep moving are not followed for ever."""
LARGEST_DIFFERENCE = 1e-2
"""Of a replay's results from a call's, in parts of these."""
NAMESPACES = ("aten", "prims", "cuda_agent")
"""Of operators of which it is known that they do the same on the device each time, and nothing else."""

_recording = threading.Lock()
"""One recording at a time in a process: one that begins while another goes on would end it."""


class Replayed:
    """Records `call` in its first call and replays it from then on. Safe among threads.

    still: numbers of the inputs that mostly stay where they are. There are inputs; they and the outputs are tensors of
    fixed sizes on one cuda device; of outputs, some may be None. The call must change no input and give nothing away
    that it keeps. It is recorded at once because what compiles it disturbs other work on the device as well.
    """

    def __init__(
        self,
        call: Call,
        still: Iterable[int],
        record: Callable[[Call, Sequence[Tensor]], Recording] | None = None,
    ) -> None:
        self._call, self._record = call, record or CudaRecording
        self._still = frozenset(still)
        self._lock = threading.Lock()
        self._recording: Recording | None = None
        self._recordings = 0
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
        if self._recordings >= MOST_RECORDINGS:
            self._give_up("its parameters keep moving")
        elif _recording.acquire(blocking=False):  # else with another call
            self._recordings += 1
            try:
                self._prepare(inputs, outputs)
            except Exception as error:  # whatever a call does that cannot be recorded
                self._give_up(f"{type(error).__name__}: {error}")
            finally:
                _recording.release()
        return outputs

    def _prepare(self, inputs: Sequence[Tensor], outputs: Any) -> None:
        self._fixed = sorted(self._still)
        self._moving = [number for number in range(len(inputs)) if number not in self._still]
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
    a, b = (torch.nan_to_num(value.double(), 0.0, 0.0, 0.0) for value in (replayed, called))
    return float((a - b).norm()) <= LARGEST_DIFFERENCE * float(b.norm())


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


def wanted(options: Options) -> bool:
    """Whether a user's wishes and Inductor's options as they are leave it to us."""
    from torch._inductor import config

    if options.acceptance == "trust" or not options.cudagraphs or options.prepack:
        return False  # a replay would not see that weights have changed
    return not options.inductor.get(CUDAGRAPHS, config.triton.cudagraphs)


def still_inputs() -> tuple[int, ...] | None:
    """Numbers of the parameters and buffers among the inputs of the graph that is being compiled.

    None where the graph changes inputs, or where what it puts out are views, or more than tensors: by what AOTAutograd
    found of it, so only while it compiles.
    """
    context = torch._guards.TracingContext.try_get()
    found = context.fw_metadata if context is not None else None
    if found is None or found.tokens or found.num_intermediate_bases:
        return None
    changes = any(one.mutates_data or one.mutates_metadata for one in found.input_info)
    views = any(one.output_type.name != "non_alias" for one in found.output_info)
    return None if changes or views else tuple(found.static_input_indices)


def may_replay(graph: Graph) -> bool:
    """Whether a post-grad graph does the same each time, on one cuda device, in fixed sizes, in several launches."""
    kinds: dict[Node, Kind] = {}
    devices, launches = set(), 0
    for node in graph.nodes:
        kind = kinds[node] = kind_of(node, kinds)
        if node.op == "output":
            continue
        if kind in (Kind.RANDOM, Kind.MUTATION) or not _known(node):
            return False
        for value in _values(node):
            if not isinstance(value, Tensor) or not _fixed(value):
                return False
            devices.add(value.device)
        if node.target is operator.getitem or kind in FUSED:
            continue
        launches += LEAST_LAUNCHES if kind is Kind.RECURRENT else 1
    fused = sum(kind is Kind.COMPUTE for kind in kinds.values())
    one = len(devices) == 1 and devices.pop().type == "cuda"
    return one and launches + min(fused, launches + 1) >= LEAST_LAUNCHES


def _known(node: Node) -> bool:
    if node.op in ("placeholder", "get_attr") or node.target is operator.getitem:
        return True
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    return target.namespace in NAMESPACES and torch.Tag.nondeterministic_seeded not in target.tags


def _values(node: Node) -> Sequence[Any]:
    value = node.meta.get("val")
    return value if isinstance(value, list | tuple) else (value,)


def _fixed(value: Tensor) -> bool:
    return all(type(number) is int for number in (*value.shape, *value.stride()))


# From a graph of Dynamo's to what is known of it


def name_of(gm: GraphModule, inductor: Mapping[str, Any]) -> str:
    """One name for a graph of Dynamo's, its inputs, and the options with which Inductor compiles it."""
    parts = [gm.code, repr(sorted(inductor.items())), str(torch.is_grad_enabled())]
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        parts.append(str(_facts(value) if isinstance(value, Tensor) else value))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _wraps(value: Tensor) -> bool:
    return is_traceable_wrapper_subclass(value)


def _facts(value: Tensor) -> tuple[Any, ...]:
    return tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad


def still_in(gm: GraphModule) -> tuple[int, ...] | None:
    """As `still_inputs`, of a graph of Dynamo's.

    None where it holds parameters itself, whose places nobody tells, where it has no inputs, or where one is not a
    plain tensor on a cuda device.
    """
    if any(True for _ in (*gm.parameters(), *gm.buffers())):
        return None
    inputs = gm.graph.find_nodes(op="placeholder")
    values = [node.meta.get("example_value") for node in inputs]
    plain = (isinstance(value, Tensor) and value.is_cuda and not _wraps(value) for value in values)
    if not inputs or not all(plain):
        return None
    told = [node.meta.get("tensor_dict", {}) for node in inputs]
    return tuple(n for n, facts in enumerate(told) if facts.get("_dynamo_static_input_type"))
