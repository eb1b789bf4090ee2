"""What tests of sketches share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def plain_layouts() -> Iterator[None]:
    """Rows as long as they are: Inductor may pad odd ones, and outputs have the layout that the task says."""
    from torch._inductor import config

    with config.patch(comprehensive_padding=False):
        yield
