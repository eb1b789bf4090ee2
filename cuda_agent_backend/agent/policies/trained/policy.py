"""The policy ``trained``: a small model that names schedules, with weights of the package or of a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from cuda_agent_backend.agent.policies.engine import EngineFailed, Sampled
from cuda_agent_backend.agent.policies.spec import PolicySpec
from cuda_agent_backend.agent.policies.trained.allowance import USED_UP, Allowance
from cuda_agent_backend.agent.policies.trained.place import folder_of
from cuda_agent_backend.agent.policies.trained.sampler import MOST_IDS, Request, Sampler
from cuda_agent_backend.agent.policies.trained.speech import Listener, Speech
from cuda_agent_backend.agent.policies.trained.weights import Unusable, load
from cuda_agent_backend.agent.protocol import Message, Schema, Stopped, Tokens, Turn, Usage

Generate = Callable[[Request], Sampled | EngineFailed]
"""The next message of a conversation."""

_lock = threading.Lock()
_shared: dict[tuple[str, float | None], Sampler] = {}


def make(spec: PolicySpec) -> TrainedPolicy:
    """Raises `ImportError` where there are no weights, or none that can be used."""
    wanted, folder = spec.sampling.temperature, folder_of(spec.model)
    key = (str(folder), wanted)
    with _lock:
        if key not in _shared:
            found = load(folder)
            if isinstance(found, Unusable):
                raise ImportError(found.reason)
            temperature = found.temperature if wanted is None else wanted
            _shared[key] = Sampler(found.model, found.speech, temperature)
        sampler = _shared[key]
    session = sampler.session()

    def generate(request: Request) -> Sampled:
        with _lock:  # one model, which several episodes share
            return session.generate([request])[0]

    seed = spec.sampling.seed or 0
    return TrainedPolicy(spec.label, sampler.speech, generate, sampler.window, seed=str(seed))


def forget_models() -> None:
    """Give the memory of all models back."""
    with _lock:
        _shared.clear()


class TrainedPolicy:
    """One episode's conversation. It goes on from any that it could have had itself, which it then reads anew. Where
    nobody tells it how many judgements it has, it ends by itself (see `Allowance`).

    window: ids of a conversation at most. key, seed: see `Request`; a turn's draws hang on the seed and its number.
    """

    def __init__(
        self,
        name: str,
        speech: Speech,
        generate: Generate,
        window: int,
        key: int = 0,
        seed: str = "0",
    ) -> None:
        self.name = name
        self._speech, self._generate, self._window = speech, generate, window
        self._key, self._seed = key, seed
        self._listener, self._allowance = Listener(speech), Allowance(())
        self._begun: int | None = None
        self._seen = 0
        self._said: Message = {}
        self._cut = False

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        """The model's next message, with its tokens."""
        self._begun = len(messages) if self._begun is None else self._begun
        prompt, follows = self._hear(messages)
        self._seen = 0  # where nothing comes of this turn, all is read anew
        listener = self._listener
        if why := self._allowance.why_spent:
            return Stopped("cost", why)
        if len(listener.ids) + MOST_IDS > self._window:
            return Stopped(
                "context", f"{len(listener.ids)} ids leave no room in a context of {self._window}"
            )
        turns = sum(message["role"] == "assistant" for message in messages)
        found = self._generate(Request(self._key, list(listener.ids), f"{self._seed}/{turns}"))
        if isinstance(found, EngineFailed):
            return Stopped("infrastructure", found.reason)
        usage = Usage(len(listener.ids), len(found.ids))
        turn = self._turn(found, 1 + sum(len(m.get("tool_calls", ())) for m in messages))
        if self._allowance.ends(turn):
            return Stopped("cost", USED_UP)
        self._seen, self._said = len(messages) + 1, turn.to_message()
        self._allowance.say(self._said)
        tokens = Tokens(tuple(prompt), found.ids, found.logprobs, follows)
        return replace(turn, tokens=tokens, usage=usage)

    def _turn(self, found: Sampled, first: int) -> Turn:
        """What was sampled as a turn, without the calls for which no judgement is left. first: its first call's
        number."""
        listener = self._listener
        if not found.ended:
            listener.say(found.ids)
            return Turn("cut off", truncated=True)
        turn = self._speech.turn(found.ids, listener.known, first)
        room = self._allowance.room(turn.calls)
        self._cut = room < len(turn.calls)
        listener.say(self._speech.shortened(found.ids, room))
        return replace(turn, calls=turn.calls[:room])

    def resume(self, messages: Sequence[Message], tools: Sequence[Schema]) -> str:
        """Why it cannot go on with an episode of another process; "" where it can."""
        self._begun = 0
        said = self._speech.encoded(messages)
        return "" if said is not None else "it says what this policy's words cannot"

    def _hear(self, messages: Sequence[Message]) -> tuple[list[int], bool]:
        """The ids that are new, and whether they follow on what was read before."""
        if self._seen and len(messages) >= self._seen and messages[self._seen - 1] == self._said:
            new = self._listener.hear(self._allowance.hear(messages[self._seen :]))
            whole, self._cut = self._cut, False  # what was sampled is not what was said
            return (list(self._listener.ids), False) if whole else (new, True)
        self._listener = Listener(self._speech)
        self._allowance = Allowance(messages, self._begun or 0)
        start = 0
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            self._listener.hear(self._allowance.hear(messages[start:place]))
            made = self._speech.message_ids(message, self._listener.known)
            self._listener.say(
                made or []
            )  # what there are no words for was cut off, or another policy's
            self._allowance.say(message)
            start = place + 1
        self._listener.hear(self._allowance.hear(messages[start:]))
        return list(self._listener.ids), False
