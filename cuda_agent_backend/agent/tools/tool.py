"""What a tool is: a name, what it says of itself, the JSON schema of its arguments, and a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cuda_agent_backend.agent.protocol import Schema

Answer = dict[str, Any]
"""What a tool answers: JSON values, with ``ok``, and ``error`` where that is false and nothing else says why."""


@dataclass(frozen=True)
class Spec:
    """A tool as a policy sees it. properties: JSON schema of each argument; those not `required` have defaults."""

    name: str
    description: str
    properties: Mapping[str, Schema] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    @property
    def schema(self) -> Schema:
        """In the OpenAI function format."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": dict(self.properties),
                    "required": list(self.required),
                    "additionalProperties": False,
                },
            },
        }


@dataclass(frozen=True)
class Tool:
    """A spec with the function that does it."""

    spec: Spec
    run: Callable[..., Answer]


def text(description: str, **limits: Any) -> Schema:
    """A string argument."""
    return {"type": "string", "description": description, **limits}


def whole(description: str, least: int, most: int) -> Schema:
    """An integer argument within bounds."""
    return {"type": "integer", "description": description, "minimum": least, "maximum": most}


def flag(description: str) -> Schema:
    """A yes or no."""
    return {"type": "boolean", "description": description}


def failed(error: str, **more: Any) -> Answer:
    """The answer of a tool that could not do what it was asked for."""
    return {"ok": False, "error": error, **more}
