"""Look inside a cubin: its kernels, its device globals, and what it calls from outside.

The check is made on the final machine code's ELF symbols, so neither macros nor inline assembly hide anything from it.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from sandbox.compile.elf import SYMBOLS, UNDEFINED, ElfError, Section, Symbol, read_symbols

# Tables of CUDA's own sin, cos and tan for large arguments; they lie in writable memory though nothing writes them.
MATH_TABLES = {"__cudart_i2opi_f": 24, "__cudart_i2opi_d": 144, "__cudart_sin_cos_coeffs": 128}

_CALLS = {
    "malloc": "allocates memory on the device",
    "free": "allocates memory on the device",
    "vprintf": "prints on the device",
    "__assertfail": "asserts on the device",
}
_OBJECT, _FUNCTION, _GLOBAL_BINDING = 1, 2, 1
_RESERVED = (".nv.", "__nv_reserved")


@dataclass(frozen=True)
class Cubin:
    """Names of kernels, sizes in bytes of device globals, and names defined nowhere in the file."""

    kernels: frozenset[str]
    globals: dict[str, int]
    undefined: frozenset[str]


def parse(data: bytes) -> Cubin:
    """What a cubin's symbol table says. Raises ElfError."""
    return _classify(*read_symbols(data, SYMBOLS))


def _classify(symbols: list[Symbol], sections: list[Section]) -> Cubin:
    kernels, variables, undefined = set(), {}, set()
    for symbol in symbols:
        if symbol.type == _OBJECT and _in_globals(symbol, sections):
            variables[symbol.name] = (
                symbol.size
            )  # whatever it is called: a source may take reserved names
        elif not symbol.name or symbol.name.startswith(_RESERVED):
            continue
        elif symbol.section == UNDEFINED:
            undefined.add(symbol.name)
        elif symbol.type == _FUNCTION and symbol.binding == _GLOBAL_BINDING:
            kernels.add(symbol.name)
    return Cubin(frozenset(kernels), variables, frozenset(undefined))


_INFO = ".nv.info."
_PARAMETER, _WITH_PAYLOAD = 0x17, 4


def parameter_sizes(data: bytes) -> dict[str, tuple[int, ...]]:
    """Of each kernel the sizes of its parameters in bytes, in order. Raises ElfError."""
    _, sections = read_symbols(data, SYMBOLS)
    try:
        return {
            section.name.removeprefix(_INFO): _sizes(data[section.offset :][: section.size])
            for section in sections
            if section.name.startswith(_INFO)
        }
    except struct.error as error:
        raise ElfError(f"broken facts of a kernel: {error}") from None


def _sizes(facts: bytes) -> tuple[int, ...]:
    """From a list of facts: format and kind, a byte each, and a value or the length of what follows."""
    found: dict[int, int] = {}
    position = 0
    while position < len(facts):
        form, kind, value = struct.unpack_from("<BBH", facts, position)
        position += 4
        if form != _WITH_PAYLOAD:
            continue
        if kind == _PARAMETER:
            _, ordinal, _, packed = struct.unpack_from("<IHHI", facts, position)
            found[ordinal] = packed >> 18
        position += value
    if sorted(found) != list(range(len(found))):
        raise ElfError("a kernel's parameters are not numbered in order")
    return tuple(found[ordinal] for ordinal in range(len(found)))


def _in_globals(symbol: Symbol, sections: list[Section]) -> bool:
    if symbol.section >= len(sections):
        raise ElfError(f"{symbol.name} lies in a section that is not there")
    return sections[symbol.section].name.startswith(".nv.global")


def why_refused(cubin: Cubin, source: str, trusted: bool) -> str | None:
    """Why a candidate with this machine code may not run; None if it may. `trusted`: our own sketches wrote it."""
    for name in sorted(cubin.undefined):
        return f"the code {_CALLS.get(name, 'calls something that is not in it')} ({name})"
    foreign = sorted(name for name, size in cubin.globals.items() if MATH_TABLES.get(name) != size)
    if foreign:
        return (
            f"device globals keep state between launches: {', '.join(foreign)}; "
            "use __constant__ for tables, arguments and temporaries for the rest"
        )
    if cubin.globals and not trusted and may_name_math_tables(source):
        return (
            "with sin, cos or tan of large arguments, the source may neither name CUDA's tables (__cudart_...) "
            "nor build names in macros (# and ##)"
        )
    return None


def may_name_math_tables(source: str) -> bool:
    """Whether a source could refer to CUDA's own math tables: directly, in pieced strings, or through macros."""
    text = re.sub(r"\\\r?\n", "", source)
    if "__cudart" in re.sub(r'"\s*"', "", text):
        return True
    directives = re.findall(r"^\s*(?:#|%:)\s*define\b(.*)$", text, re.MULTILINE)
    return any("#" in body or "%:" in body for body in directives)
