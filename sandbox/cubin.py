"""Look inside a cubin: its kernels, its device globals, and what it calls from outside.

The check is made on the final machine code's ELF symbols, so neither macros nor inline assembly hide anything from it.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

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


class CubinError(ValueError):
    """The bytes are no cubin."""


@dataclass(frozen=True)
class Cubin:
    """Names of kernels, sizes in bytes of device globals, and names defined nowhere in the file."""

    kernels: frozenset[str]
    globals: dict[str, int]
    undefined: frozenset[str]


@dataclass(frozen=True)
class _Section:
    name: str
    type: int
    offset: int
    size: int
    link: int


def parse(data: bytes) -> Cubin:
    """Read the symbol table of a 64-bit little-endian ELF file. Raises CubinError."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise CubinError("not a 64-bit ELF file")
    try:
        sections = _sections(data)
        table = next(s for s in sections if s.type == 2)
        return _classify(_symbols(data, table, sections[table.link]), sections)
    except (struct.error, IndexError, StopIteration, OverflowError, ValueError) as error:
        raise CubinError(f"broken ELF file: {error!r}") from None


def _sections(data: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    raw = [struct.unpack_from("<IIQQQQII", data, start + i * size) for i in range(count)]
    names = raw[names_index][4]
    return [_Section(_text(data, names + r[0]), r[1], r[4], r[5], r[6]) for r in raw]


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode(errors="replace")


_Symbol = tuple[str, int, int, int, int]  # name, type, binding, section index, size


def _symbols(data: bytes, table: _Section, names: _Section) -> list[_Symbol]:
    symbols = []
    for offset in range(table.offset, table.offset + table.size, 24):
        name, info, _, section, _, size = struct.unpack_from("<IBBHQQ", data, offset)
        symbols.append((_text(data, names.offset + name), info & 15, info >> 4, section, size))
    return symbols


def _classify(symbols: list[_Symbol], sections: list[_Section]) -> Cubin:
    kernels, variables, undefined = set(), {}, set()
    for name, kind, binding, section, size in symbols:
        if not name or name.startswith(_RESERVED):
            continue
        if section == 0:
            undefined.add(name)
        elif kind == _FUNCTION and binding == _GLOBAL_BINDING:
            kernels.add(name)
        elif kind == _OBJECT and sections[section].name.startswith(".nv.global"):
            variables[name] = size
    return Cubin(frozenset(kernels), variables, frozenset(undefined))


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
