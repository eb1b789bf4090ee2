"""What tests of sketches share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def plain_layouts() -> Iterator[None]:
    """Rows as long as they are: Inductor may pad odd ones, and outputs have the layout that the task says."""
    from torch._inductor import config

    with config.patch(comprehensive_padding=False):
        yield


@pytest.fixture(autouse=True)
def no_bugs_of_the_generator(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test passes in which the code generator met a bug, which a model would only not notice."""
    yield
    bugs = sys.modules.get("cuda_agent_backend.codegen.bugs")
    found = bugs.found() if bugs else {}
    if bugs:
        bugs.forget()
    assert not found, list(found)


@pytest.fixture(autouse=True)
def own_seconds() -> None:
    """Each test has all the seconds that a process has for searches."""
    budget = sys.modules.get("cuda_agent_backend.search.process_budget")
    if budget is not None:
        budget.PROCESS.forget()


@pytest.fixture
def forced_kernels_end() -> Iterator[None]:
    """Nothing that a test forces is there for another one."""
    import torch

    from cuda_agent_backend.hook import forced

    torch._dynamo.reset()
    yield
    forced.forget()
    torch._dynamo.reset()
