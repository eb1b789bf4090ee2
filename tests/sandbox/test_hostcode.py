"""What a compiled C++ candidate asks the loader for."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from sandbox.compile.elf import DYNAMIC_SYMBOLS, MAX_NAME, ElfError, read_symbols
from sandbox.compile.host_code import why_refused
from sandbox.compile.toolchain import Missing, find_cxx

LOOKUPS = {
    "dlsym": 'dlsym(RTLD_DEFAULT, "x") != nullptr',
    "dlopen": 'dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD) != nullptr',
    "dl_iterate_phdr": "dl_iterate_phdr([](dl_phdr_info*, size_t, void*) { return 1; }, nullptr) != 0",
    "dladdr": "[] { Dl_info found; return dladdr((void*)&dlsym, &found); }() != 0",
}
INCLUDES = "#include <dlfcn.h>\n#include <link.h>\n#include <cmath>\n#include <omp.h>\n"


def library(folder: Path, expression: str) -> bytes:
    toolchain = find_cxx()
    assert not isinstance(toolchain, Missing)
    source = folder / "kernel.cpp"
    source.write_text(f'{INCLUDES}extern "C" bool kernel(float x) {{ return {expression}; }}')
    out = folder / "kernel.so"
    command = [str(toolchain.path), "-O2", "-fopenmp", "-shared", "-fPIC", str(source), "-o"]
    subprocess.run([*command, str(out)], check=True)
    return out.read_bytes()


@pytest.mark.parametrize("name", LOOKUPS)
def test_code_that_looks_up_functions_is_refused(name: str, tmp_path: Path) -> None:
    reason = why_refused(library(tmp_path, LOOKUPS[name]))
    assert reason is not None
    assert "looks for other libraries" in reason


def test_code_that_computes_is_not(tmp_path: Path) -> None:
    assert why_refused(library(tmp_path, "std::exp(x) > omp_get_max_threads()")) is None


def test_what_is_no_library_is_an_error(tmp_path: Path) -> None:
    whole = library(tmp_path, "x > 1")
    for broken in (b"", b"\x7fELF", whole[:200], whole[: len(whole) // 2]):
        with pytest.raises(ElfError):
            why_refused(broken)


def test_a_name_without_end_is_an_error(tmp_path: Path) -> None:
    """Many symbols that share one would keep the judge busy for hours."""
    whole = library(tmp_path, "x > 1")
    symbols, sections = read_symbols(whole, DYNAMIC_SYMBOLS)
    table = next(s for s in sections if s.type == DYNAMIC_SYMBOLS)
    last = table.offset + 24 * (len(symbols) - 1)
    far = len(whole) - sections[table.link].offset
    moved = whole[:last] + struct.pack("<I", far) + whole[last + 4 :]
    assert why_refused(moved + b"a" * (MAX_NAME - 1) + b"\0") is None
    with pytest.raises(ElfError):
        why_refused(moved + b"a" * MAX_NAME + b"\0")
