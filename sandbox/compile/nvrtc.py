"""Compile CUDA source with NVRTC, as a program of its own: `python nvrtc.py LIBRARY SOURCE OUTPUT OPTION...`.

For machines that have the CUDA libraries but no toolkit. NVRTC compiles inside the calling process, so the calling
process must be one that may be killed. Imports nothing but the standard library and runs without the package.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path


class Nvrtc:
    """The few functions of libnvrtc that are needed."""

    def __init__(self, library: str) -> None:
        # NVRTC opens its companion by bare name, which only succeeds if it is loaded already or on the loader's path.
        for companion in sorted(Path(library).parent.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(str(companion))
        self._library = ctypes.CDLL(library)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def compile(self, source: bytes, name: str, options: Sequence[str]) -> tuple[bytes | None, str]:
        """The cubin (None if the source does not compile) and the log."""
        program = ctypes.c_void_p()
        self._check(
            self._library.nvrtcCreateProgram(
                ctypes.byref(program), source, name.encode(), 0, None, None
            )
        )
        encoded = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        status = self._library.nvrtcCompileProgram(program, len(options), encoded)
        log = self._fetch("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
        if status != 0:
            return None, log or self._describe(status)
        return self._fetch("CUBIN", program), log

    def _fetch(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def _check(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(self._describe(status))

    def _describe(self, status: int) -> str:
        return str(self._library.nvrtcGetErrorString(status).decode())


def main(arguments: Sequence[str]) -> int:
    """Compile as the command line says. Returns the exit status."""
    library, source, output, *options = arguments
    binary, log = Nvrtc(library).compile(Path(source).read_bytes(), Path(source).name, options)
    print(log, file=sys.stderr)
    if binary is None:
        return 1
    Path(output).write_bytes(binary)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
