"""Which policy is wanted, and within which bounds: plain data that goes to the search process as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Sampling:
    """How a model's tokens are drawn. None: as the server or the model has it.

    temperature: 0 takes the likeliest token. max_new_tokens: of one message.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_new_tokens: int = 8192
    seed: int | None = None


@dataclass(frozen=True)
class Limits:
    """What one episode's policy may take.

    timeout_s: seconds for one message, retries included. retries: further attempts at a request that failed.
    requests_per_minute: 0 for as many as there are. context_tokens: what the model reads at most, 0 where it is not
    known. message_characters: of one message, sent or received. max_tokens: read and written in an episode, 0 for no
    limit. max_cost: in the currency of the prices, 0 for no limit. price_in, price_cached, price_out: per million
    tokens read, read from the server's cache, written; price_cached None: as price_in. memory_share: of the device's
    memory (without a GPU, of the machine's) that `vllm` takes in the process that searches.
    """

    timeout_s: float = 600.0
    retries: int = 6
    requests_per_minute: float = 0.0
    context_tokens: int = 0
    message_characters: int = 400_000
    max_tokens: int = 0
    max_cost: float = 0.0
    price_in: float = 0.0
    price_cached: float | None = None
    price_out: float = 0.0
    memory_share: float = 0.5


@dataclass(frozen=True)
class PolicySpec:
    """A policy by name (see `registry`).

    model: a model's name or folder, or the file of a replay. base_url: where an endpoint is.
    """

    name: str = "search"
    model: str = ""
    base_url: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)

    @property
    def label(self) -> str:
        """What evidence and records of failed searches call it."""
        return f"{self.name}:{self.model}" if self.model else self.name

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any] | str) -> PolicySpec:
        """From `to_json`, or from a name alone."""
        if isinstance(value, str):
            return PolicySpec(value)
        parts = {
            "sampling": Sampling(**value.get("sampling", {})),
            "limits": Limits(**value.get("limits", {})),
        }
        return PolicySpec(**{**value, **parts})


_WHOLE = ("max_new_tokens", "seed", "retries", "context_tokens", "message_characters", "max_tokens")
MOST = 1e18
"""No option means more; Python's whole numbers go beyond what a float holds."""
_SHARES = ("top_p", "memory_share")
_ABOVE_ZERO = ("max_new_tokens", "timeout_s", "message_characters")
NAMES = tuple(f.name for f in (*fields(Sampling), *fields(Limits)))
"""All that `with_options` takes."""


def with_options(
    name: str, model: str, base_url: str, options: Mapping[str, Any]
) -> PolicySpec | str:
    """A spec with some of sampling and limits given by name; or what is wrong with one of them."""
    for key, value in options.items():
        if wrong := _wrong(key, value):
            return wrong
    ours = {f.name for f in fields(Sampling)}
    return PolicySpec(
        name,
        model,
        base_url,
        Sampling(**{k: v for k, v in options.items() if k in ours}),
        Limits(**{k: v for k, v in options.items() if k not in ours}),
    )


def _wrong(key: str, value: Any) -> str:
    if key not in NAMES:
        return f"there is no {key!r}; there are: {', '.join(NAMES)}"
    if type(value) not in ((int,) if key in _WHOLE else (int, float)):
        return f"{key}={value!r} is not a {'whole ' if key in _WHOLE else ''}number"
    if value > MOST or not math.isfinite(value) or value < 0 or (value == 0 and key in _ABOVE_ZERO):
        return f"{key}={value!r} is out of range"
    if key in _SHARES and not 0 < value <= 1:
        return f"{key}={value!r} is not above 0 and at most 1"
    return ""
