"""Arguments of commands that search: which policy writes the kernels."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from cuda_agent_backend.agent.policies import registry
from cuda_agent_backend.agent.policies.spec import NAMES, with_options
from cuda_agent_backend.cli.result import CliError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--policy``, ``--model``, ``--base-url``, ``--policy-option``, ``--allow-policy-cpp``, ``--no-memory``."""
    parser.add_argument(
        "--policy", metavar="NAME", help=f"what writes the kernels: {registry.known()}"
    )
    parser.add_argument("--model", dest="policy_model", metavar="M", help="the policy's model")
    parser.add_argument("--base-url", metavar="URL", help="where the model is served")
    parser.add_argument(
        "--policy-option",
        action="append",
        type=_option,
        default=[],
        metavar="NAME=VALUE",
        help=f"sampling or a limit, may be repeated: {', '.join(NAMES)}",
    )
    parser.add_argument(
        "--allow-policy-cpp",
        action="store_true",
        help="consent to run C++ that a policy wrote itself (target cpu)",
    )
    parser.add_argument(
        "--no-memory",
        action="store_true",
        help="do not tell the policy of kernels that won on tasks like its own",
    )


def options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that the arguments ask for, as `torch.compile` takes them: those that are given."""
    wanted = {
        "cuda_agent.policy": getattr(args, "policy", None),
        "cuda_agent.model": getattr(args, "policy_model", None),
        "cuda_agent.base_url": getattr(args, "base_url", None),
        "cuda_agent.policy_options": dict(getattr(args, "policy_option", ())) or None,
        "cuda_agent.allow_policy_cpp": True if getattr(args, "allow_policy_cpp", False) else None,
        "cuda_agent.memory": False if getattr(args, "no_memory", False) else None,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def check(args: argparse.Namespace) -> None:
    """Raises `CliError` where there is no such policy, or something is missing for it."""
    given: Mapping[str, Any] = {n.partition(".")[2]: v for n, v in options(args).items()}
    spec = with_options(
        given.get("policy", "search"),
        given.get("model", ""),
        given.get("base_url", ""),
        given.get("policy_options", {}),
    )
    why = spec if isinstance(spec, str) else registry.problem(spec) or registry.missing(spec)
    if why:
        raise CliError(why)


def _option(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, (int(value) if value.lstrip("-").isdecimal() else float(value))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER") from None
