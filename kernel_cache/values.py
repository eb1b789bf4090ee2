"""What the cache answers besides records: a miss, corruption, a folder that cannot be used.

Corruption is never a miss: a caller that gets `Corrupt` logs it once and runs on Inductor, and
does not start a search whose result would hide the fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """Why the folder as a whole cannot be used."""

    NOT_A_FOLDER = "not a folder"
    NO_ACCESS = "no access"
    READ_ONLY = "read-only"
    FULL = "full"
    BUSY = "busy"
    CORRUPT_INDEX = "corrupt index"
    OTHER_FORMAT = "other format"
    INPUT_OUTPUT = "input/output error"


@dataclass(frozen=True)
class CacheUnavailable:
    """The cache folder cannot be read or written now. Other folders and the model are unharmed."""

    fault: Fault
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


@dataclass(frozen=True)
class Corrupt:
    """One entry is there and cannot be trusted. `path`: the file at fault, "" if in the index."""

    name: str
    reason: str
    remedy: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}; {self.remedy}"


@dataclass(frozen=True)
class Miss:
    """Nothing is known. `reason` tells an unknown key from an expired negative record."""

    reason: str = "no record"


@dataclass(frozen=True)
class Stored:
    """A put that is durable: files and index are on disk. `generation`: the cache's, after it."""

    generation: int


REPAIR = "run the cache's repair, which moves what is damaged to quarantine/, and search again"


def corrupt(name: str, reason: str, path: object = "") -> Corrupt:
    """A `Corrupt` with the usual remedy."""
    return Corrupt(name=name, reason=reason, remedy=REPAIR, path=str(path))
