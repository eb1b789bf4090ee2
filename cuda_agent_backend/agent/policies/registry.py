"""The policies there are, by name. A further one is a file with `make(spec)`, and a line here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import cast
from urllib.parse import urlsplit

from cuda_agent_backend.agent.policies.spec import Limits, PolicySpec, Sampling
from cuda_agent_backend.agent.policies.trained.place import why_missing
from cuda_agent_backend.agent.protocol import Policy


@dataclass(frozen=True)
class Kind:
    """What a name stands for. module: below this package, with ``make(spec) -> Policy``. model: whether it needs one.

    packages: what must be installed. files: whether it writes and reads files, and so works in a workspace. options:
    whether it has a use for sampling and limits. extra: of this project, which installs the packages.
    """

    module: str
    model: str = ""
    packages: tuple[str, ...] = ()
    endpoint: bool = False
    files: bool = True
    options: bool = True
    extra: str = "llm"
    weights: bool = False


POLICIES = {
    "search": Kind("search.factory", files=False, options=False),
    "bayesian": Kind(
        "search.factory", packages=("sklearn",), files=False, options=False, extra="search"
    ),
    "openai": Kind("endpoint", "the model's name", ("openai",), endpoint=True),
    "transformers": Kind("local", "its name or folder", ("transformers",)),
    "vllm": Kind("local", "its name or folder", ("vllm", "transformers")),
    "trained": Kind(
        "trained.policy",
        packages=("transformers", "tokenizers", "safetensors"),
        files=False,
        extra="train",
        weights=True,
    ),
    "replay": Kind("replay", "the file to play", options=False),
}
MIXED = "mixed"


def problem(spec: PolicySpec) -> str:
    """What is wrong with a spec, whatever is installed; "" if nothing is."""
    kinds = [POLICIES.get(name) for name in _parts(spec.name)]
    if None in kinds:
        return f"no policy is called {spec.name!r}; there are: {known()}"
    wanted = [kind for kind in kinds if kind]
    for kind in wanted:
        if kind.model and not spec.model:
            return f"the policy {spec.name!r} needs a model: {kind.model}"
    if spec.model and not any(kind.model or kind.weights for kind in wanted):
        return f"the policy {spec.name!r} has no use for a model"
    if (spec.sampling, spec.limits) != (Sampling(), Limits()) and not any(
        kind.options for kind in wanted
    ):
        return f"the policy {spec.name!r} has no use for sampling or limits"
    if spec.base_url:
        if not any(kind.endpoint for kind in wanted):
            return f"the policy {spec.name!r} has no use for a base URL"
        return _bad_url(spec.base_url)
    return ""


def missing(spec: PolicySpec) -> str:
    """What must be installed for it, in words; "" if nothing."""
    kinds = [POLICIES[name] for name in _parts(spec.name) if name in POLICIES]
    for kind in kinds:
        absent = [name for name in kind.packages if find_spec(name) is None]
        if absent:
            install = f"pip install 'cuda_agent[{kind.extra}]'"
            return f"the policy {spec.name!r} needs {', '.join(absent)}: {install}"
        if kind.weights and (why := why_missing(spec.model)):
            return why
    return ""


DETERMINISTIC = ("search", "bayesian")
"""Policies that do the same another time: a model that gave up may not."""


def works_with_files(spec: PolicySpec) -> bool:
    """Whether its episodes need a workspace."""
    return any(POLICIES[name].files for name in _parts(spec.name))


def asks_a_model(spec: PolicySpec) -> bool:
    """Whether its episodes wait for a model most of the time, so that many of them share one judge."""
    return any(POLICIES[name].options for name in _parts(spec.name))


def make_policy(spec: PolicySpec) -> Policy:
    """The policy, for one episode. Raises `ImportError` for one that there is not, or whose packages are not there."""
    if why := problem(spec) or missing(spec):
        raise ImportError(why)
    module = MIXED if "+" in spec.name else POLICIES[spec.name].module
    return cast(Policy, import_module(f"cuda_agent_backend.agent.policies.{module}").make(spec))


def known() -> str:
    """All names, for messages."""
    return ", ".join(POLICIES) + "; search+NAME and NAME+search mix two"


def _parts(name: str) -> list[str]:
    """The policies in a name: one, or the search and another one in either order."""
    parts = name.split("+")
    return parts if len(parts) == 2 and parts.count("search") == 1 else [name]


def _bad_url(text: str) -> str:
    try:
        url = urlsplit(text)
        url.port  # noqa: B018 (raises where it is no number)
    except ValueError:
        return "the base URL is malformed"
    if url.scheme not in ("http", "https") or not url.hostname:
        return "the base URL must begin with http:// or https:// and name a host"
    if url.username or url.password or url.query:
        return "the base URL must hold no user, password or query: keys come from OPENAI_API_KEY"
    return ""
