"""Where things are in a cache folder, and the rows of its index.

index/       SQLite: which record a key has, negative records, acceptances, identity, generation
queue/       SQLite: tasks that wait for a search
records/     ab/cdef....json  records by the digest of their text
blobs/       ab/cdef....bin   binaries (.so, .cubin) by the digest of their bytes
aside/       files being written
quarantine/  what repair has moved away
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernel_cache.canonical import Json
from kernel_cache.faults import IndexMalformed
from kernel_cache.fields import Fields, RecordError
from kernel_cache.files import ContentFiles
from kernel_cache.index import fields_of

IDENTITY = "meta/identity"
GENERATION = "meta/generation"
RECORD = "record/"
NEGATIVE = "negative/"
OPERATOR = "operator/"
ACCEPTANCE = "acceptance/"


@dataclass(frozen=True)
class Layout:
    """The places below one cache folder."""

    root: Path

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def queue(self) -> Path:
        return self.root / "queue"

    @property
    def aside(self) -> Path:
        return self.root / "aside"

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    @property
    def records(self) -> ContentFiles:
        return ContentFiles(self.root / "records", self.aside, ".json")

    @property
    def blobs(self) -> ContentFiles:
        return ContentFiles(self.root / "blobs", self.aside, ".bin")


@dataclass(frozen=True)
class RecordRow:
    """What the index says of one key: the digests of its two files and their bytes together."""

    record: str
    binary: str
    size: int

    def to_fields(self) -> dict[str, Json]:
        return {"record": self.record, "binary": self.binary, "size": self.size}

    @classmethod
    def from_value(cls, name: str, value: object) -> RecordRow:
        """Parse strictly. Raises IndexMalformed."""
        try:
            fields = Fields(name, fields_of(name, value))
            row = cls(fields.digest("record"), fields.digest("binary"), fields.count("size"))
            fields.finish()
        except RecordError as error:
            raise IndexMalformed(str(error), repr(value)[:200]) from None
        return row


def record_name(key_digest: str) -> str:
    return RECORD + key_digest


def negative_name(key_digest: str) -> str:
    return NEGATIVE + key_digest


def operator_name(op_key: int) -> str:
    return f"{OPERATOR}{op_key:016x}"


def acceptance_name(graph_digest: str, kernel_set_digest: str) -> str:
    return f"{ACCEPTANCE}{graph_digest}/{kernel_set_digest}"


@dataclass(frozen=True)
class Acceptance:
    """A decision on a set of kernels in a graph, as the index keeps it."""

    created: float
    decision: dict[str, Json]

    def to_fields(self) -> dict[str, Json]:
        return {"created": self.created, "decision": self.decision}

    @classmethod
    def from_value(cls, name: str, value: object) -> Acceptance:
        """Parse strictly. Raises IndexMalformed."""
        try:
            fields = Fields(name, fields_of(name, value))
            acceptance = cls(fields.number("created"), fields.mapping("decision"))
            fields.finish()
        except RecordError as error:
            raise IndexMalformed(str(error), repr(value)[:200]) from None
        return acceptance
