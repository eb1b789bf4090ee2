"""Modules that are named in strings, such as those that run as child processes, are there."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import cuda_agent_backend
from cuda_agent_backend.agent.policies.registry import MIXED, POLICIES

ROOT = Path(cuda_agent_backend.__file__).parents[1]
PACKAGES = ("cuda_agent_backend", "sandbox", "kernel_cache", "trainer")
MODULE = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.[a-z_]+)+")


def named_modules() -> dict[str, str]:
    """Each string of the sources that is a dotted name below one of our packages, and a file that has it."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                text = node.value if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and MODULE.fullmatch(text):
                    found[text] = str(path.relative_to(ROOT))
    return found


def test_some_modules_run_as_children() -> None:
    known = {"cuda_agent_backend.search.service", "cuda_agent_backend.acceptance.process"}
    assert known <= named_modules().keys()


@pytest.mark.parametrize("name", sorted(named_modules()))
def test_a_module_that_a_string_names_is_there(name: str) -> None:
    assert importlib.util.find_spec(name) is not None, named_modules()[name]


@pytest.mark.parametrize("module", sorted({MIXED, *(kind.module for kind in POLICIES.values())}))
def test_the_module_of_a_policy_is_there(module: str) -> None:
    assert importlib.util.find_spec(f"cuda_agent_backend.agent.policies.{module}") is not None
