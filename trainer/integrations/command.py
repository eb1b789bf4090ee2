"""``cuda-agent-train serve-env``: the environment for clients of OpenEnv."""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer.environment.session import JUDGEMENTS, TURNS
from trainer.errors import CommandError

SESSIONS, PORT = 64, 8000


def add_arguments(commands: Any, whole: Any) -> None:
    """The command's arguments. whole: a number of 1 or above."""
    serve = commands.add_parser("serve-env", help="serve the environment to clients of OpenEnv")
    serve.add_argument(
        "config", type=Path, metavar="CONFIG", help="a TOML file whose [world] is served"
    )
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    serve.add_argument("--port", type=int, default=PORT, help="0: any that is free")
    serve.add_argument("--sessions", type=whole, default=SESSIONS, metavar="N", help="at once")
    serve.add_argument(
        "--judgements", type=whole, default=JUDGEMENTS, metavar="N", help="of an episode"
    )
    serve.add_argument("--turns", type=whole, default=TURNS, metavar="N", help="of an episode")


def serve(args: argparse.Namespace) -> int:
    """Serve until told to stop; the exit status."""
    if find_spec("openenv") is None:
        raise CommandError('openenv is not installed: pip install "cuda_agent[openenv]"')
    import uvicorn

    from trainer.integrations.openenv_server import app_of
    from trainer.rollout.world import WorldFailed
    from trainer.stages import config
    from trainer.stages.worlds import world_of

    try:
        world = world_of(config.read(args.config).world)
    except (config.BadConfig, WorldFailed) as error:
        raise CommandError(str(error)) from error
    with contextlib.closing(world), _terminated_as_interrupted(), _listening(args) as listener:
        app = app_of(world, args.sessions, args.judgements, args.turns)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        host, port = listener.getsockname()[:2]
        print(f"{len(world.tasks)} tasks served at http://{host}:{port}", flush=True)
        server.run(sockets=[listener])
    return 0


@contextlib.contextmanager
def _listening(args: argparse.Namespace) -> Iterator[socket.socket]:
    try:
        made = socket.create_server((args.host, args.port))
    except (OSError, OverflowError) as error:
        raise CommandError(f"cannot listen on {args.host}:{args.port}: {error}") from error
    with made:
        yield made


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """The server hands on the signal that ended it: one to terminate must close the world first, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
