"""``cuda-agent cache``: look at what the kernel cache holds, check it, and clean it up."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cuda_agent_backend.cli.result import CliError, Result
from cuda_agent_backend.settings import Settings
from cuda_agent_backend.tools import tables
from kernel_cache import CacheUnavailable, Corrupt, GcReport, KernelCache, NegativeRecord, Record

T = TypeVar("T")
Entry = Record | NegativeRecord | Corrupt
KEY_SHOWN = 12
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_parsers(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    """The subcommands of ``cache``."""
    commands = parser.add_subparsers(dest="cache_command", required=True, metavar="COMMAND")
    commands.add_parser("list", parents=[common], help="every record, one line each")
    show = commands.add_parser("show", parents=[common], help="one record with its evidence")
    show.add_argument("key", help="the record's key, or the beginning of it")
    show.add_argument("--source", action="store_true", help="print the kernel's source as well")
    verify = commands.add_parser("verify", parents=[common], help="check every file and row")
    verify.add_argument("--repair", action="store_true", help="move what is damaged aside")
    remove = commands.add_parser("remove", parents=[common], help="forget records")
    remove.add_argument("keys", nargs="*", help="keys, or the beginnings of keys")
    remove.add_argument("--failed", action="store_true", help="all failed searches, to try again")
    gc = commands.add_parser("gc", parents=[common], help="remove what is expired or left over")
    gc.add_argument("--max-size", type=size, metavar="SIZE", help="keep at most, such as 2G")
    gc.add_argument("--max-age", type=days, metavar="DAYS", help="since a kernel's last use")


def size(text: str) -> int:
    """Bytes of "500M" or "2G"."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500M or 2G")
    return int(match.group(1)) * UNITS[match.group(2)]


def days(text: str) -> float:
    """Seconds of a number of days."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")
    return value * 86400


def run(args: argparse.Namespace, settings: Settings) -> Result:
    """Carry out one subcommand; the exit status, and what it found for ``--json``. May raise `CliError`."""
    commands: dict[str, Callable[[KernelCache, argparse.Namespace], Result]] = {
        "list": _list,
        "show": _show,
        "verify": _verify,
        "remove": _remove,
        "gc": _gc,
    }
    cache = _open(args, settings)
    try:
        return commands[args.cache_command](cache, args)
    finally:
        cache.close()


def _open(args: argparse.Namespace, settings: Settings) -> KernelCache:
    return _usable(KernelCache.open(args.cache_dir or settings.cache_dir))


def _usable(answer: T | CacheUnavailable) -> T:
    if isinstance(answer, CacheUnavailable):
        raise CliError(f"the kernel cache cannot be used: {answer}")
    return answer


def _entries(cache: KernelCache) -> Sequence[Entry]:
    return _usable(cache.list())


def key_of(entry: Entry) -> str:
    """The key's digest; for a damaged entry the last part of its name in the index."""
    return entry.name.rpartition("/")[2] if isinstance(entry, Corrupt) else entry.key.digest


def find(entries: Sequence[Entry], prefix: str) -> Entry:
    """The one entry whose key begins so. Raises `CliError` for none or several."""
    found = [entry for entry in entries if key_of(entry).startswith(prefix.lower())]
    kernels = [entry for entry in found if not isinstance(entry, NegativeRecord)] or found
    if not kernels:
        raise CliError(f"no record whose key begins with {prefix!r}; see `cuda-agent cache list`")
    if len({key_of(entry) for entry in kernels}) > 1:
        raise CliError(f"{len(kernels)} records have keys that begin with {prefix!r}")
    return kernels[0]


