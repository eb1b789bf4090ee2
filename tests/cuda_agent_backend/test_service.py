"""The search process: what it promotes is kept whatever becomes of it, and it never takes its user down."""

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
import torch
from endpoint_kit import call, endpoint, said
from kit.processes import gone, text_in
from sketch_kit import sample

from cuda_agent_backend.acceptance import process as accept
from cuda_agent_backend.agent.policies.spec import PolicySpec
from cuda_agent_backend.agent.trajectories.events import Trajectory
from cuda_agent_backend.agent.trajectories.file import read
from cuda_agent_backend.graph.canonical import Canonical
from cuda_agent_backend.options import Options
from cuda_agent_backend.runtime import kernels
from cuda_agent_backend.runtime.child_process import Child
from cuda_agent_backend.runtime.machine import all_flags, key_of
from cuda_agent_backend.search import client as searching
from cuda_agent_backend.search import graph_measurement, service, side_by_side, task_searches
from cuda_agent_backend.search.client import SearchClient, SearchProcess
from cuda_agent_backend.search.episode import search_task
from cuda_agent_backend.search.outcome import NothingFound, SearchOutcome
from cuda_agent_backend.search.setup import Setup
from kernel_cache import CacheUnavailable, Miss, NegativeRecord, Record
from kernel_cache.values import Fault
from sandbox.task.task import Task
from sandbox.timing.turns import TurnsOver
from sandbox.workers import inductor_store


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[SearchProcess]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    made = SearchProcess("fake_service")
    yield made
    made.stop()


def tasks_of(*chains: tuple[Any, ...], size: int = 64) -> list[Task]:
    """One task for each chain of unary operators."""
    from test_canonical import call, placeholder
    from torch._subclasses.fake_tensor import FakeTensorMode

    from cuda_agent_backend.graph.canonical import canonical

    made = []
    for chain in chains:
        graph, fake = torch.fx.Graph(), FakeTensorMode()
        nodes = [placeholder(graph, fake, 8, size)]
        for target in chain:
            nodes.append(call(graph, target, nodes[-1]))
        form = canonical(nodes[1:], nodes[-1:], "cpu")
        assert isinstance(form, Canonical)
        made.append(form.task)
    return made


EXP, SIN = torch.ops.aten.exp.default, torch.ops.aten.sin.default


def start(process: SearchProcess, folder: Path) -> None:
    """Have it running before the clock does: it answers what it does not know at once."""
    request = {"do": "nothing", "setup": Setup.of(options(folder)).to_json()}
    assert process.ask(request, 120.0, lambda _: None)["event"] == "failed"


