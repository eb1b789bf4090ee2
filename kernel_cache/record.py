"""What is kept of a search: a promoted kernel with its evidence, or the failure to find one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernel_cache.canonical import Json, dumps, sha256
from kernel_cache.fields import Fields, RecordError
from kernel_cache.key import TARGETS, KernelKey

RECORD_VERSION = 1
LANGUAGES = ("c++", "cuda", "triton")
ORIGINS = ("sketch", "policy")
CLOCK_SLACK_S = 3600.0
"""A record from further in the future was made by a clock that was wrong, and would last as long as that was."""

# What a record must be able to answer for (contract C6).
EVIDENCE = ("verifier", "toolchain", "driver", "policy", "samples", "errors")


@dataclass(frozen=True)
class Record:
    """A promoted kernel and why it was promoted.

    task, plan: canonical JSON texts of the task and of the launch plan. binary_digest: SHA-256 hex
    of the compiled .so or .cubin. evidence: a JSON object with at least the fields `EVIDENCE`;
    verifier, toolchain and policy are non-empty strings naming versions, driver is a string or
    null, samples are raw timings in seconds and errors what the accuracy check found, each an
    object or a list. created: seconds since 1970. Raises RecordError on a malformed field.
    """

    key: KernelKey
    task: str
    language: str
    origin: str
    label: str
    source: str
    plan: str
    binary_digest: str
    evidence: Mapping[str, Json]
    created: float

    def __post_init__(self) -> None:
        _check_evidence(self.evidence)
        self._check(Fields("record", self._to_fields()))

    @property
    def toolchain(self) -> str:
        """The compiler that the evidence was taken with."""
        return str(self.evidence["toolchain"])

    @property
    def verifier(self) -> str:
        """The version of the judge that promoted it."""
        return str(self.evidence["verifier"])

    def to_json(self) -> str:
        """Canonical JSON; equal records give equal text."""
        return dumps({"version": RECORD_VERSION, **self._to_fields()})

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """Parse strictly. Raises RecordError, whose message names the field at fault."""
        fields = Fields.parse("record", text)
        fields.version(RECORD_VERSION)
        key = key_from(fields.nested("key"))
        binary = fields.digest("binary_digest")
        record = cls(
            key=key,
            task=fields.text("task"),
            language=fields.text("language"),
            origin=fields.text("origin"),
            label=fields.text("label"),
            source=fields.text("source"),
            plan=fields.text("plan"),
            binary_digest=binary,
            evidence=fields.mapping("evidence"),
            created=fields.number("created"),
        )
        fields.finish()
        return record

    def _to_fields(self) -> dict[str, Json]:
        return {
            "key": self.key.to_fields(),
            "task": self.task,
            "language": self.language,
            "origin": self.origin,
            "label": self.label,
            "source": self.source,
            "plan": self.plan,
            "binary_digest": self.binary_digest,
            "evidence": dict(self.evidence),
            "created": self.created,
        }

    def _check(self, fields: Fields) -> None:
        if sha256(fields.text("task").encode()) != self.key.task_digest:
            raise RecordError("record.task does not have the digest that record.key names")
        fields.one_of("language", LANGUAGES)
        fields.one_of("origin", ORIGINS)
        fields.text("label")
        fields.text("source")
        Fields.parse("record.plan", fields.text("plan"))
        fields.digest("binary_digest")
        fields.number("created")


@dataclass(frozen=True)
class NegativeRecord:
    """A search that found nothing, so that it is not repeated until `expires`.

    policy: what searched. budget: what it was allowed, such as {"seconds": 60}. reason: one line
    for people. created, expires: seconds since 1970. Raises RecordError on a malformed field.
    """

    key: KernelKey
    policy: str
    budget: Mapping[str, Json]
    reason: str
    created: float
    expires: float

    def __post_init__(self) -> None:
        fields = Fields("negative record", self._to_fields())
        if not fields.text("policy") or not fields.text("reason"):
            raise RecordError("a negative record names its policy and its reason")
        if fields.number("expires") < fields.number("created"):
            raise RecordError("negative record.expires lies before its creation")

    def expired(self, now: float) -> bool:
        """Whether a search may be tried again at `now`, or the record was made by a clock that went ahead."""
        return now >= self.expires or self.created - now > CLOCK_SLACK_S

    def to_fields(self) -> dict[str, Json]:
        """The record as a JSON object."""
        return {"version": RECORD_VERSION, **self._to_fields()}

    @classmethod
    def from_fields(cls, value: Mapping[str, Json]) -> NegativeRecord:
        """Parse strictly. Raises RecordError, whose message names the field at fault."""
        fields = Fields("negative record", value)
        fields.version(RECORD_VERSION)
        record = cls(
            key=key_from(fields.nested("key")),
            policy=fields.text("policy"),
            budget=fields.mapping("budget"),
            reason=fields.text("reason"),
            created=fields.number("created"),
            expires=fields.number("expires"),
        )
        fields.finish()
        return record

    def _to_fields(self) -> dict[str, Json]:
        return {
            "key": self.key.to_fields(),
            "policy": self.policy,
            "budget": dict(self.budget),
            "reason": self.reason,
            "created": self.created,
            "expires": self.expires,
        }


def key_from(fields: Fields) -> KernelKey:
    """The key whose fields these are. Raises RecordError."""
    key = KernelKey(
        task_digest=fields.digest("task_digest"),
        target=fields.one_of("target", TARGETS),
        arch=_non_empty(fields, "arch"),
        precision=fields.text("precision"),
        deterministic=fields.truth("deterministic"),
    )
    fields.finish()
    return key


def needs_reverification(evidence_toolchain: str, current_toolchain: str | None) -> str | None:
    """Why a record must be verified anew before use on this machine, or None.

    `current_toolchain` is None where no compiler is installed: the binary was built and verified
    by the toolchain of its evidence, and there is no other one to doubt it.
    """
    if not evidence_toolchain:
        return "its evidence names no toolchain"
    if current_toolchain is None or current_toolchain == evidence_toolchain:
        return None
    return f"verified with {evidence_toolchain}, this machine has {current_toolchain}"


def _check_evidence(evidence: Mapping[str, Json]) -> None:
    fields = Fields("record.evidence", evidence)
    for name in ("verifier", "toolchain", "policy"):
        _non_empty(fields, name)
    for name, kinds in (
        ("driver", (str, type(None))),
        ("samples", (dict, list, tuple)),
        ("errors", (dict, list, tuple)),
    ):
        value = fields.take(name)
        if not isinstance(value, kinds):
            raise RecordError(f"record.evidence.{name} has the type {type(value).__name__}")
    try:
        dumps(dict(evidence))
    except (TypeError, ValueError) as error:
        raise RecordError(f"record.evidence is not JSON: {error}") from None


def _non_empty(fields: Fields, name: str) -> str:
    value = fields.text(name)
    if not value:
        raise RecordError(f"{name!r} is empty")
    return value
