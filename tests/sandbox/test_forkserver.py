"""What a worker may not inherit from the server that it is forked from."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from torch._inductor import codecache

from sandbox.workers.fork_server import keep_headers


def test_each_worker_keeps_precompiled_headers_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor keeps them where temporary files were when it was imported."""
    for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):
        monkeypatch.setattr(codecache, name, "/elsewhere")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    keep_headers()
    assert Path(codecache._HEADER_DIR).is_relative_to(tmp_path)
    assert Path(codecache._HEADER_LOCK_DIR).parent == Path(codecache._HEADER_DIR)