def late_once_noted(note: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a request's time be up as soon as a search that hangs has left its note: what comes before takes as long as
    it needs, and nobody waits for longer."""
    receive = Child.receive

    def received(child: Child, timeout_s: float) -> dict[str, Any] | None:
        until = time.monotonic() + timeout_s
        while True:
            left = until - time.monotonic()
            try:
                return receive(child, min(left, 0.1))
            except queue.Empty:
                if left <= 0.1 or (note.exists() and note.read_text()):
                    raise

    monkeypatch.setattr(Child, "receive", received)


def options(folder: Path) -> Options:
    return kit.options_in(folder, search="search")


def test_what_wins_is_promoted_and_what_does_not_is_remembered(
    tmp_path: Path, process: SearchProcess
) -> None:
    wins, loses = tasks_of((EXP,), (SIN,))
    cache = kit.cache_of(options(tmp_path))
    became = SearchClient(options(tmp_path), process).search([wins, loses], 240.0)
    assert became[wins.digest]["promoted"] and not became[loses.digest]["promoted"]
    assert isinstance(cache.get(key_of(wins)), Record)
    negative = cache.get(key_of(loses))
    assert isinstance(negative, NegativeRecord) and negative.reason == "at the limit"


def test_a_search_process_killed_in_the_middle_loses_nothing_promoted(
    tmp_path: Path, process: SearchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SEARCH", "hang after the first")
    monkeypatch.setenv("FAKE_NOTE", str(tmp_path / "note"))
    monkeypatch.setattr(searching, "WIND_DOWN_S", 0.0)
    (first,), (second,) = tasks_of((EXP,), size=4096), tasks_of((SIN, SIN))
    cache = kit.cache_of(options(tmp_path))
    start(process, tmp_path)
    late_once_noted(tmp_path / "note", monkeypatch)
    became = SearchClient(options(tmp_path), process).search([second, first], 240.0)
    assert became == {} and process.pid is None
    assert isinstance(cache.get(key_of(first)), Record)
    assert isinstance(cache.get(key_of(second)), Miss)
    assert gone([int(text_in(tmp_path / "note"))])


def test_a_search_process_that_is_killed_leaves_no_file_open() -> None:
    child = Child("fake_service")
    child.kill()
    assert child.receive(20.0) is None
    assert child.process.stdin and child.process.stdout
    assert child.process.stdin.closed and child.process.stdout.closed


def test_what_promises_most_is_searched_first_whatever_the_order(
    tmp_path: Path, process: SearchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SEARCH", "hang after the first")
    monkeypatch.setenv("FAKE_NOTE", str(tmp_path / "note"))
    monkeypatch.setattr(searching, "WIND_DOWN_S", 0.0)
    (small,), (large,) = tasks_of((EXP,)), tasks_of((SIN, SIN), size=4096)
    cache = kit.cache_of(options(tmp_path))
    promises = {small.digest: 2.0, large.digest: 1.0}
    start(process, tmp_path)
    late_once_noted(tmp_path / "note", monkeypatch)
    SearchClient(options(tmp_path), process).search([large, small], 240.0, None, promises)
    assert isinstance(cache.get(key_of(small)), Record)


def test_a_search_process_that_dies_is_a_reason_and_is_started_again(
    tmp_path: Path, process: SearchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = tasks_of((EXP,))
    monkeypatch.setenv("FAKE_SEARCH", "die")
    became = SearchClient(options(tmp_path), process).search([task], 240.0)
    reason = "the search process died (7)"
    assert became == {task.digest: {"reason": reason, "passing": True}}
    monkeypatch.setenv("FAKE_SEARCH", "")
    assert SearchClient(options(tmp_path), process).search([task], 240.0)[task.digest]["promoted"]


def test_the_search_process_ends_with_its_parent(tmp_path: Path, process: SearchProcess) -> None:
    (task,) = tasks_of((SIN,))
    SearchClient(options(tmp_path), process).search([task], 240.0)
    pid = process.pid
    assert pid and process._child and process._child.process.stdin
    process._child.process.stdin.close()  # all that it sees of the parent's end
    assert gone([pid])


def test_tasks_in_the_queue_are_worked_on_in_the_background(
    tmp_path: Path, process: SearchProcess
) -> None:
    wins, loses = tasks_of((EXP,), (SIN,))
    cache = kit.cache_of(options(tmp_path))
    SearchClient(options(tmp_path), process).enqueue([wins, loses])
    deadline = time.monotonic() + 500
    while cache.pending() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert isinstance(cache.get(key_of(wins)), Record)
    assert isinstance(cache.get(key_of(loses)), NegativeRecord)


def test_a_task_that_waits_for_another_policy_goes_on_waiting(
    tmp_path: Path, process: SearchProcess
) -> None:
    theirs, mine = tasks_of((EXP,), (SIN,))
    cache = kit.cache_of(options(tmp_path))
    cache.enqueue(key_of(theirs), theirs.to_json(), {"budget_s": 5.0, "policy": "openai:m"})
    assert SearchClient(options(tmp_path), process).search([mine], 240.0)
    assert process.tell({"do": "drain", "setup": Setup.of(options(tmp_path)).to_json()})
    assert SearchClient(options(tmp_path), process).search([mine], 240.0)  # after it looked
    assert cache.pending() and isinstance(cache.get(key_of(theirs)), Miss)


def test_a_kernel_that_is_there_already_is_not_searched_again(
    tmp_path: Path, process: SearchProcess
) -> None:
    (task,) = tasks_of((EXP,))
    cache = kit.cache_of(options(tmp_path))
    kit.promote(cache, task, kit.elementwise(task, "std::exp(a)"), tmp_path)
    generation = cache.generation()
    became = SearchClient(options(tmp_path), process).search([task], 240.0)
    assert "another process" in became[task.digest]["reason"]
    assert cache.generation() == generation


def test_whatever_a_child_prints_does_not_disturb_the_messages() -> None:
    child = Child("cuda_agent_backend.acceptance.process")
    child.send({"graph": "no task", "kernels": [], "cache_dir": "/nonexistent/x", "budget_s": 1})
    message = child.receive(500.0)
    child.stop()
    assert message and message["event"] == "failed" and "KeyError" in message["reason"]


def test_a_graph_is_measured_with_kernels_called_as_in_the_users_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called through Python a small kernel costs more than it saves, and no graph would keep it."""
    sent: list[dict[str, Any]] = []

    class Silent:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def send(self, message: dict[str, Any]) -> None:
            sent.append(message)

        def receive(self, _: float) -> dict[str, Any]:
            return {"event": "failed", "reason": "nothing"}

        def kill(self) -> None: ...

    monkeypatch.setattr(graph_measurement, "Child", Silent)
    setup = Setup(tmp_path / "kernels", tmp_path / "native", {})
    monkeypatch.setattr(inductor_store, "make_header", lambda: None)
    (task,) = tasks_of((EXP,))
    asked: dict[str, Any] = {"id": 1, "name": "n", "budget_s": 1.0, "kernels": [], "inputs": ""}
    asked["graph"] = task.to_json()
    asked |= {"eager_layouts": False, "static_inputs": None, "origins": []}
    service.Service(lambda _: None, search_task).measurer.measure(asked, setup)
    assert sent[0]["native_dir"] == str(tmp_path / "native")
    opened: list[tuple[Path, Path]] = []
    monkeypatch.setattr(kernels, "open_kernels", lambda *a: opened.append(a) or unavailable())
    accept.run({**sent[0], "flags": all_flags()}, lambda _: None)
    assert opened == [(tmp_path / "kernels", tmp_path / "native")]


class Started:
    """A child that only says how it was started."""

    every: list["Started"] = []  # noqa: RUF012

    def __init__(self, module: str, arguments: Any = (), own_group: bool = True) -> None:
        assert (module, own_group) == (graph_measurement.MEASURING, False)
        self.ahead, self.alive, self.killed = list(arguments) == [accept.AHEAD], True, False
        self.every.append(self)

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> service.Service:
    monkeypatch.setattr(graph_measurement, "Child", Started)
    monkeypatch.setattr(Started, "every", [])
    return service.Service(lambda _: None, search_task)


def searched(served: service.Service, target: str, folder: Path) -> None:
    (task,) = tasks_of((EXP,))
    asked = {"id": 1, "tasks": [replace(task, target=target).to_json()], "budget_s": 0.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_searches, "search_one", lambda *_, **__: {"reason": "a test"})
        served._search(asked, Setup(folder / "kernels", folder / "native", {}))


def test_what_measures_a_graph_is_started_with_the_search_for_a_device(
    served: service.Service, tmp_path: Path
) -> None:
    searched(served, "cuda", tmp_path)
    searched(served, "cuda", tmp_path)  # the first waits still
    (ahead,) = Started.every
    assert ahead.ahead
    assert served.measurer._child() is ahead  # type: ignore[comparison-overlap]
    assert served.measurer._child() is Started.every[1]  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_all_that_a_search_would_wait_for_can_be_had_before_there_is_one(
    target: str, served: service.Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[str] = []
    monkeypatch.setattr(served.judges, "prepare", lambda target, _: prepared.append(target))
    setup = Setup(tmp_path / "kernels", tmp_path / "native", all_flags()).to_json()
    told: list[Any] = []
    served.emit = told.append
    served._serve({"id": 4, "do": "prepare", "target": target, "setup": setup})
    assert prepared == [target] and len(Started.every) == (target == "cuda")
    assert told == [{"id": 4, "event": "result", "waited_s": 0.0}]


def test_a_search_goes_on_where_nothing_can_be_started_ahead(
    served: service.Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(graph_measurement, "Child", refused)
    searched(served, "cuda", tmp_path)
    assert served.measurer._ahead is None


def test_on_cpu_nothing_is_started_ahead(served: service.Service, tmp_path: Path) -> None:
    searched(served, "cpu", tmp_path)
    assert Started.every == []


def test_one_that_died_meanwhile_is_replaced_and_one_that_waits_ends_with_the_service(
    served: service.Service,
) -> None:
    served.measurer.start_ahead()
    Started.every[0].alive = False
    assert served.measurer._child() is Started.every[1]  # type: ignore[comparison-overlap]
    served.measurer.start_ahead()
    served.measurer.start_ahead()
    assert len(Started.every) == 3
    served.close()
    assert Started.every[2].killed
    served.close()


def test_a_process_started_ahead_answers_and_ends_when_nobody_asks() -> None:
    child = Child("cuda_agent_backend.acceptance.process", [accept.AHEAD])
    idle = Child("cuda_agent_backend.acceptance.process", [accept.AHEAD])
    child.send({"graph": "no task", "kernels": [], "cache_dir": "/nonexistent/x", "budget_s": 1})
    message = child.receive(500.0)
    child.stop()
    assert message and message["event"] == "failed" and "KeyError" in message["reason"]
    assert idle.process.stdin is not None
    idle.process.stdin.close()
    assert idle.receive(500.0) is None
    assert idle.process.wait(60.0) == 0


@pytest.mark.parametrize("do", ["search", "unheard of"])
def test_after_each_request_the_judges_give_the_devices_memory_back(
    do: str, tmp_path: Path
) -> None:
    class Rested:
        unpaid_s, rests = 0.0, 0

        def take_notes(self) -> dict[str, Any]:
            return {}

        def rest(self) -> None:
            self.rests += 1
            raise RuntimeError("a device in trouble")

    told: list[Any] = []
    served = service.Service(told.append, search_task)
    served.judges = rested = Rested()  # type: ignore[assignment]
    setup = {"cache_dir": str(tmp_path / "kernels"), "native_dir": str(tmp_path)}
    setup["flags"] = all_flags()
    served._serve({"id": 3, "do": do, "setup": setup, "tasks": [], "budget_s": 1.0})
    assert rested.rests == 1 and told[-1]["id"] == 3
    assert told[-1]["event"] == ("result" if do == "search" else "failed")


def test_a_search_that_is_cut_within_a_judgement_says_what_it_held(tmp_path: Path) -> None:
    class Noting:
        unpaid_s, notes = 0.0, [{"baselines": {"leases": 9.0}}]

        def start(self, *_: Any) -> None:
            """Its workers are of no use here."""

        def is_over(self) -> bool:
            return False

        def take_notes(self) -> dict[str, Any]:
            return self.notes.pop() if self.notes else {}

        def rest(self) -> None:
            """There is nothing to give back."""

    judges = Noting()

    def search(*_: Any) -> SearchOutcome:
        assert judges.notes == [], "what came before is not this search's"
        judges.notes.append({"race": {"leases": 1.0}})
        raise TurnsOver("nobody waits for it any more")

    told: list[Any] = []
    served = service.Service(told.append, search)
    served.judges = judges  # type: ignore[assignment]
    setup = {"cache_dir": str(tmp_path / "kernels"), "native_dir": str(tmp_path)}
    request = {"id": 3, "do": "search", "setup": {**setup, "flags": all_flags()}, "budget_s": 60.0}
    served._serve({**request, "tasks": [task.to_json() for task in tasks_of((EXP,))]})
    answer = told[-1]
    assert (answer["event"], answer["reason"]) == ("failed", "left before it was done")
    assert answer["memory"] == {"race": {"leases": 1.0}}


def test_what_no_sketch_covers_needs_no_judge(tmp_path: Path) -> None:
    class NoJudge:
        unpaid_s = 0.0

        def start(self, *_: Any) -> None:
            """Its workers may start; that the task is not given to it is what counts."""

        def get(self, *_: Any) -> Any:
            raise AssertionError("a judge was asked for")

    double = torch.randn(4, 4, dtype=torch.float64)
    task = sample(lambda a, b: a @ b, double, double, target="cuda").task
    setup = Setup(tmp_path / "kernels", tmp_path / "native", {})
    found = search_task(task, NoJudge(), setup, 9.0, None, lambda _: None)
    assert isinstance(found, NothingFound) and found.exhausted and found.keep
    assert found.reason.startswith("no sketch covers it: ")
    asks_a_model = replace(setup, policy=PolicySpec("replay"))
    with pytest.raises(AssertionError, match="a judge was asked for"):
        search_task(task, NoJudge(), asks_a_model, 9.0, None, lambda _: None)


def unavailable() -> CacheUnavailable:
    return CacheUnavailable(Fault.NO_ACCESS, "not there", "none")


@pytest.mark.parametrize(
    ("policy", "at_once"), [("openai", 3), ("search+openai", 3), ("replay", 1)]
)
def test_only_searches_that_wait_for_a_model_go_side_by_side(
    tmp_path: Path, policy: str, at_once: int
) -> None:
    tasks = tasks_of((EXP,), (SIN,), (SIN, EXP))
    running, most, together = set(), [], threading.Barrier(at_once)

    def search(task: Task, *_: Any) -> SearchOutcome:
        running.add(task.digest)
        together.wait(60.0)
        most.append(len(running))
        together.wait(60.0)
        running.remove(task.digest)
        if len(task.nodes) > 1:
            raise RuntimeError("a bug of the policy")
        return NothingFound("at the limit", exhausted=True)

    told: list[Any] = []
    spec = PolicySpec(policy, model="m")
    setup = Setup(tmp_path / "kernels", tmp_path / "native", {}, policy=spec)
    request = {"id": 1, "budget_s": 60.0, "tasks": [task.to_json() for task in tasks]}
    found = service.Service(told.append, search)._search(request, setup)
    assert most == [at_once] * 3
    reasons = {task.digest: found["tasks"][task.digest]["reason"] for task in tasks}
    assert list(reasons.values()).count("at the limit") == 2
    assert "a bug of the policy" in reasons[tasks[2].digest]
    assert {m["of"] for m in told} == {3} and all(0 <= m["done"] <= 3 for m in told)


@pytest.mark.parametrize("policy", ["search", "openai"])
def test_the_rest_of_what_was_searched_in_vain_is_searched_after_all_others(
    tmp_path: Path, policy: str
) -> None:
    chains = [EXP, SIN], [SIN], [EXP], [EXP, EXP], [SIN, SIN]
    lost, found, rest, other, spared = tasks_of(*chains)
    searched: list[Task] = []

    def search(task: Task, *_: Any) -> SearchOutcome:
        searched.append(task)
        return NothingFound("the worker died", keep=task != found)

    setup = Setup(tmp_path / "k", tmp_path / "n", {}, policy=PolicySpec(policy, model="m"))
    rests = {lost.digest: rest.to_json(), found.digest: spared.to_json()}
    tasks = [task.to_json() for task in (lost, found, other)]
    request = {"id": 1, "budget_s": 60.0, "tasks": tasks, "rests": rests}
    promises = {rest.digest: 9.0, other.digest: 1.0, lost.digest: 2.0, found.digest: 3.0}
    made = service.Service(lambda _: None, search)
    became = made._search({**request, "promises": promises}, setup)["tasks"]
    assert searched[-1].digest == rest.digest
    assert set(became) == {task.digest for task in (lost, found, other, rest)}
    again = made._search({**request, "budget_s": 1.0}, setup)["tasks"]
    assert again[rest.digest]["begun"] is False


def test_episodes_with_one_judge_and_one_deadline_end_each_by_itself(
    tmp_path: Path, native_dir: Path
) -> None:
    tasks = tasks_of((EXP,), (SIN,), (SIN, EXP))
    with endpoint(said("", [call("submit", {"reason": "none can win"})])) as server:
        spec = PolicySpec("openai", "m", server.url)
        setup = Setup(tmp_path / "kernels", native_dir, all_flags(), policy=spec)
        request = {"id": 1, "budget_s": 600.0, "tasks": [task.to_json() for task in tasks]}
        made = service.Service(lambda _: None, search_task)
        try:
            found = made._search(request, setup)["tasks"]
        finally:
            made.judges.close()
    assert [found[task.digest]["reason"] for task in tasks] == ["none can win"] * 3
    written = [read(path) for path in (tmp_path / "kernels-trajectories").glob("*.jsonl")]
    assert all(isinstance(one, Trajectory) and one.finished for one in written)
    assert {one.header.task_digest for one in written} == {task.digest for task in tasks}


def test_side_by_side_begins_all_in_order_and_no_more_than_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(side_by_side, "AT_ONCE", 2)
    tasks = tasks_of(*([SIN] * n for n in range(1, 7)))
    lock, begun, running = threading.Lock(), [], 0

    def work(task: Task) -> None:
        nonlocal running
        with lock:
            begun.append(len(task.nodes))
            running += 1
            assert running <= 2
        time.sleep(0.01)
        with lock:
            running -= 1

    side_by_side.side_by_side(tasks, work)
    assert sorted(begun) == [1, 2, 3, 4, 5, 6] and running == 0
    with pytest.raises(ZeroDivisionError):
        side_by_side.side_by_side(tasks, lambda task: 1 // (len(task.nodes) - 3))
    assert all(abs(place + 1 - number) <= 1 for place, number in enumerate(begun))
