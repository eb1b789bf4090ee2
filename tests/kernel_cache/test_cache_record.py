from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from cache_examples import DAY, EVIDENCE, negative, record
from hypothesis import given
from hypothesis import strategies as st

from kernel_cache import NegativeRecord, Record, RecordError, needs_reverification

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(record().to_json()), **fields})


def without(name: str) -> str:
    fields = json.loads(record().to_json())
    del fields[name]
    return json.dumps(fields)


def test_a_record_comes_back_from_its_text() -> None:
    assert Record.from_json(record().to_json()) == record()
    assert Record.from_json(record().to_json().encode()) == record()


@given(JSON_VALUES)
def test_any_json_may_be_a_sample(value: Any) -> None:
    made = replace(record(), evidence={**EVIDENCE, "samples": [value]})
    assert Record.from_json(made.to_json()).to_json() == made.to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"version":1,"version":1}', "repeated"),
        (b"\xff\xfe", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (changed(created=float("nan")), "NaN"),
        (changed(created=True), "created"),
        (changed(created="today"), "created"),
        (changed(version=2), "version 2"),
        (changed(extra=1), "extra"),
        (changed(language="python"), "language"),
        (changed(origin="stranger"), "origin"),
        (changed(plan="nonsense"), "plan"),
        (changed(task="{}"), "task"),
        (changed(binary_digest="../../etc/passwd"), "binary_digest"),
        (changed(key={}), "task_digest"),
        (changed(key={**record().key.to_fields(), "more": 1}), "more"),
        (changed(evidence={}), "verifier"),
        (changed(evidence={**EVIDENCE, "toolchain": ""}), "toolchain"),
        (changed(evidence={**EVIDENCE, "samples": 3}), "samples"),
        (changed(evidence=[]), "evidence"),
        (without("source"), "source"),
        (without("evidence"), "evidence"),
    ],
)
def test_malformed_text_is_an_error_that_names_what_is_wrong(
    text: str | bytes, message: str
) -> None:
    with pytest.raises(RecordError, match=message):
        Record.from_json(text)


@given(st.text() | st.binary())
def test_parsing_any_text_gives_a_record_or_a_record_error(text: str | bytes) -> None:
    with pytest.raises(RecordError):
        Record.from_json(text)


@pytest.mark.parametrize("name", sorted(EVIDENCE))
def test_evidence_must_answer_for_each_required_field(name: str) -> None:
    evidence = {field: value for field, value in EVIDENCE.items() if field != name}
    with pytest.raises(RecordError, match=name):
        replace(record(), evidence=evidence)


def test_evidence_that_is_not_finite_is_refused_when_it_is_made() -> None:
    with pytest.raises(RecordError, match="not JSON"):
        replace(record(), evidence={**EVIDENCE, "errors": [float("inf")]})


def test_a_record_tells_its_toolchain_and_verifier() -> None:
    assert (record().toolchain, record().verifier) == ("g++ 12.2.0", "1")


def test_a_negative_record_comes_back_and_expires() -> None:
    made = negative(lasts=DAY)
    assert NegativeRecord.from_fields(made.to_fields()) == made
    assert not made.expired(1000.0 + DAY - 1) and made.expired(1000.0 + DAY)


def test_a_negative_record_of_a_clock_that_was_ahead_does_not_last_as_long_as_that() -> None:
    made = negative(created=50 * DAY, lasts=30 * DAY)
    assert made.expired(10 * DAY) and not made.expired(50 * DAY - 60)


@pytest.mark.parametrize("fields", [{"reason": ""}, {"policy": ""}, {"expires": 1.0}])
def test_a_negative_record_names_policy_reason_and_a_later_expiry(fields: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        replace(negative(), **fields)


def test_another_toolchain_than_that_of_the_evidence_asks_for_verification() -> None:
    reason = needs_reverification("g++ 12", "g++ 13")
    assert reason is not None and "g++ 12" in reason and "g++ 13" in reason


def test_the_same_toolchain_or_none_at_all_asks_for_nothing() -> None:
    assert needs_reverification("g++ 12", "g++ 12") is None
    assert needs_reverification("g++ 12", None) is None


def test_evidence_without_a_toolchain_always_asks_for_verification() -> None:
    assert needs_reverification("", "") is not None
    assert needs_reverification("", None) is not None
