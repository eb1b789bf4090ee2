"""What judge and worker say to each other over a Unix socket.

Two kinds of request. RUN_BY_DEVICE and RUN_BY_WALL are on the timed path, one call each: a head there, the ticket back
when the worker has read it, then GO, and some numbers back when it has run; on cpu, where both are the same, the clock
starts at GO, with the worker awake. Each leaves its outputs to be fetched, so that no call's time counts of which the
outputs cannot be looked at. Everything else is a COMMAND: a JSON object, with file descriptors where memory is shared,
answered by one.

Every request brings a ticket, eight random bytes that its answer must begin with. An answer that code in the
worker forges has none, and one whose ticket it found in memory leaves the true answer behind, which then
meets another request: either way the judge sees it.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

RUN_BY_WALL, DROP, COMMAND, RUN_BY_DEVICE = 1, 2, 3, 4
GO = b"g"
NO_SLOT = 255
"""Runs nothing: what the harness itself costs."""
TICKET = 8
HEAD = struct.Struct(f"<BBB{TICKET}s")
"""A request's head: kind, slot, input set, ticket."""
RUN_REPLY = struct.Struct(f"<{TICKET}sBd")
"""Reply to a run: its ticket, how it went, and seconds by the clock asked for (0 where the judge measures)."""
FAILED, GOOD, LATE = 0, 1, 2
"""How a run went. LATE: the host took longer to queue it than the device slept, so its time holds gaps."""
LENGTH = struct.Struct("<I")
MAX_LENGTH = 1 << 28


class Closed(ConnectionError):
    """The other side is gone."""


class Unasked(ValueError):
    """An answer to another request, or to none."""


def read_exactly(fd: int, count: int) -> bytes:
    """So many bytes from a descriptor; raises `Closed` at its end."""
    data = os.read(fd, count)
    while len(data) < count:
        more = os.read(fd, count - len(data))
        if not more:
            raise Closed
        data += more
    return data


def send_json(fd: int, message: dict[str, Any], ticket: bytes = b"") -> None:
    """An object after its length; in an answer, the ticket comes before both."""
    body = json.dumps(message).encode()
    write_all(fd, ticket + LENGTH.pack(len(body)) + body)


def receive_json(fd: int) -> dict[str, Any]:
    """What `send_json` sent. Raises ValueError on anything else: the other side is not trusted."""
    (length,) = LENGTH.unpack(read_exactly(fd, LENGTH.size))
    if length > MAX_LENGTH:
        raise ValueError("message too long")
    message = json.loads(read_exactly(fd, length))
    if not isinstance(message, dict):
        raise ValueError("message is not an object")
    return message


def receive_answer(fd: int, ticket: bytes) -> dict[str, Any]:
    """What `send_json` sent with this ticket. Raises `Unasked` on another, ValueError on nonsense."""
    if read_exactly(fd, TICKET) != ticket:
        raise Unasked("it answered what nobody had asked")
    return receive_json(fd)


def send_command(
    control: socket.socket, message: dict[str, Any], ticket: bytes, fds: Sequence[int] = ()
) -> None:
    """A command, followed by the descriptors that it speaks of."""
    fd = control.fileno()
    write_all(fd, HEAD.pack(COMMAND, len(fds), 0, ticket))
    if fds:
        socket.send_fds(control, [b"f"], list(fds))
    send_json(fd, message)


def receive_command(control: socket.socket, fd_count: int) -> tuple[dict[str, Any], list[int]]:
    """The rest of a command whose head has been read."""
    fds: list[int] = []
    if fd_count:
        _, fds, _, _ = socket.recv_fds(control, 1, fd_count)
    return receive_json(control.fileno()), list(fds)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes, however often it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
