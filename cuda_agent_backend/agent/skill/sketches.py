"""The kernel families' schedule parameters, as the families explain them (see `codegen.registry`)."""

from __future__ import annotations

from typing import Any

from cuda_agent_backend.codegen.family import Family
from cuda_agent_backend.codegen.ir.parameters import Meaning, meanings
from cuda_agent_backend.codegen.registry import FAMILIES


def table(target: str) -> str:
    """In Markdown: one paragraph for each family of a target."""
    return "\n\n".join(paragraph(family, target) for family in FAMILIES[target])


def paragraph(family: Family[Any], target: str) -> str:
    """What there is to say of a family: its name, what it does, and its parameters."""
    name = f' (`"sketch": "{family.name}"`)' if family.is_named else ""
    own = explained(family, target)
    said = [family.docs, *(f"`{name}`: {meaning.text}." for name, meaning in own.items())]
    if family.like:
        said.insert(
            0, f"Parameters as {_reference(family, target)} has them{', and more' * bool(own)}."
        )
    return f"**{family.title}**{name}: {' '.join(filter(None, said))}"


def explained(family: Family[Any], target: str) -> dict[str, Meaning]:
    """The parameters that a family's paragraph explains, by name: all that no other family's does for it."""
    known = meanings(family.params)
    if not family.like:
        return known
    others = meanings(_like(family, target).params)
    return {name: meaning for name, meaning in known.items() if name not in others}


def _like(family: Family[Any], target: str) -> Family[Any]:
    return next(one for one in FAMILIES[target] if one.name == family.like)


def _reference(family: Family[Any], target: str) -> str:
    other = _like(family, target)
    return f"`{other.name}`" if other.is_named else f"**{other.title}**"
