"""What the environment says: the only place where `CUDA_AGENT_*` variables, and keys of services, are read.

`Settings.from_environment` takes the mapping as an argument, so all rules are tested without touching `os.environ`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EFFORTS = {"none": 0.0, "quick": 30.0, "full": 120.0}
"""Seconds for a graph, where nobody gives them."""
SEARCH_MODES = ("search", "background", "cached")
LOG_TOPICS = (
    "all",
    "hook",
    "partition",
    "splice",
    "codegen",
    "search",
    "cache",
    "accept",
    "layouts",
    "cudagraph",
    "prepack",
)


class SettingsError(ValueError):
    """A malformed environment variable; the message names the variable, its value and what is allowed."""


@dataclass(frozen=True)
class Variable:
    """One environment variable: `parse` raises `ValueError` with what is allowed, in words."""

    name: str
    field: str
    default: str
    meaning: str
    parse: Callable[[str], Any]


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return text

    return parse


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError("a number of seconds above 0")
    return value


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("0 or 1")
    return text == "1"


def _folder(text: str) -> Path:
    if "\0" in text:
        raise ValueError("a path")
    return Path(text).expanduser()


def _topics(text: str) -> tuple[tuple[str, str], ...]:
    """("hook", "debug"), ... from "+hook,search,-splice": + is debug, none is info, - is errors only."""
    levels = {"+": "DEBUG", "-": "ERROR"}
    found = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name = item.lstrip("+-")
        if name not in LOG_TOPICS or len(item) - len(name) > 1:
            raise ValueError(
                f"a list such as +hook,search,-splice, topics: {', '.join(LOG_TOPICS)}"
            )
        found.append((name, levels.get(item[0], "INFO")))
    return tuple(found)


VARIABLES = (
    Variable("CUDA_AGENT_CACHE_DIR", "cache_dir", "", "folder of the kernel cache", _folder),
    Variable(
        "CUDA_AGENT_NATIVE_DIR", "native_dir", "", "folder of what is built with ninja", _folder
    ),
    Variable(
        "CUDA_AGENT_SEARCH",
        "search",
        "search",
        "on a miss: search now (search), later (background), or never (cached)",
        _one_of(*SEARCH_MODES),
    ),
    Variable(
        "CUDA_AGENT_EFFORT",
        "effort",
        "full",
        "no search (none), 30 s per graph (quick), 120 s per graph (full)",
        _one_of(*EFFORTS),
    ),
    Variable(
        "CUDA_AGENT_BUDGET_S",
        "budget_s",
        "120",
        "seconds that kernels may add to a graph's first call",
        _positive,
    ),
    Variable(
        "CUDA_AGENT_TOTAL_BUDGET_S",
        "total_budget_s",
        "",
        "the same for all graphs of a process together",
        _positive,
    ),
    Variable("CUDA_AGENT_DISABLE", "disable", "0", "1: everything runs on Inductor", _switch),
    Variable(
        "CUDA_AGENT_PROGRESS",
        "progress",
        "auto",
        "progress bars: on a terminal (auto), always (on), never (off)",
        _one_of("auto", "on", "off"),
    ),
    Variable(
        "CUDA_AGENT_DEVICE_LOCK",
        "device_lock",
        "",
        "file by which processes that share a device take turns on it",
        _folder,
    ),
    Variable("CUDA_AGENT_LOGS", "logs", "", "log topics, as in +hook,search,-splice", _topics),
)
"""Every variable, in the order in which the documentation lists them. An empty default means: see `Settings`."""


@dataclass(frozen=True)
class Settings:
    """The environment's wishes. Options given to `torch.compile` go before them."""

    cache_dir: Path
    native_dir: Path
    search: str = "search"
    effort: str = "full"
    budget_s: float = EFFORTS["full"]
    total_budget_s: float | None = None
    disable: bool = False
    progress: str = "auto"
    device_lock: Path | None = None
    logs: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
        """Read all variables; raises `SettingsError` on the first malformed or unknown one."""
        environment = os.environ if environment is None else environment
        known = {variable.name for variable in VARIABLES}
        for name in environment:
            if name.startswith("CUDA_AGENT_") and name not in known:
                raise SettingsError(
                    f"unknown variable {name}; known are {', '.join(sorted(known))}"
                )
        values: dict[str, Any] = dict(_default_folders(environment))
        for variable in VARIABLES:
            text = environment.get(variable.name, "")
            if text:
                values[variable.field] = _parse(variable, text)
        values |= seconds_of(values)
        return Settings(**values)


def seconds_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """What wishes of one place mean by effort and seconds, of which seconds win; nothing where they name neither."""
    if "budget_s" in given:
        return {"effort": "full"}
    effort = given.get("effort")
    return {"budget_s": EFFORTS[effort]} if effort in ("quick", "full") else {}


def openai_key(environment: Mapping[str, str] | None = None) -> str:
    """The key for language models behind an endpoint, or "". No field of `Settings`: those are shown and sent on."""
    return (os.environ if environment is None else environment).get("OPENAI_API_KEY", "").strip()


def _parse(variable: Variable, text: str) -> Any:
    try:
        return variable.parse(text)
    except ValueError as error:
        raise SettingsError(f"{variable.name}={text!r} is not {error}") from None


def own_folder(environment: Mapping[str, str]) -> Path:
    """Our folder among the user's caches."""
    home = environment.get("HOME") or _home()
    return Path(environment.get("XDG_CACHE_HOME") or Path(home) / ".cache") / "cuda_agent"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user id without a name, as in containers
        raise SettingsError("there is no home folder: set HOME or XDG_CACHE_HOME") from None


def _default_folders(environment: Mapping[str, str]) -> dict[str, Path]:
    base = own_folder(environment)
    return {"cache_dir": base / "kernels", "native_dir": base / "native"}
