"""Nothing that comes from outside crashes or hangs a parser: it is read, or refused in clear words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parsers import PARSERS

NUMBERS = st.integers() | st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**40, 1, 2**40, 12, 64])
ODD = [
    "",
    "n",
    "n" * 500,
    "-" * 300 + "1",
    "9" * 300,
    "\0",
    "\ud800",
    "aten.add.Tensor",
    "NaN",
    "inf",
    "1e999",
]
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=20) | st.sampled_from(ODD),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
FAST = settings(max_examples=60, suppress_health_check=list(HealthCheck))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where there is a value in a document, the document itself left out."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [found for key, inner in items for found in ((*path, key), *places(inner, (*path, key)))]


def changed(document: Any, path: tuple[Any, ...], value: Any, how: str) -> Any:
    """The document with the value at a place replaced, left out, or beside one more."""
    whole = json.loads(json.dumps(document))
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    if how == "left out":
        del inner[path[-1]]
    elif how == "added" and isinstance(inner, list):
        inner.insert(path[-1], value)
    elif how == "added":
        inner[f"{path[-1]}_"] = value
    else:
        inner[path[-1]] = value
    return whole


@pytest.mark.parametrize("name", PARSERS)
def test_a_valid_text_is_read(name: str) -> None:
    PARSERS[name].read(PARSERS[name].valid)


@pytest.mark.parametrize("name", PARSERS)
@FAST
@given(st.text(max_size=200) | VALUES.map(lambda value: json.dumps(value)))
def test_any_text_is_read_or_refused_in_clear_words(name: str, text: str) -> None:
    PARSERS[name].survives(text)


@pytest.mark.parametrize("name", [n for n in PARSERS if n != "size"])
@FAST
@given(st.data())
def test_a_valid_text_with_changes_is_read_or_refused_in_clear_words(name: str, data: Any) -> None:
    document = json.loads(PARSERS[name].valid)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(document) or [()]))
        if not path:
            break
        how = data.draw(st.sampled_from(["replaced", "replaced", "left out", "added"]))
        document = changed(document, path, data.draw(VALUES), how)
    PARSERS[name].survives(json.dumps(document))


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "1" * 10_000,
        "-" * 5_000,
        "(" * 390 + ")" * 390,
        "n" + "+n" * 190,
        "1" + "0" * 380,
        "*".join(["n"] * 190),
        '{"a": 1, "a": 2}',
        '"\\ud800"',
        "NaN",
        "\ufeff{}",
        "null",
    ],
    ids=range(13),
)
def test_a_text_made_to_break_parsers_is_refused_in_clear_words(name: str, text: str) -> None:
    PARSERS[name].survives(text)


@pytest.mark.parametrize("name", [n for n in PARSERS if n != "size"])
def test_a_deep_or_huge_value_anywhere_is_refused_in_clear_words(name: str) -> None:
    parser = PARSERS[name]
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    for value in (deep, 10**400, ["x"] * 5000, "x" * 100_000, {str(i): i for i in range(2000)}):
        document = json.loads(parser.valid)
        for path in places(document):
            parser.survives(json.dumps(changed(document, path, value, "replaced")))
