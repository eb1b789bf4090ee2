"""The backend is registered as often as threads ask for it, and nobody else under its name."""

import logging
import threading
from typing import Any

import pytest
from torch._dynamo.backends import registry

from cuda_agent_backend import log
from cuda_agent_backend.backend import cuda_agent


def test_the_backend_may_be_registered_again_under_its_name() -> None:
    found = registry.lookup_backend("cuda_agent")
    assert registry.register_backend(cuda_agent, name="cuda_agent") is found is cuda_agent
    assert "cuda_agent" in registry._COMPILER_FNS and "cuda_agent" in registry.list_backends()


@pytest.mark.parametrize("name", ["cuda_agent", "inductor"])
def test_no_other_compiler_takes_a_name_that_is_taken(name: str) -> None:
    def other(gm: Any, inputs: Any) -> Any:
        return gm

    registry.lookup_backend(name)
    with pytest.raises(AssertionError, match=f"duplicate name: {name}"):
        registry.register_backend(other, name=name)


def test_threads_that_meet_at_one_fault_say_it_once(caplog: pytest.LogCaptureFixture) -> None:
    log.forget()
    meet = threading.Barrier(8)

    def say() -> None:
        meet.wait()
        for number in range(50):
            log.once("hook", f"fault {number}")

    started = [threading.Thread(target=say) for _ in range(8)]
    with caplog.at_level(logging.WARNING, log.ROOT):
        for one in started:
            one.start()
        for one in started:
            one.join()
    log.forget()
    said = [record.getMessage() for record in caplog.records if record.name.startswith(log.ROOT)]
    assert sorted(said) == sorted(f"fault {number}" for number in range(50))
