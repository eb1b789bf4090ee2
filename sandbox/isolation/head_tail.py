"""Long output in little room: its beginning and its end are kept, its middle is counted."""

from __future__ import annotations

import re

_PLAIN = {code: "\ufffd" for code in (*range(32), 127) if chr(code) not in "\t\n"}


_GAP = re.compile(r"\n\[\.\.\. (\d{1,15}) of \d{1,15} (bytes|characters) left out \.\.\.\]\n")


def shortened(text: str, limit: int) -> str:
    """The text with its middle left out, and its size told, if it is longer than `limit` characters.

    Of a text that was shortened before, what was left out then is counted too.
    """
    if len(text) <= limit:
        return text
    half = max(1, limit // 2)
    head, middle, tail = text[:half], text[half:-half], text[-half:]
    gap = _GAP.search(middle)
    if gap is None:
        return f"{head}{_gap(len(middle), len(text), 'characters')}{tail}"

    def size(part: str) -> int:
        return len(part) if gap[2] == "characters" else len(part.encode(errors="replace"))

    left = int(gap[1]) + size(middle[: gap.start()]) + size(middle[gap.end() :])
    return f"{head}{_gap(left, left + size(head) + size(tail), gap[2])}{tail}"


def _gap(left: int, size: int, unit: str) -> str:
    return f"\n[... {left} of {size} {unit} left out ...]\n"


class HeadTail:
    """Keeps at most `limit` bytes of what it is fed."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head, self._tail = bytearray(), bytearray()
        self.size = 0
        """Bytes fed so far."""

    def feed(self, data: bytes) -> None:
        """More output."""
        self.size += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 4 * self._half:
            del self._tail[: -self._half]

    def text(self) -> str:
        """What was kept, as text; what was left out is told by its size."""
        tail = bytes(self._tail[-self._half :])
        left = self.size - len(self._head) - len(tail)
        if not left:
            return plain(bytes(self._head) + tail)
        return f"{plain(bytes(self._head))}{_gap(left, self.size, 'bytes')}{plain(tail)}"


def plain(data: bytes) -> str:
    """Bytes as text that any reader can show: what is no UTF-8, and control characters, become U+FFFD."""
    return data.decode(errors="replace").replace("\r\n", "\n").translate(_PLAIN)
