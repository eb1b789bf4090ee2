"""The openai policy: a model behind any OpenAI-compatible endpoint, through the official client, streaming off.

The client makes requests; attempts are ours, because one time limit holds for all of them, and because a body that is
cut off, or that is no chat completion, is a reason to ask again as well. What a server may do wrong ends in a `Turn`
that the tools answer, or in `Stopped`; nothing is raised. May be used by one episode at a time.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, reduce
from typing import Any

from cuda_agent_backend.agent.policies.endpoint_answers import (
    CHARACTERS_PER_TOKEN,
    Unreadable,
    error_text,
    read_answer,
)
from cuda_agent_backend.agent.policies.endpoint_faults import Again, delay, judged
from cuda_agent_backend.agent.policies.endpoint_requests import compacted, ids_of, prepared, size
from cuda_agent_backend.agent.policies.spec import PolicySpec
from cuda_agent_backend.agent.protocol import Message, Schema, Stopped, Turn, Usage
from cuda_agent_backend.settings import openai_key

BASE_URL = "https://api.openai.com/v1"
NO_KEY = "none"
"""What a server is told that asks for no key; the client wants one."""
BYTES_PER_CHARACTER = 8
"""A body larger than the limit of a message by this factor is not read to its end."""
EMPTY_TRIES = 2
"""Further attempts at an answer in which there is nothing."""
SQUEEZES = (1.0, 0.6, 0.3)
"""Parts of the context that the conversation is brought down to, when a server says that it is too long."""


class TooLarge(Exception):
    """A body that is not read further."""


class Pace:
    """Spaces the requests of all episodes of this process that use one endpoint."""

    def __init__(self, per_minute: float) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self, sleep: Callable[[float], None]) -> None:
        """Until it is this request's turn."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._gap
        if turn > now:
            sleep(turn - now)


@lru_cache(maxsize=16)
def pace_of(url: str, per_minute: float) -> Pace:
    """The one of an endpoint in this process."""
    return Pace(per_minute)


def make(spec: PolicySpec) -> EndpointPolicy:
    """Raises `ImportError` where the key is missing and the endpoint is not one's own."""
    key = openai_key()
    if not key and not spec.base_url:
        raise ImportError("the policy 'openai' needs OPENAI_API_KEY, or the URL of a server")
    return EndpointPolicy(spec, key)


