"""Many episodes that ask one model together: a batch goes when every episode that is still going on has asked.

So batches, and with them every digit, are the same whenever the same episodes are played again, however threads run.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence

from cuda_agent_backend import log
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
        answers = self._answered(requests)
        self._answers |= {r.key: answer for r, answer in zip(requests, answers, strict=True)}
        self._changed.notify_all()

    def _answered(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """An answer to each, whatever happens: an error that left here would end one episode, and the others would wait
        for ever."""
        try:
            found = self._generate(requests)
            if len(found) != len(requests):
                raise ValueError(f"{len(found)} answers to {len(requests)} requests")
        except Exception as error:
            log.once("train", f"a batch was not generated:\n{traceback.format_exc()}")
            return [EngineFailed(f"{type(error).__name__}: {error}")] * len(requests)
        return found
