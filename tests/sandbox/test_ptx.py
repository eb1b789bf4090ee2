"""PTX of several modules made one, and text that is made to be slow to read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandbox.compile import ptx
from sandbox.compile.triton import _read_answer
from sandbox.plan.plan import PlanError

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
SHARED = ".extern .shared .align 16 .b8 global_smem[];\n"
TABLE = ".global .align 1 .b8 table[3] = {1, 2, 3};\n"


def module(kernel: str, declared: str = "", line: str = "") -> str:
    return f"{HEAD}{declared}.visible .entry {kernel}(.param .u64 a) {{\n  {line}\n  ret;\n}}\n"


def test_variables_that_nothing_names_are_left_out() -> None:
    text = module("k", SHARED + TABLE + TABLE.replace("table", "table_2"), "mov.b64 %r1, table_2;")
    assert ptx.without_unused(text) == text.replace(TABLE, "")
    assert ptx.without_unused(module("k")) == module("k")


def test_what_modules_declare_in_the_same_words_is_declared_once() -> None:
    one, two = (module(name, SHARED + TABLE, "mov.b64 %r1, table;") for name in ("k", "l"))
    merged = ptx.merge([one, two])
    assert merged.count(SHARED) == merged.count(TABLE) == merged.count(HEAD) == 1
    assert merged.index(".entry k(") < merged.index(".entry l(")
    with pytest.raises(ptx.PtxError, match="architectures"):
        ptx.merge([one, two.replace("sm_90a", "sm_80")])
    with pytest.raises(ptx.PtxError, match="begin"):
        ptx.merge([one, "no PTX"])


def test_a_kernel_is_renamed_if_it_is_there_once_and_has_a_name() -> None:
    assert ptx.rename(module("k"), "k", "new") == module("new")
    for name in ("l", " " * 1000, "", "k" * 5000):
        with pytest.raises(ptx.PtxError):
            ptx.rename(module("k"), name, "new")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        ".global " + "a" * 4_000_000,
        ".extern .shared x\n" * 200_000,
        ".global " + "a " * 2_000_000 + "[1]",
        ".global .b8 x[1] = {" + "{" * 4_000_000,
    ],
    ids=["a long name", "no end", "many words", "braces"],
)
def test_text_is_read_in_time_that_grows_with_its_length(text: str) -> None:
    """A quadratic reading of these takes hours."""
    assert ptx.without_unused(HEAD + text) == HEAD + text
    assert ptx.merge([HEAD + text, HEAD]).startswith(HEAD)


def test_what_is_longer_or_has_more_variables_than_any_is_refused() -> None:
    with pytest.raises(ptx.PtxError, match="characters"):
        ptx.without_unused(" " * (ptx.MAX_CHARACTERS + 1))
    many = "".join(f".global .b8 v{i}[1];\n" for i in range(ptx.MAX_VARIABLES + 1))
    with pytest.raises(ptx.PtxError, match="variables"):
        ptx.without_unused(many)


@pytest.mark.parametrize("key", ["ptx", "name"])
def test_an_answer_that_no_file_could_hold_is_malformed(tmp_path: Path, key: str) -> None:
    answer = {"ptx": "text", "name": "k"}
    (tmp_path / "answer").write_text(json.dumps({"kernels": [answer]}))
    assert _read_answer(tmp_path / "answer", 1) == [answer]
    (tmp_path / "answer").write_text(json.dumps({"kernels": [{**answer, key: "\ud800"}]}))
    with pytest.raises(PlanError, match="malformed"):
        _read_answer(tmp_path / "answer", 1)