class EndpointPolicy:
    """A conversation with one model. sleep: how it waits between attempts."""

    def __init__(
        self, spec: PolicySpec, key: str = "", sleep: Callable[[float], None] = time.sleep
    ) -> None:
        import openai

        self._openai = openai
        self._spec, self._key, self._sleep = spec, key, sleep
        url = spec.base_url or BASE_URL
        self._client: Any = openai.OpenAI(api_key=key or NO_KEY, base_url=url, max_retries=0)
        self._pace = pace_of(url, spec.limits.requests_per_minute)
        self._bound = "max_tokens" if spec.base_url else "max_completion_tokens"
        self._draw = random.Random()
        self._spent = Usage()

    @property
    def name(self) -> str:
        """With the model's."""
        return self._spec.label

    def close(self) -> None:
        """Give up the connections."""
        self._client.close()

    def spent(self, usages: Sequence[Usage]) -> None:
        """What an episode that is taken up has used: its allowance is one for all processes."""
        self._spent = reduce(_sum, usages, self._spent)

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        """The model's next message; asks again where there is nothing in it."""
        took = Usage()
        turn = Turn()
        for _ in range(1 + EMPTY_TRIES):
            found = self._over() or self._fitting(messages, tools)
            if isinstance(found, Stopped):
                return found
            took = _sum(took, found.usage or Usage())
            self._spent = _sum(self._spent, found.usage or Usage())
            turn = replace(found, usage=took)
            if turn.content.strip() or turn.calls or turn.truncated:
                break
        return turn

    def _over(self) -> Stopped | None:
        limits, spent = self._spec.limits, self._spent
        tokens = spent.prompt_tokens + spent.completion_tokens
        if limits.max_tokens and tokens >= limits.max_tokens:
            return Stopped("cost", f"{tokens} tokens are used, {limits.max_tokens} were allowed")
        if limits.max_cost and spent.cost >= limits.max_cost:
            return Stopped("cost", f"{spent.cost:.4g} is spent, {limits.max_cost:.4g} was allowed")
        return None

    def _fitting(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        """Ask; where the conversation is too long for the server, again with old observations shortened."""
        whole = prepared(messages, self._spec.limits.message_characters)
        room = self._room(tools) or size(whole)
        stopped: Turn | Stopped = Stopped("context", "nothing fits")
        sent: list[Message] = []
        for part in SQUEEZES:
            fits = compacted(whole, int(room * part))
            if fits == sent:
                continue
            sent = fits
            stopped = self._ask(sent, tools)
            if not isinstance(stopped, Stopped) or stopped.kind != "context":
                break
        return stopped

    def _room(self, tools: Sequence[Schema]) -> int:
        """Characters that the conversation may have; 0: not known."""
        tokens = self._spec.limits.context_tokens
        if not tokens:
            return 0
        left = tokens - self._spec.sampling.max_new_tokens
        return max(CHARACTERS_PER_TOKEN * left - size(list(tools)), 1)

    def _ask(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        limits, taken = self._spec.limits, ids_of(messages)
        deadline = time.monotonic() + limits.timeout_s
        attempt = 0
        while True:
            self._pace.wait(self._sleep)
            found = self._once(messages, tools, deadline - time.monotonic())
            if isinstance(found, dict | list):
                read = read_answer(found, limits, taken, size(messages))
                found = Again(read.reason) if isinstance(read, Unreadable) else read
            if isinstance(found, Turn):
                return found
            if isinstance(found, Stopped):
                return replace(found, reason=self._clean(found.reason))
            pause = delay(attempt, found.after_s, self._draw)
            attempt += 1
            if attempt > limits.retries or time.monotonic() + pause > deadline:
                said = f"after {attempt} attempts: {self._clean(found.reason)}"
                return Stopped("infrastructure", said)
            self._sleep(pause)

    def _once(
        self, messages: Sequence[Message], tools: Sequence[Schema], seconds: float
    ) -> Any | Again | Stopped | Turn:
        """One request: the decoded answer, or what became of it."""
        openai = self._openai
        try:
            with self._client.chat.completions.with_streaming_response.create(
                messages=messages, tools=tools, timeout=max(seconds, 0.1), **self._wanted()
            ) as answer:
                body = self._body(answer, time.monotonic() + seconds)
        except openai.APIStatusError as error:
            return self._judged(error)
        except openai.APIError as error:  # no connection, or no answer in time
            return Again(f"{type(error).__name__}: {error.__cause__ or error}")
        except TooLarge as error:
            return Turn(f"[{error}]", truncated=True)
        if isinstance(body, Again):
            return body
        try:
            found = json.loads(self._clean(body))
        except (ValueError, RecursionError) as error:
            return Again(f"the answer is not JSON: {error}")
        return found if isinstance(found, dict | list) else [found]

    def _judged(self, error: Any) -> Again | Stopped:
        with suppress(Exception):  # a body that does not come any more
            error.response.read()
        text = error_text(error.body if error.body is not None else str(error))
        if self._bound == "max_tokens" and "max_completion_tokens" in text:
            self._bound = "max_completion_tokens"
            return Again(text, 0.0)
        code = error.code if isinstance(getattr(error, "code", None), str) else ""
        return judged(error.status_code, f"{code} {text}".strip(), error.response.headers)

    def _wanted(self) -> dict[str, Any]:
        sampling = self._spec.sampling
        given = {
            "model": self._spec.model,
            self._bound: sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _body(self, answer: Any, deadline: float) -> str | Again:
        limit = BYTES_PER_CHARACTER * self._spec.limits.message_characters
        read = bytearray()
        try:
            for chunk in answer.iter_bytes():
                read += chunk
                if len(read) > limit:
                    raise TooLarge(f"an answer of more than {limit} bytes was not read")
                if time.monotonic() > deadline:
                    return Again("the answer did not end in time")
        except TooLarge:
            raise
        except (
            Exception
        ) as error:  # the transport's own: its package depends on the client's version
            return Again(f"the answer was cut off: {type(error).__name__}: {error}")
        return read.decode("utf-8", "replace")

    def _clean(self, text: str) -> str:
        """Without the key, should a server repeat it."""
        if len(self._key) >= 8:
            text = text.replace(self._key, "[key]")
        return re.sub(r"\bsk-[\w*-]{6,}", "[key]", text)


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.prompt_tokens + other.prompt_tokens,
        one.completion_tokens + other.completion_tokens,
        one.cost + other.cost,
    )
