"""Output of any length in bounded memory: its beginning and its end are kept, its middle is counted."""

from __future__ import annotations

_PLAIN = {code: "\ufffd" for code in (*range(32), 127) if chr(code) not in "\t\n"}


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
        return f"{plain(bytes(self._head))}\n[... {left} of {self.size} bytes left out ...]\n{plain(tail)}"


def plain(data: bytes) -> str:
    """Bytes as text that any reader can show: what is no UTF-8, and control characters, become U+FFFD."""
    return data.decode(errors="replace").replace("\r\n", "\n").translate(_PLAIN)
