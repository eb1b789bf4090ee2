"""Schedule parameters as typed dataclasses: each field says what it means and which values it may have.

    @dataclass(frozen=True)
    class SkinnyParams:
        rows: int = integer("rows of a thread")
        order: str = string("who goes first", among=("rows", "columns"), default="rows")

A policy may send any names and values. `read` checks them against the fields and gives the dataclass, or the reason why
not. What depends on a kernel's sizes or on the device is for the family to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.schedule import MAX_PARAMETER, Parameter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SKETCH = "sketch"
"""The parameter that names the family of a kernel."""
OF_ANY = frozenset({SKETCH, "rewrite"})
"""Parameters of any family's kernels, fields of no dataclass; the other names the form of a task that is rewritten."""
_KEY = "meaning"
P = TypeVar("P", bound="DataclassInstance")


@dataclass(frozen=True)
class Meaning:
    """What one parameter means, for people and policies, and its values.

    among: all values that there are; empty where any word, or any number from ``least`` to ``most``, is one. default:
    its value where it is left out; None where it must be given. fixed: a search takes only the values that a family
    proposes, since they name a way, accuracy rests on them, or the machine sets them. flips: a search tries both
    0 and 1.
    """

    text: str
    is_word: bool
    least: int = 1
    most: int = MAX_PARAMETER
    among: tuple[Parameter, ...] = ()
    default: Parameter | None = None
    fixed: bool = False
    flips: bool = False

    def problem(self, value: object) -> str | None:
        """Why ``value`` cannot be; None where it can."""
        if self.among:
            known = any(type(value) is type(one) and value == one for one in self.among)
            return None if known else f"one of {', '.join(map(str, self.among))}"
        if self.is_word:
            return None if isinstance(value, str) else "a word"
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and self.least <= value <= self.most:  # type: ignore[operator]
            return None
        return f"a number from {self.least} to {self.most}"


def integer(
    text: str,
    *,
    least: int = 1,
    most: int = MAX_PARAMETER,
    among: tuple[int, ...] = (),
    default: int | None = None,
    fixed: bool = False,
) -> Any:
    """A dataclass field for a number. text: what it means, in Markdown; the rest is as in `Meaning`."""
    return _field(Meaning(text, False, least, most, among, default, fixed))


def switch(
    text: str, *, default: int | None = None, fixed: bool = False, flips: bool = False
) -> Any:
    """A dataclass field that is 0 or 1."""
    return _field(Meaning(text, False, among=(0, 1), default=default, fixed=fixed, flips=flips))


def string(text: str, *, among: tuple[str, ...] = (), default: str | None = None) -> Any:
    """A dataclass field for a word: one of ``among``, or any where that is empty."""
    return _field(Meaning(text, True, among=among, default=default))


def _field(meaning: Meaning) -> Any:
    default = MISSING if meaning.default is None else meaning.default
    return field(default=default, metadata={_KEY: meaning})


def meanings(params: type[DataclassInstance]) -> dict[str, Meaning]:
    """The parameters of a dataclass, by name; fields that are no parameters are left out."""
    return {f.name: f.metadata[_KEY] for f in fields(params) if _KEY in f.metadata}


def refusal(params: type[DataclassInstance], given: Mapping[str, Parameter]) -> NotCovered | None:
    """Why ``given`` cannot be a ``params``: a name is unknown or missing, or a value is not one of its own."""
    known = meanings(params)
    own = {name: value for name, value in given.items() if name != SKETCH}
    for name, value in own.items():
        if name not in known:
            return NotCovered(f"no schedule parameter {name!r}; known: {', '.join(known)}")
        problem = known[name].problem(value)
        if problem is not None:
            return NotCovered(f"schedule parameter {name}={value!r}; it is {problem}")
    missing = [f.name for f in fields(params) if f.name not in own and _is_needed(f)]
    return NotCovered(f"no schedule parameter {', '.join(missing)}") if missing else None


def read(params: type[P], given: Mapping[str, Parameter], **facts: Any) -> P | NotCovered:
    """``given`` as a ``params``, or the reason why it cannot be.

    facts: the dataclass's fields that are no parameters.
    """
    problem = refusal(params, given)
    if problem is not None:
        return problem
    return params(**facts, **{name: value for name, value in given.items() if name != SKETCH})


def require(params: type[P], given: Mapping[str, Parameter], **facts: Any) -> P:
    """As `read`, for what writes source. Raises Unsupported with the reason."""
    found = read(params, given, **facts)
    if isinstance(found, NotCovered):
        raise Unsupported(found.reason)
    return found


def _is_needed(of: Field[Any]) -> bool:
    return _KEY in of.metadata and of.default is MISSING
