"""Headers that are parsed once: they are used, change nothing of what comes out, and each failure is a value."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.conformance import parsed_headers
from benchmarks.conformance.parsed_headers import NAME, TEXT, ParsedHeaders, parse_headers
from cuda_agent_backend.codegen import cpu as prelude_folder
from sandbox.compile.candidate import Compiled, CompileFailed, compile_candidate
from sandbox.compile.toolchain import Missing, Toolchain, find_cxx
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Buffer, Launch, Plan, TensorSpec

SOURCE = f"""{TEXT}
extern "C" void kernel(void* const* buffers) {{
  float* out = static_cast<float*>(buffers[0]);
  #pragma omp parallel for
  for (int64_t i = 0; i < 1000; ++i) out[i] = std::exp(std::numeric_limits<float>::epsilon() * i);
}}
"""
SPEC = TensorSpec("float32", (1000,), (1,))
PLAN = Plan("cpu", (Buffer("x", "input", SPEC), Buffer("y", "output", SPEC)), (Launch("kernel"),))
CANDIDATE = Candidate("cpu", "c++", SOURCE, PLAN, "sketch")


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> ParsedHeaders:
    compiler = find_cxx()
    if not (isinstance(compiler, Toolchain) and compiler.path.name == "g++"):
        pytest.skip("only g++'s parsed headers are known, and the C++ compiler here is another")
    found = parse_headers(tmp_path_factory.mktemp("headers"))
    assert isinstance(found, ParsedHeaders), found
    return found


def compiled(folder: Path, headers: ParsedHeaders | None, *more: str) -> Compiled | CompileFailed:
    flags = headers.flags if headers else ()
    include = (headers.folder,) if headers else ()
    found = compile_candidate(
        CANDIDATE, folder, "native", cxx_flags=(*flags, *more), include=include
    )
    assert isinstance(found, Compiled | CompileFailed)
    return found


def test_what_comes_out_is_the_same_to_the_byte(tmp_path: Path, parsed: ParsedHeaders) -> None:
    own, other = compiled(tmp_path / "own", parsed), compiled(tmp_path / "other", None)
    assert isinstance(own, Compiled) and isinstance(other, Compiled)
    assert own.path.read_bytes() == other.path.read_bytes()


def test_the_text_is_read_only_where_flags_are_others(
    tmp_path: Path, parsed: ParsedHeaders
) -> None:
    text = parsed.folder / NAME
    try:
        text.write_text("#error the text is read\n")
        assert isinstance(compiled(tmp_path / "same", parsed), Compiled)
        other = compiled(tmp_path / "other", parsed, "-O0", "-mno-avx")
        assert isinstance(other, CompileFailed) and "the text is read" in other.log
    finally:
        text.write_text(TEXT)
    assert isinstance(compiled(tmp_path / "text", parsed, "-O0", "-mno-avx"), Compiled)


def test_the_text_is_what_our_kernels_include() -> None:
    assert prelude_folder.__file__
    lines = Path(prelude_folder.__file__).with_name("prelude.h").read_text().splitlines(True)
    code = [line for line in lines if not line.startswith("//")]
    assert "".join(code[: code.index("\n")]) == TEXT


def test_nothing_is_left_beside_the_headers(parsed: ParsedHeaders) -> None:
    assert sorted(p.name for p in parsed.folder.iterdir()) == [NAME, f"{NAME}.gch"]


def test_what_cannot_be_parsed_is_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    blocked = parse_headers(tmp_path / "file" / "below")
    assert isinstance(blocked, CompileFailed) and "cannot write" in blocked.log
    monkeypatch.setattr(parsed_headers, "TEXT", "#include <no_such_header>\n")
    wrong = parse_headers(tmp_path / "wrong")
    assert isinstance(wrong, CompileFailed) and "no_such_header" in wrong.log
    assert list((tmp_path / "wrong").iterdir()) == []
    clang = Toolchain("c++", Path("/usr/bin/clang++"), "clang 18")
    monkeypatch.setattr(parsed_headers, "find_cxx", lambda: clang)
    other = parse_headers(tmp_path / "other")
    assert isinstance(other, CompileFailed) and "only g++" in other.log
    monkeypatch.setattr(parsed_headers, "find_cxx", lambda: Missing("no compiler", "install g++"))
    missing = parse_headers(tmp_path / "missing")
    assert isinstance(missing, CompileFailed) and "install g++" in missing.log
