"""Reading the fields of a JSON object strictly, with messages that name the field."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kernel_cache.canonical import Json, is_digest, loads

MAX_MESSAGE = 600


class RecordError(ValueError):
    """A record's text or field is not what the format says. The message is cut where it repeats a long value."""

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} ...")


class Fields:
    """The fields of one object: each is taken once, by type; `finish` refuses those left over."""

    def __init__(self, what: str, fields: Mapping[str, Json]) -> None:
        self._what = what
        self._left = dict(fields)

    @classmethod
    def parse(cls, what: str, text: str | bytes) -> Fields:
        """The fields of a JSON text. Raises RecordError if it is not a strict JSON object."""
        try:
            value = loads(text if isinstance(text, str) else text.decode())
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{what} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise RecordError(f"{what} is not a JSON object")
        return cls(what, value)

    def take(self, name: str) -> Json:
        if name not in self._left:
            raise RecordError(f"{self._what} has no field {name!r}")
        return self._left.pop(name)

    def text(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def digest(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str) or not is_digest(value):
            raise self._wrong(name, "a SHA-256 in hex", value)
        return value

    def truth(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def number(self, name: str) -> float:
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number", value)
        try:
            number = float(value)
        except OverflowError:
            raise self._wrong(name, "a finite number", "a huge one") from None
        if not math.isfinite(number):
            raise self._wrong(name, "a finite number", value)
        return number

    def count(self, name: str) -> int:
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(name, "a count", value)
        return value

    def mapping(self, name: str) -> dict[str, Json]:
        value = self.take(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return value

    def nested(self, name: str) -> Fields:
        return Fields(f"{self._what}.{name}", self.mapping(name))

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in allowed:
            raise self._wrong(name, f"one of {', '.join(allowed)}", value)
        return value

    def version(self, expected: int) -> None:
        """Take `version`. A newer one is told from damage, for the remedy is another."""
        value = self.count("version")
        if value != expected:
            raise RecordError(f"{self._what} has version {value}, this release reads {expected}")

    def finish(self) -> None:
        if self._left:
            raise RecordError(f"{self._what} has unknown field(s): {', '.join(sorted(self._left))}")

    def _wrong(self, name: str, expected: str, value: object) -> RecordError:
        return RecordError(f"{self._what}.{name} is not {expected}: {repr(value)[:80]}")
