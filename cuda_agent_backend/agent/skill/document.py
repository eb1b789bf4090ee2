"""SKILL.md put together: our prose (the .md files here) with numbers, tables and examples taken from the code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from cuda_agent_backend.agent.observation import HINTS
from cuda_agent_backend.agent.protocol import Schema
from cuda_agent_backend.agent.skill.example import (
    SOURCES,
    TRITON_SOURCE,
    example_plan,
    example_source,
    example_text,
    source_of,
    triton_plan,
)
from cuda_agent_backend.agent.skill.sketches import table
from cuda_agent_backend.agent.tools.toolbox import tool_schemas
from sandbox import operator_library
from sandbox.accuracy import error_pool
from sandbox.accuracy.inputs import DISTRIBUTIONS
from sandbox.compile.candidate import CXX_FLAGS
from sandbox.compile.cuda import COMMON_FLAGS
from sandbox.judge.verify import QUICK
from sandbox.plan import check as plancheck
from sandbox.plan.alignment import INPUT_ALIGNMENT, TEMPORARY_ALIGNMENT
from sandbox.plan.steps import KIND_ORDER
from sandbox.task.specs import ITEM_SIZES
from sandbox.timing.decision import THRESHOLD

_GAP = re.compile(r"\{\{(\w+)\}\}")
_ORDER = (
    ("start",),
    ("plan", "plan_{}"),
    ("rules_{}",),
    ("accuracy",),
    ("example", "more_{}"),
    ("speed_{}",),
    ("sketches",),
    ("errors", "errors_{}"),
)
"""Sections, each of files that follow each other without a gap."""


@cache
def skill(target: str) -> str:
    """The whole text for a target, in Markdown."""
    sections = ["".join(_part(name.format(target)) for name in names) for names in _ORDER]
    return filled("\n".join(sections), _values(target))


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with ``{{name}}`` replaced. Raises KeyError for a name without a value."""
    return _GAP.sub(lambda gap: values[gap[1]], text)


def tools_in_words(schemas: list[Schema]) -> str:
    """One paragraph for each tool, with its arguments."""
    return "\n".join(_tool(schema["function"]) for schema in schemas)


def _tool(function: Mapping[str, Any]) -> str:
    parameters = function["parameters"]
    names = [n if n in parameters["required"] else f"{n}?" for n in parameters["properties"]]
    lines = [f"* **`{function['name']}({', '.join(names)})`** {function['description']}"]
    lines += [
        f"  * `{name}` ({_type(schema)}): {schema['description']}"
        for name, schema in parameters["properties"].items()
    ]
    return "\n".join(lines)


def _type(schema: Schema) -> str:
    if schema["type"] != "array":
        return str(schema["type"])
    inner = schema["items"]
    if "properties" not in inner:
        return "list of objects"
    names = [n if n in inner["required"] else f"{n}?" for n in inner["properties"]]
    return f"list of objects {{{', '.join(names)}}}"


def _part(name: str) -> str:
    """A file's text; of what is not there for a target, none."""
    path = files(__package__) / f"{name}.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _values(target: str) -> dict[str, str]:

    cuda = target == "cuda"
    return {
        "target": target,
        "threshold": f"{THRESHOLD:g}",
        "overhead": "a few microseconds each"
        if cuda
        else "one parallel region costs some microseconds",
        "tools": tools_in_words(tool_schemas()),
        "plan_keys": "`version` (1), `target`, `buffers`, `steps` and, if wanted, `sizes`",
        "plan_example": example_plan(target),
        "kinds": ", ".join(KIND_ORDER),
        "max_inputs": str(operator_library.MAX_INPUTS),
        "max_outputs": str(operator_library.MAX_OUTPUTS),
        "max_buffers": str(plancheck.MAX_BUFFERS),
        "max_steps": str(plancheck.MAX_STEPS),
        "max_grid": str(plancheck.MAX_GRID),
        "max_threads": str(plancheck.MAX_THREADS),
        "max_shared": f"{plancheck.MAX_SHARED:,}",
        "max_cluster": str(plancheck.MAX_CLUSTER),
        "temporary_alignment": str(
            TEMPORARY_ALIGNMENT if cuda else 64
        ),  # torch aligns to 64 on cpu
        "input_alignment": str(INPUT_ALIGNMENT[target]),
        "dtypes": ", ".join(ITEM_SIZES),
        "compiler": " ".join(("nvcc -cubin -O3", *COMMON_FLAGS) if cuda else ("g++", *CXX_FLAGS)),
        "threads_note": "as many threads as the user's torch has (`omp_get_max_threads()`)",
        "rms": f"{error_pool.RMS_MULTIPLE:g}",
        "max": f"{error_pool.MAX_MULTIPLE:g}",
        "distributions": "; ".join(f"`{name}` ({HINTS[name]})" for name in DISTRIBUTIONS),
        "quick": ", ".join(f"`{name}`" for name in QUICK.distributions),
        "example_task": example_text(target),
        "example_name": SOURCES[target],
        "example_language": "cpp",
        "example_source": example_source(target),
        "triton_source": source_of(TRITON_SOURCE),
        "triton_plan": triton_plan(),
        "sketches": table(target),
    }
