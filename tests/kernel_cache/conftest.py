from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cache_examples import opened

from kernel_cache import KernelCache


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[KernelCache]:
    made = opened(tmp_path / "cache")
    yield made
    made.close()
