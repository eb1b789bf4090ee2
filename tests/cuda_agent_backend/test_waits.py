"""What is waited for other processes is nobody's to pay for, in whichever process that is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
import torch
from sketch_kit import sample
from test_service import EXP, options, process, tasks_of

from cuda_agent_backend.acceptance.waits import EVENT, Waits, telling
from cuda_agent_backend.runtime.machine import all_flags, key_of
from cuda_agent_backend.search import deadline, graph_measurement
from cuda_agent_backend.search.client import SearchClient, SearchProcess
from cuda_agent_backend.search.current import Current
from cuda_agent_backend.search.durations import ACCEPTANCE, Durations
from cuda_agent_backend.search.graph_measurement import GraphMeasurer
from cuda_agent_backend.search.service import Service
from cuda_agent_backend.search.setup import Setup
from sandbox.memory.notes import noted
from sandbox.timing.device_lock import DeviceLock

_ = process  # a fixture
LATE = "the time was up before the whole graph was measured"


@contextmanager
def held(path: Path, longer: Callable[[], bool]) -> Iterator[None]:
    """Somebody else has the device for as long as it says."""
    mine = threading.Event()

    def hold() -> None:
        with DeviceLock(path).turn():
            mine.set()
            while longer():
                time.sleep(0.05)

    thread = threading.Thread(target=hold)
    thread.start()
    mine.wait(60.0)
    try:
        yield
    finally:
        thread.join()


def measured(
    monkeypatch: pytest.MonkeyPatch, folder: Path, waits: bool, works_s: float
) -> tuple[dict[str, Any], float]:
    """The answer of a measurement that has five seconds from when its process is up, and what nobody pays for.

    waits: others have the device until after that. All goes through the request's end, too (see `Current`).
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("WORKS_S", str(works_s))
    monkeypatch.setenv("READY", str(folder / "ready"))
    monkeypatch.setattr(graph_measurement, "MEASURING", "waiting_child")
    current, lock = Current(), folder / "lock"
    measurer = GraphMeasurer(lambda _: None, current.is_over)
    measurer.start_ahead()
    while not (folder / "ready").exists():
        time.sleep(0.05)
    until = time.monotonic() + 5.0
    task = sample(torch.exp, torch.ones(8)).task
    request: dict[str, Any] = {"id": 1, "name": "graph", "inputs": "", "until": until}
    request |= {"graph": task.to_json(), "kernels": [key_of(task).to_fields()]}
    request |= {"hard_until": until}
    request |= {"eager_layouts": False, "static_inputs": None, "origins": []}
    request |= {"budget_s": 5.0}
    setup = Setup(folder / "kernels", folder / "native", {}, device_lock=lock)
    later = until + 1.0
    with (
        held(lock, lambda: waits and time.monotonic() < later),
        current.of(request, lambda: measurer.unpaid_s),
    ):
        return measurer.measure(request, setup), measurer.unpaid_s


def test_a_graph_is_measured_however_long_others_have_the_device_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, unpaid_s = measured(monkeypatch, tmp_path, waits=True, works_s=0.0)
    assert answer["event"] == "result" and unpaid_s > 1.0
    (took_s,) = Durations(tmp_path / "kernels").took(ACCEPTANCE)
    assert 0 < took_s < 5.0, "others' turns are no part of what it takes"


def test_what_measuring_takes_of_its_own_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, unpaid_s = measured(monkeypatch, tmp_path, waits=False, works_s=600.0)
    assert answer == {"event": "failed", "reason": LATE} and unpaid_s < 1.0


def test_a_wait_counts_while_it_goes_on_on_either_side() -> None:
    heard: list[Any] = []
    watch, waits = telling(heard.append), Waits()
    with watch.running():
        assert waits.hear(heard[-1])
        time.sleep(0.02)
        assert waits.seconds >= 0.02 and watch.seconds >= 0.02
    assert waits.hear(heard[-1]) and waits.seconds == pytest.approx(watch.seconds)
    before = waits.seconds
    time.sleep(0.01)
    assert waits.seconds == before and [message["event"] for message in heard] == [EVENT] * 2
    assert not waits.hear({"event": "progress", "text": "x"})


class Waiting:
    """Judges that have waited for others in each request."""

    def __init__(self) -> None:
        self.unpaid_s = 5.0

    def rest(self) -> None:
        self.unpaid_s += 7.0


def test_an_answer_says_what_was_waited_for_others_in_its_request(tmp_path: Path) -> None:
    told: list[Any] = []

    class Judges(Waiting):
        def take_notes(self) -> dict[str, Any]:
            return noted("race", 5, 6, None)

        def start(self, *_: Any) -> None: ...

    def search(task: Any, judges: Any, *_: Any) -> Any:
        served.judges.unpaid_s += 2.5  # type: ignore[misc]
        raise RuntimeError("nothing more is tested")

    served = Service(told.append, search)
    served.judges = Judges()  # type: ignore[assignment]
    served.judges.is_over = lambda: False
    setup = Setup(tmp_path / "kernels", tmp_path, all_flags()).to_json()
    (task,) = tasks_of((EXP,))
    request = {"do": "search", "setup": setup, "tasks": [task.to_json()], "budget_s": 9.0}
    for number in range(2):
        served._serve({"id": number, **request})
    answers = [message for message in told if message["event"] == "result"]
    assert [answer["waited_s"] for answer in answers] == [2.5, 2.5]
    assert answers[0]["memory"] == noted("race", 5, 6, None)


def test_a_client_adds_up_what_answers_say(
    tmp_path: Path, process: SearchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = SearchClient(options(tmp_path), process)
    note = noted("race", 5, 6, None)
    result = {"event": "result", "tasks": {}, "waited_s": 3.0, "memory": note}
    answers = iter([result, {"event": "failed"}])
    monkeypatch.setattr(process, "ask", lambda *_: {"reason": "a test", **next(answers)})
    assert client.search([], 1.0) == client.search([], 1.0) == {}
    assert client.waited_s == 3.0 and client.memory == note


class Clock:
    """One that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Searcher:
    """Others have the device for most of the search; what is left for the graph is noted."""

    waited_s = 0.0

    def __init__(self, clock: Clock, cache: Any, folder: Path) -> None:
        self.clock, self.cache, self.folder = clock, cache, folder
        self.given: list[float] = []

    def search(self, tasks: Any, budget_s: float, *_: Any) -> dict[str, Any]:
        self.given.append(budget_s)
        self.clock.now += 500.0
        self.waited_s += 490.0
        for task in tasks:
            kit.promote(self.cache, task, kit.elementwise(task, "std::exp(a)"), self.folder)
        return {task.digest: {"promoted": True} for task in tasks}

    def accept(self, whole: Any, budget_s: float) -> str:
        self.given.append(budget_s)
        return "a test"


def test_after_a_search_that_waited_the_graph_is_measured_in_what_is_left_of_its_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    own = deadline.Deadline

    def made(seconds: float, unpaid: Any) -> deadline.Deadline:
        return own(seconds, clock, lambda _: False, unpaid)

    monkeypatch.setattr("cuda_agent_backend.hook.kernel_pass.Deadline", made)
    given = kit.options_in(tmp_path, search="search", acceptance="measure", budget_s=60.0)
    searcher = Searcher(clock, kit.cache_of(given), tmp_path)
    torch._dynamo.reset()
    torch.compile(torch.exp, backend=kit.backend_for(given, searcher=searcher))(torch.randn(4096))
    search_s, accept_s = searcher.given
    assert 0 < search_s < 60.0 and accept_s == pytest.approx(50.0)
