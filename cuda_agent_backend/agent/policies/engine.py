"""The boundary to whatever samples tokens in this process: ids go in, ids and their log-probabilities come out.

A local transformers model and vLLM stand behind it, and `Batcher` puts the requests of many episodes together.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Sampled:
    """What was drawn after one prompt.

    logprobs: of each id, natural logarithm, in the distribution that it was drawn from. ended: whether the last id is
    one that ends messages; otherwise there was no room for more.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: bool


@dataclass(frozen=True)
class EngineFailed:
    """Nothing was drawn, and why."""

    reason: str


class Engine(Protocol):
    """Samples. window: ids that a prompt and what follows it may have together. May raise whatever its library does."""

    @property
    def window(self) -> int: ...

    def generate(self, prompts: Sequence[Sequence[int]]) -> list[Sampled]:
        """What follows each prompt, in their order."""
        ...


class Answers(Protocol):
    """What a policy asks, one prompt at a time. window: see `Engine`."""

    @property
    def window(self) -> int: ...

    def generate(self, prompt: Sequence[int]) -> Sampled | EngineFailed:
        """What follows a prompt."""
        ...


Request = tuple[Sequence[int], "Future[Sampled | EngineFailed]"]


class Batcher:
    """Collects the requests of many threads, and has them generated in batches by one thread of its own.

    most: requests in a batch. wait_s: how long a batch waits for another request, while others may still come.
    """

    def __init__(self, engine: Engine, most: int = 64, wait_s: float = 0.02) -> None:
        self.engine, self.most, self.wait_s = engine, most, wait_s
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def window(self) -> int:
        """See `Engine`."""
        return self.engine.window

    def generate(self, prompt: Sequence[int]) -> Sampled | EngineFailed:
        """What follows one prompt; waits for its batch."""
        future: Future[Sampled | EngineFailed] = Future()
        with self._lock:
            if self._closed:
                return EngineFailed("the engine is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
            self._requests.put((prompt, future))
        return future.result()

    def close(self) -> None:
        """Finish what is asked for, and end the thread."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._requests.put(None)
            thread.join()

    def _work(self) -> None:
        while (first := self._requests.get()) is not None:
            batch, last = self._collect(first)
            for (_, future), found in zip(
                batch, self._generated([p for p, _ in batch]), strict=True
            ):
                future.set_result(found)
            if last:
                return

    def _collect(self, first: Request) -> tuple[list[Request], bool]:
        batch = [first]
        deadline = time.monotonic() + self.wait_s
        while len(batch) < self.most:
            try:
                more = self._requests.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if more is None:
                return batch, True
            batch.append(more)
            deadline = time.monotonic() + self.wait_s
        return batch, False

    def _generated(self, prompts: list[Sequence[int]]) -> list[Sampled | EngineFailed]:
        """All of them; where that fails, each by itself, so that none pays for another."""
        try:
            made = self.engine.generate(prompts)
            if len(made) != len(prompts):
                raise ValueError(f"{len(made)} answers to {len(prompts)} prompts")
            return list(made)
        except Exception as error:
            if len(prompts) == 1:
                return [EngineFailed(f"{type(error).__name__}: {str(error)[:300]}")]
        return [self._generated([prompt])[0] for prompt in prompts]
