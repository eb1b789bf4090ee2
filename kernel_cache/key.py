"""What a kernel is looked up by: everything that changes which kernel is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from kernel_cache.canonical import Json, dumps, is_digest, sha256

KEY_VERSION = 1
TARGETS = ("cpu", "cuda")


@dataclass(frozen=True)
class KernelKey:
    """The address of a record (contract C6).

    task_digest: SHA-256 hex of the canonical task. target: "cpu" or "cuda". arch: what the binary
    was built for, such as "sm_90a" or the name of a CPU's instruction set. precision: the user's
    precision flags as one string; `KernelKey.of` makes it from a mapping. deterministic: whether
    the user asked for deterministic algorithms. Raises ValueError on a malformed field.
    """

    task_digest: str
    target: str
    arch: str
    precision: str
    deterministic: bool

    def __post_init__(self) -> None:
        if not is_digest(self.task_digest):
            raise ValueError(f"task_digest is not a SHA-256 in hex: {self.task_digest!r}")
        if self.target not in TARGETS:
            raise ValueError(f"target is not one of {TARGETS}: {self.target!r}")
        if not isinstance(self.arch, str) or not self.arch:
            raise ValueError(f"arch is not a name: {self.arch!r}")
        if not isinstance(self.precision, str):
            raise ValueError("precision is not a string; KernelKey.of() takes a mapping")
        if not isinstance(self.deterministic, bool):
            raise ValueError(f"deterministic is not a bool: {self.deterministic!r}")

    @classmethod
    def of(
        cls,
        task_digest: str,
        target: str,
        arch: str,
        precision: Mapping[str, str | bool | int] | str,
        deterministic: bool,
    ) -> KernelKey:
        """A key whose precision flags may be a mapping; the order of its items is of no account."""
        flags = precision if isinstance(precision, str) else dumps(dict(precision))
        return cls(task_digest, target, arch, flags, deterministic)

    @cached_property
    def digest(self) -> str:
        """SHA-256 hex of all fields and of the version of this form."""
        return sha256(dumps({"version": KEY_VERSION, **self.to_fields()}).encode())

    @cached_property
    def op_key(self) -> int:
        """The key as the integer argument of the spliced operator: 1 .. 2**63 - 1."""
        return op_key_of(self.digest)

    def to_fields(self) -> dict[str, Json]:
        """The fields as JSON values."""
        return {
            "task_digest": self.task_digest,
            "target": self.target,
            "arch": self.arch,
            "precision": self.precision,
            "deterministic": self.deterministic,
        }


def op_key_of(digest: str) -> int:
    """The top 63 bits of a key's digest; zero, which stands for no key, becomes one."""
    return (int(digest[:16], 16) >> 1) or 1
