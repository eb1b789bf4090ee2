"""An endpoint that answers as it is told: a scripted HTTP server for faults of servers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """One answer. cut: bytes of it after which the connection is closed; slow: seconds between its pieces."""

    body: bytes | str = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    slow: float = 0.0
    hang: float = 0.0


def said(
    content: Any = "", calls: Any = None, finish: Any = "stop", **message: Any
) -> dict[str, Any]:
    """A chat completion."""
    whole = {"role": "assistant", "content": content, **message}
    if calls is not None:
        whole["tool_calls"] = calls
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    choice = {"index": 0, "message": whole, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}


def call(name: Any = "look", arguments: Any = "{}", id: Any = "a") -> dict[str, Any]:
    """A tool call."""
    function = {"name": name, "arguments": arguments}
    return {"id": id, "type": "function", "function": function}


@dataclass
class Endpoint:
    """What it was asked, and what it answers next: the last reply again when there are no more."""

    url: str
    replies: list[Reply]
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def endpoint(*replies: Reply | Mapping[str, Any]) -> Iterator[Endpoint]:
    """A server on a free port for the time of a test."""
    made = [r if isinstance(r, Reply) else Reply(json.dumps(r)) for r in replies]
    found = Endpoint("", made)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"]))
            number = len(found.asked)
            found.asked.append(json.loads(text))
            found.headers.append({n.lower(): v for n, v in self.headers.items()})
            _send(self, found.replies[min(number, len(found.replies) - 1)])

        def log_message(self, *_: Any) -> None:
            """Nothing: tests read what was asked."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _send(handler: BaseHTTPRequestHandler, reply: Reply) -> None:
    body = (
        reply.body.encode("utf-8", "surrogatepass") if isinstance(reply.body, str) else reply.body
    )
    time.sleep(reply.hang)
    try:
        handler.send_response(reply.status)
        given = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for name, value in {**given, **reply.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        _pieces(reply, body, handler.wfile.write)
    except OSError:
        pass
    handler.close_connection = True


def _pieces(reply: Reply, body: bytes, write: Callable[[bytes], Any]) -> None:
    if not reply.slow:
        write(body[: reply.cut])
        return
    for byte in body[: reply.cut]:
        write(bytes([byte]))
        time.sleep(reply.slow)
