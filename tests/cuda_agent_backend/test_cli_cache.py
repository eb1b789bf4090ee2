"""``cuda-agent cache`` on a real cache folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from cuda_agent_backend.cli import cache as cli_cache
from cuda_agent_backend.cli import command as cli
from kernel_cache import KernelCache, KernelKey, NegativeRecord, Record

BINARY = b"not really a shared object"


def key(text: str) -> KernelKey:
    return KernelKey.of(hashlib.sha256(text.encode()).hexdigest(), "cpu", "x86-64", {}, False)


def record(text: str) -> Record:
    evidence = {
        "verifier": "1",
        "toolchain": "g++ 12",
        "driver": None,
        "policy": "search",
        "samples": {"candidate": [1.0]},
        "errors": [],
        "speedup": {"low": 1.25, "median": 1.5, "high": 1.75},
    }
    digest = hashlib.sha256(BINARY).hexdigest()
    return Record(
        key(text), text, "c++", "sketch", "rows-8", "int f;", "{}", digest, evidence, 1.0e9
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "160")
    path = tmp_path / "kernels"
    cache = KernelCache.open(path)
    assert isinstance(cache, KernelCache)
    cache.put(record("one"), BINARY)
    cache.put(record("two"), BINARY)
    cache.put_negative(
        NegativeRecord(key("three"), "search", {"seconds": 5}, "at the limit", 1.0e9, 9.0e9)
    )
    cache.close()
    return path


def run(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    out = folder.parent / "found.json"
    out.unlink(missing_ok=True)
    status = cli.main(["cache", *words, "--cache-dir", str(folder), "--json", str(out)])
    return status, json.loads(out.read_text()) if out.exists() else {}


def test_list_shows_kernels_and_failed_searches(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = run(folder, "list")
    assert status == 0
    assert [entry["kind"] for entry in found["records"]] == ["kernel", "kernel", "negative"]
    shown = capsys.readouterr().out
    assert "1.50 [1.25, 1.75]" in shown
    assert key("one").digest[:12] in shown


def test_show_takes_the_beginning_of_a_key(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = run(folder, "show", key("one").digest[:12], "--source")
    assert status == 0
    assert found["key"] == key("one").digest
    assert found["evidence"]["toolchain"] == "g++ 12"
    assert "int f;" in capsys.readouterr().out


@pytest.mark.parametrize(("prefix", "said"), [("xyz", "no record"), ("", "records have keys")])
def test_a_key_that_names_none_or_several_is_refused(
    folder: Path, prefix: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = run(folder, "show", prefix)
    assert status == cli.USAGE
    assert said in capsys.readouterr().err


def test_verify_finds_damage_and_repairs_it(folder: Path) -> None:
    assert run(folder, "verify")[0] == 0
    blob = next(folder.rglob("*.bin"))
    blob.write_bytes(b"damaged")
    status, found = run(folder, "verify")
    assert status == 1
    assert {finding["kind"] for finding in found["findings"]} == {"damaged kernel"}
    assert run(folder, "verify", "--repair")[0] == 0
    assert run(folder, "verify")[0] == 0


def test_remove_forgets_what_is_named_and_nothing_else(folder: Path) -> None:
    status, found = run(folder, "remove", key("one").digest)
    assert (status, found["removed"]) == (0, [key("one").digest])
    _, left = run(folder, "list")
    assert key("two").digest in {entry["key"] for entry in left["records"]}
    assert key("one").digest not in {entry["key"] for entry in left["records"]}


def test_failed_searches_can_be_forgotten_together(folder: Path) -> None:
    assert run(folder, "remove", "--failed")[1]["removed"] == [key("three").digest]
    assert {entry["kind"] for entry in run(folder, "list")[1]["records"]} == {"kernel"}


def test_remove_without_a_key_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "remove")[0] == cli.USAGE
    assert "name keys" in capsys.readouterr().err


def test_gc_keeps_to_the_size_it_is_given(folder: Path) -> None:
    status, found = run(folder, "gc", "--max-size", "1K")
    assert status == 0
    assert found["bytes_left"] <= 1024


def test_a_folder_that_is_a_file_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert cli.main(["cache", "list", "--cache-dir", str(path)]) == cli.USAGE
    assert "the kernel cache cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("500", 500), ("2k", 2048), ("3M", 3 << 20), ("1GB", 1 << 30)]
)
def test_sizes_have_units(text: str, value: int) -> None:
    assert cli_cache.size(text) == value


@pytest.mark.parametrize("text", ["", "x", "1.5G", "-1", "2P"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(Exception, match="is not a size"):
        cli_cache.size(text)
