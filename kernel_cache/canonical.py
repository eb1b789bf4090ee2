"""Canonical JSON and digests: the one text form that is hashed, stored and compared."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

_DIGEST = re.compile(r"[0-9a-f]{64}")


class DuplicateField(ValueError):
    """A JSON object names the same field twice."""


def dumps(value: Json) -> str:
    """Canonical text of `value`: sorted keys, no spaces. Raises ValueError on NaN and Inf."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(text: str) -> Json:
    """Parse strict JSON. Raises ValueError on bad syntax, NaN, Inf and repeated fields."""
    parsed: Json = json.loads(
        text, object_pairs_hook=_object_without_duplicates, parse_constant=_refuse_constant
    )
    return parsed


def sha256(data: bytes) -> str:
    """Hex SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def is_digest(text: object) -> bool:
    """Whether `text` is 64 lower-case hex digits, hence also safe as a part of a path."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def _object_without_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise DuplicateField(f"repeated field(s): {', '.join(repeated)}")
    return fields


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")
