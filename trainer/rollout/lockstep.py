"""Many episodes that ask one model together: a batch goes when every episode that is still going on has asked.

So batches, and with them every digit, are the same whenever the same episodes are played again, however threads run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from cuda_agent_backend.agent.policies.engine import EngineFailed, Sampled
from cuda_agent_backend.agent.policies.trained.sampler import Request

Answer = Sampled | EngineFailed


class Lockstep:
    """generate: the next messages of conversations, in their order. keys: of the episodes that will ask."""

    def __init__(
        self, generate: Callable[[Sequence[Request]], Sequence[Sampled]], keys: Sequence[int]
    ) -> None:
        self._generate = generate
        self._playing = set(keys)
        self._waiting: dict[int, Request] = {}
        self._answers: dict[int, Answer] = {}
        self._changed = threading.Condition()

    def ask(self, request: Request) -> Answer:
        """What follows; waits for the others."""
        with self._changed:
            self._waiting[request.key] = request
            self._go()
            while request.key not in self._answers:
                self._changed.wait()
            return self._answers.pop(request.key)

    def leave(self, key: int) -> None:
        """An episode is over."""
        with self._changed:
            self._playing.discard(key)
            self._go()

    def _go(self) -> None:
        """Generate where nobody is missing; by whichever thread came last."""
        if not self._waiting or len(self._waiting) < len(self._playing):
            return
        requests = [self._waiting[key] for key in sorted(self._waiting)]
        self._waiting = {}
        found: Sequence[Answer]
        try:
            found = self._generate(requests)
        except (RuntimeError, MemoryError, ValueError) as error:  # as when memory runs out
            found = [EngineFailed(f"{type(error).__name__}: {error}")] * len(requests)
        self._answers |= {r.key: answer for r, answer in zip(requests, found, strict=True)}
        self._changed.notify_all()
