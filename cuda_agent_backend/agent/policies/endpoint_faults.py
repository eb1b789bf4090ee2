"""What a failed request means: whether to ask again, when, and what ends the episode."""

from __future__ import annotations

import email.utils
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent_backend.agent.protocol import Stopped

FIRST_DELAY_S, MAX_DELAY_S = 0.5, 30.0
PASSING = (408, 409, 425, 429)
"""Besides 500 and above: what another attempt may get past."""
_TOO_LONG = re.compile(
    r"context.{0,20}(length|window|size|limit)|(prompt|input|request).{0,30}too (long|large)|too many tokens"
    r"|maximum.{0,20}(length|tokens)|exceed.{0,40}(context|token)",
    re.IGNORECASE | re.DOTALL,
)
_SPENT = re.compile(r"insufficient_quota|billing|credit balance|payment", re.IGNORECASE)


@dataclass(frozen=True)
class Again:
    """Another attempt may do. after_s: seconds that the server asked for, if it did."""

    reason: str
    after_s: float | None = None


def judged(status: int, text: str, headers: Mapping[str, str]) -> Again | Stopped:
    """What an HTTP status other than success means. text: the body's words, without secrets."""
    reason = f"the server answered {status}: {text}"
    if status == 402 or (status in (400, 403, 429) and _SPENT.search(text)):
        return Stopped("cost", reason)
    if status == 413 or (status in (400, 422) and _TOO_LONG.search(text)):
        return Stopped("context", reason)
    if status >= 500 and _TOO_LONG.search(text):
        return Stopped("context", reason)
    if status in PASSING or status >= 500:
        return Again(reason, retry_after(headers, time.time()))
    return Stopped("infrastructure", reason)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the server asks to wait: given in milliseconds, in seconds, or as a date. now: since 1970."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return seconds if 0 <= seconds < float("inf") else None
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        since = date.timestamp()
    except (ValueError, OverflowError):  # years that no clock has
        return None
    return max(0.0, since - now)


def delay(attempt: int, after_s: float | None, draw: random.Random) -> float:
    """Seconds before another attempt: doubled each time, half of it at random; never less than the server asked for."""
    most = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(attempt, 64))
    return max(after_s or 0.0, most * draw.uniform(0.5, 1.0))
