"""What `torch.compile(..., mode=, options=)` says: our `cuda_agent.*` keys mixed with Inductor's own."""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cuda_agent_backend.agent.policies import registry
from cuda_agent_backend.agent.policies.spec import PolicySpec, with_options
from cuda_agent_backend.settings import EFFORTS, SEARCH_MODES, Settings, seconds_of

PREFIX = "cuda_agent."
CUDAGRAPHS = "triton.cudagraphs"
"""Inductor's own option for them."""
VARIABLE = "TORCHINDUCTOR_"
"""What the names of Inductor's environment variables begin with."""
GRAPHS = 4
"""Budgets of a graph that a process has, where nobody says how much it has."""
ACCEPTANCE = ("measure", "trust")


class OptionError(ValueError):
    """An option that does not exist or has a value that it cannot have."""


@dataclass(frozen=True)
class Options:
    """One compilation's wishes.

    search: what a miss does. cache_dir, native_dir: folders.
    budget_s: seconds that kernels may add to the first call of a graph, all included: processes, search, verification,
    acceptance. total_budget_s: the same for all graphs of a process; None for `GRAPHS` budgets.
    effort: what stands for seconds where none are given; seconds that are given make it "full".
    patient: no option; what earlier processes spent, and how many graphs there are, does not count.
    min_speedup: kernels whose recorded lower bound over the faster baseline is less are not used.
    min_bytes: a region that moves fewer bytes is left to Inductor.
    acceptance: "measure" uses kernels only as far as the whole graph was measured with them; "trust" does not ask.
    policy: what writes the kernels; model, base_url: which language model, and where it is served (see
    `agent.policies.registry`); policy_options: sampling and limits (see `agent.policies.spec`).
    allow_policy_cpp: consent to run C++ that a policy wrote itself (target cpu).
    cudagraphs: whether a graph may be replayed from a CUDA graph where that was measured to be faster.
    prepack: what depends on weights alone is computed once, and redone when they change (see `prepack`).
    memory: whether a policy is told of kernels that won on tasks like its own.
    device_lock: a file by which processes that search on one device take turns on it; None where this one is alone.
    force: for tests only, so many schedules of each task are compiled, and the first of them runs whatever its speed,
    without search, race or acceptance, kept nowhere; 0 is off (see `hook.forced`).
    """

    cache_dir: Path
    native_dir: Path
    search: str = "search"
    effort: str = "full"
    budget_s: float = 120.0
    total_budget_s: float | None = None
    min_speedup: float = 1.05
    min_bytes: int = 32768
    acceptance: str = "measure"
    policy: str = "search"
    model: str = ""
    base_url: str = ""
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    allow_policy_cpp: bool = False
    cudagraphs: bool = True
    prepack: bool = False
    memory: bool = True
    progress: str = "auto"
    device_lock: Path | None = None
    force: int = 0
    disable: bool = False
    patient: bool = False
    inductor: Mapping[str, Any] = field(default_factory=dict)

    @property
    def policy_spec(self) -> PolicySpec:
        """The policy as it goes to the search process. Raises `OptionError` where there is no such policy."""
        found = with_options(self.policy, self.model, self.base_url, self.policy_options)
        if isinstance(found, str):
            raise OptionError(f"option {PREFIX}policy_options: {found}")
        if why := registry.problem(found):
            raise OptionError(why)
        return found

    @property
    def process_budget_s(self) -> float:
        """Seconds for all graphs of a process."""
        if self.total_budget_s is not None:
            return self.total_budget_s
        return math.inf if self.patient else GRAPHS * self.budget_s

    @property
    def plain_inductor(self) -> dict[str, Any]:
        """Inductor options that can be sent: a user's own passes and callables stay behind."""
        kept = {}
        for name, value in self.inductor.items():
            try:
                kept[name] = json.loads(json.dumps(value))
            except (TypeError, ValueError):
                continue
        return kept

    def salt(self) -> str:
        """What of the options can change the spliced graph, for the key of torch's own caches."""
        uses = f"{self.search}:{self.min_speedup}:{self.min_bytes}:{self.acceptance}:{self.disable}"
        uses += f":{self.allow_policy_cpp}"
        # What one policy found nothing for, another has not seen, nor the same one with more time.
        seen = f"{uses}:{self.policy_spec.label}:{self.budget_s}"
        return uses if self.search == "cached" else seen


def parse(
    settings: Settings, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Options:
    """Options over mode over environment. Raises `OptionError` naming the nearest valid key."""
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {**set_globally(), **_mode_options(mode)}
    for key, value in (options or {}).items():
        name = key.removeprefix(PREFIX)
        if key != name and name in OURS:
            ours[name] = _checked(key, value, *OURS[name])
        else:
            theirs[_inductor_key(key)] = value
    ours |= seconds_of(ours)
    ours.setdefault("cudagraphs", not _no_cudagraphs(mode, theirs))
    base = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name != "logs"}
    made = _forced(_without_effort(Options(**{**base, **ours}, inductor=theirs)))
    spec = made.policy_spec
    if made.search != "cached" and (why := registry.missing(spec)):
        raise OptionError(why)
    return made


