"""What goes wrong on our side stays there: a user's compilation and calls go on, and what may pass is not final."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
import torch

from cuda_agent_backend import settings
from cuda_agent_backend.backend import cuda_agent
from cuda_agent_backend.hook import kernel_pass
from cuda_agent_backend.hook.background import HotSwap
from cuda_agent_backend.hook.kernel_pass import KernelPass
from cuda_agent_backend.runtime import kernels, machine
from cuda_agent_backend.runtime.kernels import Kernels
from cuda_agent_backend.search import client, durations
from cuda_agent_backend.search.client import SearchProcess
from cuda_agent_backend.search.durations import Durations
from kernel_cache import CacheUnavailable
from kernel_cache.index import Index
from kernel_cache.values import Fault
from sandbox.compile.toolchain import Missing


def raising(error: Exception) -> Callable[..., Any]:
    """A function that fails, whatever it is given."""

    def fails(*_: object) -> Any:
        raise error

    return fails


def pass_of_a_right_graph(folder: Path) -> KernelPass:
    """The pass of a compilation whose result is eager's."""
    backend = kit.backend_for(kit.options_in(folder))
    x = torch.randn(64, 512)
    with torch.no_grad():
        found = torch.compile(lambda x: torch.exp(x), backend=backend)(x)
    torch.testing.assert_close(found, torch.exp(x))
    (hook,) = backend.passes
    return hook


def test_a_graph_compiles_where_what_names_its_compilation_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernel_pass, "toolchain_of", raising(OSError(errno.EROFS, "read-only")))
    assert pass_of_a_right_graph(tmp_path).uuid() is None
    assert "torch keeps nothing of a compilation" in caplog.text


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.ENOSPC, "full"), True),
        (RuntimeError("can't start new thread"), True),
        (ZeroDivisionError("a bug"), False),
    ],
)
def test_torch_keeps_no_code_of_a_graph_that_was_left_for_what_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, passes: bool
) -> None:
    monkeypatch.setattr(KernelPass, "_walk", raising(error))
    hook = pass_of_a_right_graph(tmp_path)
    assert (hook.kernels.fingerprint() != hook._named) is passes


@pytest.mark.parametrize("error", [BlockingIOError(errno.EAGAIN, "no"), RuntimeError("no thread")])
def test_a_search_process_that_cannot_be_started_is_no_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(client, "Child", raising(error))
    process = SearchProcess("fake_service")
    assert process.ask({"do": "search"}, 5.0, lambda _: None)["event"] == "failed"
    assert process.tell({"do": "enqueue"}) is False


def test_what_cannot_be_noted_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Durations(tmp_path / "kernels")
    noted.spend("graph", 3.0)
    with monkeypatch.context() as patch:
        patch.setattr(durations, "write_json", raising(OSError(errno.ENOSPC, "full")))
        noted.spend("graph", 4.0)
    assert noted.spent_s("graph") == 3.0
    monkeypatch.setattr(durations, "LOCK_S", 0.1)
    with noted.path.with_suffix(".lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        noted.spend("graph", 5.0)
        assert noted.spent_s("graph") == 3.0
    noted.spend("graph", 6.0)
    assert noted.spent_s("graph") == 9.0


def test_a_call_goes_on_where_it_cannot_be_seen_whether_there_are_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HotSwap, "_measured", raising(RuntimeError("can't start new thread")))
    spare: Any = object()
    swap = HotSwap(lambda x: x + 1, spare, spare, spare, spare)
    swap._next = 0.0
    assert swap(2) == 3
    assert swap._spare is spare, "it is looked at again"


def test_an_interrupt_as_a_transaction_begins_leaves_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.open(tmp_path, 5.0)
    begin = index._database.transact

    @contextmanager
    def interrupted() -> Iterator[None]:
        index._database._sql("BEGIN IMMEDIATE")
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(index._database, "transact", interrupted)
    with pytest.raises(KeyboardInterrupt), index.transaction():
        pass
    monkeypatch.setattr(index._database, "transact", begin)
    other = Index.open(tmp_path, 5.0)
    with other.transaction():
        other.set("name", 1)
    assert index.get("name") == 1


@pytest.mark.parametrize("torchs_folder_is_read", [True, False])
def test_code_is_outdated_where_the_kernel_cache_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torchs_folder_is_read: bool
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    cache = kit.cache_of(kit.options_in(tmp_path))
    made, other = Kernels(cache), Kernels(cache)
    monkeypatch.setattr(
        type(cache), "outdate", lambda self: CacheUnavailable(Fault.NO_ACCESS, "full", "make room")
    )
    before = made.fingerprint()
    assert before == made.fingerprint() == other.fingerprint()
    made.outdate()
    after = made.fingerprint()
    assert before != after == other.fingerprint()
    made.outdate()
    assert after != made.fingerprint() == other.fingerprint()
    if not torchs_folder_is_read:
        note = tmp_path / "inductor" / kernels.OUTDATED
        note.unlink()
        note.mkdir()
        assert made.fingerprint() != made.fingerprint(), "nothing is found again"


def test_what_a_machine_is_called_is_not_kept_where_it_could_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = machine.arch_of("cpu")
    machine.arch_of.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(machine.Path, "read_text", raising(OSError(errno.EMFILE, "too many")))
        with pytest.raises(OSError, match="too many"):
            machine.arch_of("cpu")
    assert machine.arch_of("cpu") == known


def test_which_libraries_there_are_is_not_kept_where_nothing_could_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine.libraries.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "cuda", "13.0")
        patch.setattr(machine.metadata, "distributions", list)
        with pytest.raises(OSError, match="no installed package is to be seen"):
            machine.libraries()
    assert machine.libraries() == f"torch {torch.__version__}" or torch.version.cuda


@pytest.mark.parametrize(
    ("log", "again"), [("ld: No space left on device", True), ("op.cpp: error: no type", False)]
)
def test_the_operator_library_is_built_later_where_it_could_not_be_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, again: bool
) -> None:
    found = Missing("the operator library does not compile", "see the log", log)
    monkeypatch.setattr(kernels.launcher, "ensure_native", lambda folder: found)
    made = Kernels(kit.cache_of(kit.options_in(tmp_path)), tmp_path / "native")
    made._make_native()
    assert (made.native_dir == tmp_path / "native") is again


def test_without_a_home_a_model_runs_on_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(settings.Path, "home", raising(RuntimeError("no home")))
    for name in ("CUDA_AGENT_CACHE_DIR", "CUDA_AGENT_NATIVE_DIR"):
        monkeypatch.delenv(name, raising=False)
    x = torch.randn(8)
    with torch.no_grad():
        found = torch.compile(lambda x: x.exp() + 1, backend=cuda_agent)(x)
    torch.testing.assert_close(found, x.exp() + 1)