def describe(entry: Entry) -> dict[str, Any]:
    """An entry as JSON values, without source, samples and plan."""
    if isinstance(entry, Corrupt):
        return {"kind": "corrupt", "key": key_of(entry), "reason": str(entry)}
    facts: dict[str, Any] = {
        "key": entry.key.digest,
        "target": entry.key.target,
        "arch": entry.key.arch,
        "created": entry.created,
    }
    if isinstance(entry, NegativeRecord):
        return {**facts, "kind": "negative", "reason": entry.reason, "expires": entry.expires}
    return {
        **facts,
        "kind": "kernel",
        "label": entry.label,
        "language": entry.language,
        "origin": entry.origin,
        "toolchain": entry.toolchain,
        "verifier": entry.verifier,
        "speedup": entry.evidence.get("speedup"),
        "errors": entry.evidence.get("errors"),
    }


def _list(cache: KernelCache, args: argparse.Namespace) -> Result:
    entries = _entries(cache)
    described = [describe(entry) for entry in entries]
    rows = [_row(facts) for facts in described]
    header = ("key", "kind", "target", "kernel, or why there is none", "speed-up", "made")
    tables.console().print(tables.plain_table(header, rows, f"{cache.path}: {len(rows)} records"))
    return 0, {"folder": str(cache.path), "records": described}


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    made = facts.get("created")
    return (
        facts["key"][:KEY_SHOWN],
        facts["kind"],
        facts.get("target", "-"),
        facts.get("label") or facts.get("reason", "-"),
        tables.interval(tables.speedup_of(facts.get("speedup"))),
        "-" if made is None else f"{datetime.datetime.fromtimestamp(made):%Y-%m-%d %H:%M}",
    )


def _show(cache: KernelCache, args: argparse.Namespace) -> Result:
    entry = find(_entries(cache), args.key)
    facts = describe(entry)
    out = tables.console()
    rows = [(name, tables.short(value)) for name, value in facts.items()]
    if isinstance(entry, Record):
        facts |= {"task": entry.task, "plan": entry.plan, "evidence": dict(entry.evidence)}
        facts |= {"source": entry.source}
        rows += [(f"evidence.{name}", tables.short(v)) for name, v in entry.evidence.items()]
    out.print(tables.plain_table(("field", "value"), rows))
    if args.source and isinstance(entry, Record):
        out.print(entry.source, markup=False)
    return 0, facts


def _verify(cache: KernelCache, args: argparse.Namespace) -> Result:
    findings = _usable(cache.repair() if args.repair else cache.audit())
    rows = [(f.kind.value, f.name or f.path, f.reason) for f in findings]
    title = f"{cache.path}: {len(rows)} findings" if rows else f"{cache.path}: nothing is wrong"
    tables.console().print(tables.plain_table(("what", "where", "why"), rows, title))
    listed = [
        {"kind": f.kind.value, "name": f.name, "path": f.path, "reason": f.reason} for f in findings
    ]
    harmful = [f for f in findings if not f.harmless]
    status = 1 if harmful and not args.repair else 0
    return status, {"folder": str(cache.path), "findings": listed, "repaired": args.repair}


def _remove(cache: KernelCache, args: argparse.Namespace) -> Result:
    entries = _entries(cache)
    if not args.keys and not args.failed:
        raise CliError("name keys to remove, or --failed for all failed searches")
    keys = [key_of(find(entries, prefix)) for prefix in args.keys]
    if args.failed:
        kernels = {key_of(entry) for entry in entries if not isinstance(entry, NegativeRecord)}
        failed = {key_of(entry) for entry in entries if isinstance(entry, NegativeRecord)}
        keys += sorted(failed - kernels)
    removed = [key for key in keys if _usable(cache.remove(key))]
    tables.console().print(f"removed {len(removed)} records")
    return 0, {"folder": str(cache.path), "removed": removed}


def _gc(cache: KernelCache, args: argparse.Namespace) -> Result:
    report: GcReport = _usable(cache.gc(max_bytes=args.max_size, max_age_s=args.max_age))
    tables.console().print(
        f"removed {report.kernels} kernels, {report.rows} other rows and {report.files} files; "
        f"{report.bytes_freed / 1e6:.1f} MB freed, {report.bytes_left / 1e6:.1f} MB of kernels left"
    )
    return 0, {"folder": str(cache.path), **dataclasses.asdict(report)}