def _without_effort(made: Options) -> Options:
    """With the effort `none`, nothing is searched."""
    return replace(made, search="cached") if made.effort == "none" else made


def _forced(made: Options) -> Options:
    """With `force`, nothing is searched, measured or too small."""
    if not made.force:
        return made
    return replace(
        made, search="cached", acceptance="trust", min_bytes=0, cudagraphs=False, prepack=False
    )


def set_globally() -> dict[str, Any]:
    """What was set in `torch._inductor.config` itself and changes the code that Inductor makes, by name.

    Neither the search process nor, in some releases of torch, another thread would have it otherwise.
    """
    from torch._inductor import config

    apart = (*config._cache_config_ignore_prefix, "_", "force_disable_caches")
    found: dict[str, Any] = config.get_config_copy()
    return {k: v for k, v in found.items() if not k.startswith(apart) and _was_set(k, v)}


def _was_set(name: str, value: Any) -> bool:
    """Whether an option of Inductor is not its default, or would not be if the environment were asked."""
    from torch._inductor import config
    from torch.utils._config_module import _UNSET_SENTINEL

    entry = config._config[name]  # type: ignore[attr-defined]
    if entry.alias is not None:
        return False
    environment = entry.env_value_default
    by_default = environment is _UNSET_SENTINEL or environment == entry.default
    # Most variables are read where the default itself is written down, and have the option's name.
    names = (name.rpartition(".")[2], name.replace(".", "_"))
    asked = any(f"{VARIABLE}{own.upper()}" in os.environ for own in names)
    return asked or not by_default or bool(value != entry.default)


def _no_cudagraphs(mode: str | None, inductor: Mapping[str, Any]) -> bool:
    """Whether the user asked Inductor for none."""
    return "no-cudagraphs" in (mode or "") or inductor.get(CUDAGRAPHS) is False


def _number(low: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and low <= value < float("inf")


OURS: dict[str, tuple[Callable[[Any], bool], str, Callable[[Any], Any]]] = {
    "search": (lambda v: v in SEARCH_MODES, f"one of {', '.join(SEARCH_MODES)}", str),
    "effort": (lambda v: v in EFFORTS, f"one of {', '.join(EFFORTS)}", str),
    "budget_s": (lambda v: _number(0)(v) and v > 0, "a number of seconds above 0", float),
    "total_budget_s": (lambda v: _number(0)(v) and v > 0, "a number of seconds above 0", float),
    "cache_dir": (lambda v: isinstance(v, str | Path), "a path", Path),
    "native_dir": (lambda v: isinstance(v, str | Path), "a path", Path),
    "min_speedup": (_number(1), "a number of at least 1", float),
    "min_bytes": (lambda v: type(v) is int and v >= 0, "a number of bytes", int),
    "acceptance": (lambda v: v in ACCEPTANCE, f"one of {', '.join(ACCEPTANCE)}", str),
    "policy": (lambda v: isinstance(v, str) and bool(v), "the name of a policy", str),
    "model": (lambda v: isinstance(v, str), "the name of a model", str),
    "base_url": (lambda v: isinstance(v, str), "the URL of an endpoint", str),
    "policy_options": (lambda v: isinstance(v, Mapping), "a dictionary", dict),
    "allow_policy_cpp": (lambda v: isinstance(v, bool), "True or False", bool),
    "cudagraphs": (lambda v: isinstance(v, bool), "True or False", bool),
    "prepack": (lambda v: isinstance(v, bool), "True or False", bool),
    "memory": (lambda v: isinstance(v, bool), "True or False", bool),
    "progress": (lambda v: v in ("auto", "on", "off"), "one of auto, on, off", str),
    "device_lock": (lambda v: isinstance(v, str | Path) and bool(str(v)), "a path", Path),
    "force": (lambda v: type(v) is int and v >= 0, "a number of schedules, or 0", int),
}
"""Our keys without their prefix: (is it valid, what is allowed in words, conversion)."""


def _checked(
    key: str, value: Any, valid: Callable[[Any], bool], words: str, convert: Callable[[Any], Any]
) -> Any:
    if not valid(value):
        raise OptionError(f"option {key}={value!r} is not {words}")
    return convert(value)


def _mode_options(mode: str | None) -> Mapping[str, Any]:
    if mode is None:
        return {}
    from torch._inductor import list_mode_options

    known: Mapping[str, Mapping[str, Any]] = list_mode_options()
    if mode not in known:
        raise OptionError(f"unknown mode {mode!r}{_nearest(mode, known)}")
    return known[mode]


def _inductor_key(key: str) -> str:
    from torch._inductor import config

    name = key.replace("-", "_")
    known = config.get_config_copy()
    if name not in known:
        theirs = name.removeprefix(PREFIX)
        if theirs in known:
            raise OptionError(f"unknown option {key!r}; did you mean {theirs!r}?")
        ours = [PREFIX + own for own in OURS]
        raise OptionError(f"unknown option {key!r}{_nearest(key, [*ours, *known])}")
    return name


def _nearest(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.0)
    return f"; did you mean {found[0]!r}?" if found else ""
