from __future__ import annotations

import pytest
from cache_examples import key, task
from hypothesis import given
from hypothesis import strategies as st

from kernel_cache import KernelKey
from kernel_cache.canonical import sha256
from kernel_cache.key import op_key_of

DIGEST = sha256(task().encode())


def test_the_order_of_precision_flags_is_of_no_account() -> None:
    one = KernelKey.of(DIGEST, "cpu", "avx2", {"a": "x", "b": True}, False)
    other = KernelKey.of(DIGEST, "cpu", "avx2", {"b": True, "a": "x"}, False)
    assert one == other and one.digest == other.digest and hash(one) == hash(other)


@pytest.mark.parametrize(
    "changed",
    [
        KernelKey.of(sha256(b"other"), "cpu", "avx2", "ieee", False),
        KernelKey.of(DIGEST, "cuda", "avx2", "ieee", False),
        KernelKey.of(DIGEST, "cpu", "avx512", "ieee", False),
        KernelKey.of(DIGEST, "cpu", "avx2", "tf32", False),
        KernelKey.of(DIGEST, "cpu", "avx2", "ieee", True),
    ],
)
def test_every_field_changes_the_digest(changed: KernelKey) -> None:
    assert changed.digest != KernelKey.of(DIGEST, "cpu", "avx2", "ieee", False).digest


def test_the_digest_is_the_same_in_every_release() -> None:
    known = KernelKey.of("0" * 64, "cuda", "sm_90a", {"float32": "ieee"}, True)
    assert known.digest == "a06687b4ef87ad05fd2bba6fb8a9dbd529989dc0cfcfc6aeabe36aa753446f10"
    assert known.op_key == int(known.digest[:16], 16) >> 1


@given(st.integers(0, 2**256 - 1))
def test_the_operator_key_is_a_positive_63_bit_integer(number: int) -> None:
    assert 0 < op_key_of(f"{number:064x}") < 2**63


def test_a_digest_of_zeros_does_not_give_the_key_that_stands_for_none() -> None:
    assert op_key_of("0" * 64) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task_digest", "abc"),
        ("task_digest", "../" * 21 + "x"),
        ("target", "tpu"),
        ("arch", ""),
        ("precision", {"float32": "ieee"}),
        ("deterministic", 1),
    ],
)
def test_a_malformed_field_is_an_error_that_names_it(field: str, value: object) -> None:
    fields = {**key().to_fields(), field: value}
    with pytest.raises(ValueError, match=field):
        KernelKey(**fields)  # type: ignore[arg-type]
