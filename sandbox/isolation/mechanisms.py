"""Which mechanisms confine what handles a candidate. A description that goes into the evidence, and decisions on it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["full", "partial", "none"]
User = Literal["other", "other, reads past modes", "own, no rights", "own"]


@dataclass(frozen=True)
class Isolation:
    """What is in force for a process and all it starts. Always so: a group of its own, killed as a whole, a listed
    environment, limits on memory, files and time.

    files: the version of Landlock that guards files, 0 for none. network: whether connections are refused. signals:
    whether other processes are safe from its signals. syscalls: whether system calls are filtered. privileges: whether
    programs that it starts can gain none. user: as whom it runs. why: what went wrong with what is lacking.
    """

    files: int = 0
    network: bool = False
    signals: bool = False
    syscalls: bool = False
    privileges: bool = False
    user: User = "own"
    why: str = ""

    @property
    def lacking(self) -> tuple[str, ...]:
        """The mechanisms that untrusted host code would need and that are not in force."""
        needed = {
            "a view of files (Landlock, Linux 5.13)": self.files > 0,
            "no network": self.network,
            "a filter of system calls (seccomp)": self.syscalls,
            "no new privileges": self.privileges,
            "a user without rights": self.user != "own",
        }
        return tuple(name for name, there in needed.items() if not there)

    @property
    def level(self) -> Level:
        """full: nothing is lacking; none: nothing but the process of its own."""
        if not self.lacking:
            return "full"
        anything = self.files or self.network or self.syscalls or self.privileges
        return "partial" if anything else "none"

    @property
    def why_no_untrusted_code(self) -> str | None:
        """Why host code that our sketches did not write may not run under this; None if it may."""
        if not self.lacking:
            return None
        because = f" ({self.why})" if self.why else ""
        lacking = ", ".join(self.lacking)
        return f"this machine cannot confine it: {lacking} not in force{because}; see `cuda-agent doctor`"

    def describe(self) -> str:
        """One line."""
        files = f"Landlock {self.files}" if self.files else "no view of files"
        parts = [files, f"user: {self.user}"]
        parts += ["seccomp"] * self.syscalls + ["no network"] * self.network
        return f"{self.level}: {', '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the evidence."""
        return {"level": self.level, **asdict(self)}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Isolation:
        """What `to_dict` gave. Raises TypeError on anything else."""
        return cls(**{name: value for name, value in found.items() if name != "level"})
