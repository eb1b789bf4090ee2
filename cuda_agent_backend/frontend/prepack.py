"""What depends on weights alone, computed once and redone when they change; on request (`cuda_agent.prepack`).

Masks, casts of autocast, norms and products of weights are part of a model's graph and so of each call. Here a graph
for inference is cut in two before Inductor sees it (`weight_split`): what only weights go into runs in eager mode, and
its results are inputs of the rest for as long as the weights stay what they were.

What a weight was is told by the tensor itself, its address and its version, which every in-place operator of torch
raises. Not seen, and so to be told with `weights_changed`: writes through ``.data``, by kernels of other libraries, and
by a CUDA graph that is replayed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config
from torch.fx import GraphModule

from cuda_agent_backend import log
from cuda_agent_backend.frontend.weight_split import Split, bytes_of, split_off_weights
from cuda_agent_backend.weights import unseen_changes

Call = Callable[..., Any]


def with_prepacking(inner: Call, tell: Callable[[Split], None] = lambda _: None) -> Call:
    """Inductor's `compile_fx_inner`, or what stands for it, for graphs cut in two. tell: is told of each before."""

    def compile_split(gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        static_inputs = tuple(kwargs.get("static_input_idxs") or ())
        found = (
            split_off_weights(gm, static_inputs)
            if kwargs.get("is_inference") and not config.freezing
            else None
        )
        if found is None:
            return inner(gm, example_inputs, **kwargs)
        size = sum(map(bytes_of, found.values)) / 1e6
        log.logger("prepack").info(
            "%d values of weights are kept, %.1f MB", len(found.values), size
        )
        tell(found)
        inputs = [*example_inputs, *found.values]
        kwargs["static_input_idxs"] = [*static_inputs, *range(len(example_inputs), len(inputs))]
        return _boxed(Prepacked(inner(found.rest, inputs, **kwargs), found))

    return compile_split


class Prepacked:
    """Calls the rest of a graph with what its weights come to. Safe among threads and streams.

    While the current stream is recorded nothing is kept: a replay has to see the weights as they are then.
    """

    def __init__(self, rest: Call, parts: Split) -> None:
        self._rest, self._parts = rest, parts
        self._lock = threading.Lock()
        self._seen: list[tuple[Any, ...]] = []
        self._values: list[Tensor] = []
        self._stream: Any = None
        self.times = 0
        """How often the weights' part was computed."""

    def __call__(self, *inputs: Any) -> Any:
        """What the whole graph returns."""
        weights = [inputs[number] for number in self._parts.taken]
        return self._rest([*inputs, *self._of(weights)])

    def _of(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        if _is_recorded() or any(weight.is_inference() for weight in weights):
            return self._compute(weights)
        with self._lock:
            if not self._seen or not all(map(_is_same, self._seen, weights)):
                self._seen = []
                values = self._compute(weights)
                self._seen, self._values, self._stream = (
                    list(map(_state, weights)),
                    values,
                    _stream(),
                )
            elif self._stream != _stream():
                self._follow()
            return self._values

    def _compute(self, weights: Sequence[Tensor]) -> list[Tensor]:
        self.times += 1
        return self._parts.compute(weights)

    def _follow(self) -> None:
        """Let the current stream wait for what another one computed, and keep its memory until this one is done."""
        stream = _stream()
        stream.wait_stream(self._stream)
        for value in self._values:
            value.record_stream(stream)


def _state(weight: Tensor) -> tuple[Any, ...]:
    return weakref.ref(weight), weight.data_ptr(), weight._version, unseen_changes()


def _is_same(seen: tuple[Any, ...], weight: Tensor) -> bool:
    known, *facts = seen
    return known() is weight and facts == [weight.data_ptr(), weight._version, unseen_changes()]


def _is_recorded() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _stream() -> Any:
    return torch.cuda.current_stream() if torch.cuda.is_available() else None


def _boxed(call: Call) -> Call:
    """As Inductor's own code is called: with a list, which is emptied."""

    def run(given: list[Any]) -> Any:
        inputs = list(given)
        given.clear()
        return call(*inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
