"""Many processes on one folder, and processes that are killed."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from cache_examples import binary, finish, key, opened, record, start

from kernel_cache import Finding, KernelCache, Miss, Record
from kernel_cache.audit import Kind


def harmful(cache: KernelCache) -> list[Finding]:
    findings = cache.audit()
    assert isinstance(findings, list), findings
    return [finding for finding in findings if not finding.harmless]


def kill_while_it_puts(folder: Path, after_s: float) -> tuple[set[int], set[int]]:
    """Kill a child that puts for ever; the numbers it tried and those it was told are kept."""
    child = start("put_forever", folder)
    assert child.stdout and child.stdout.readline() == "try 0\n"
    time.sleep(after_s)
    child.kill()
    output, errors = child.communicate()
    assert child.returncode == -9, errors
    # The last line may have been cut by the kill.
    lines = [line.split() for line in output.splitlines(keepends=True) if line.endswith("\n")]
    tried = {0} | {int(number) for word, number in lines if word == "try"}
    return tried, {int(number) for word, number in lines if word == "put"}


def killed_writers(folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(kills):
        cache = opened(folder)
        for kernel in cache.list():  # type: ignore[union-attr]
            cache.remove(kernel.key)  # type: ignore[union-attr]
        tried, kept = kill_while_it_puts(folder, chance.uniform(0.0, 0.15))
        assert harmful(cache) == []
        for number in kept:
            assert cache.get(key(number)) == record(number)
            assert cache.read_binary(record(number)) == binary(number)
        for number in tried - kept:
            assert cache.get(key(number)) in (record(number), Miss())


def churned(folder: Path, processes: int, rounds: int) -> None:
    changes = finish(*(start("churn", folder, seed, rounds) for seed in range(processes)))
    cache = opened(folder)
    assert cache.generation() == sum(int(count) for count in changes)
    assert harmful(cache) == []
    assert [finding.kind for finding in cache.audit()] == []  # type: ignore[union-attr]


def test_a_writer_killed_at_any_moment_loses_nothing_promoted(tmp_path: Path) -> None:
    killed_writers(tmp_path, kills=4, seed=0)


@pytest.mark.stress
def test_many_writers_killed_at_any_moment_lose_nothing_promoted(tmp_path: Path) -> None:
    killed_writers(tmp_path, kills=60, seed=1)


def test_processes_that_put_remove_and_read_the_same_keys_never_see_damage(
    tmp_path: Path,
) -> None:
    churned(tmp_path, processes=2, rounds=60)


@pytest.mark.stress
def test_many_processes_that_hammer_the_same_keys_never_see_damage(tmp_path: Path) -> None:
    churned(tmp_path, processes=6, rounds=1500)


def test_processes_that_open_a_new_folder_at_once_agree_on_its_identity(tmp_path: Path) -> None:
    outputs = finish(*(start("open_and_count", tmp_path / "new") for _ in range(4)))
    assert len(set(outputs)) == 1 and outputs[0].strip() == opened(tmp_path / "new").identity()


def test_a_writer_killed_between_its_files_and_the_index_leaves_only_orphans(
    cache: KernelCache,
) -> None:
    blobs = cache._layout.blobs
    blobs.place(blobs.stage(b"never indexed"))
    (finding,) = cache.audit()  # type: ignore[misc]
    assert finding.kind is Kind.ORPHAN_FILE and finding.harmless
    assert cache.gc().files == 1 and cache.audit() == []  # type: ignore[union-attr]


def test_a_reader_that_is_overtaken_by_a_replacement_reads_the_new_record(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = b"newer"
    cache.put(record(), binary())
    files = type(cache._layout.records)
    real = files.read
    replaced: list[bool] = []

    def overtaken(self: object, digest: str) -> object:
        if not replaced:
            replaced.append(True)
            opened(cache.path).put(record(code=code), code)
        return real(self, digest)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "read", overtaken)
    found = cache.get(key())
    assert isinstance(found, Record) and cache.read_binary(found) == code


def test_a_reader_that_is_overtaken_by_a_removal_finds_a_miss(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(record(), binary())
    files = type(cache._layout.records)
    real = files.read

    def overtaken(self: object, digest: str) -> object:
        opened(cache.path).remove(key())
        return real(self, digest)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "read", overtaken)
    assert cache.get(key()) == Miss()
