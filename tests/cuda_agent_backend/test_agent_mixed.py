"""The search and a model in one episode, in either order."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from test_tools import TASK, Scripted

from cuda_agent_backend.agent.loop import Budget, run_episode
from cuda_agent_backend.agent.policies import registry
from cuda_agent_backend.agent.policies.findings import differences, findings_of, nearest_first
from cuda_agent_backend.agent.policies.mixed import SearchFirst, SearchLast
from cuda_agent_backend.agent.policies.registry import make_policy
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.policies.spec import PolicySpec
from cuda_agent_backend.agent.protocol import Stopped, ToolCall, Turn
from cuda_agent_backend.agent.tools.toolbox import Toolbox

Step = Callable[[Any], Turn | Stopped]


class Scripted2:
    """A model that takes given steps, and remembers what it saw."""

    name = "model"

    def __init__(self, *steps: Step) -> None:
        self.steps, self.saw = list(steps), list[list[Any]]()

    def act(self, messages: Any, tools: Any) -> Turn | Stopped:
        self.saw.append(list(messages))
        return self.steps.pop(0)(messages) if self.steps else Stopped("cost", "no more steps")


def calls(name: str, **arguments: Any) -> Step:
    return lambda messages: Turn("", (ToolCall.of("call_1", name, **arguments),))


def asked(result: Any) -> list[str]:
    return [
        f"{c['id'].split('_')[0]} {c['function']['name']}"
        for m in result.trajectory
        for c in m.get("tool_calls", ())
    ]


def test_a_model_goes_on_from_the_searchs_best() -> None:
    model = Scripted2(calls("look"))
    policy = SearchFirst("search+model", SearchPolicy(), model)
    found = run_episode(policy, Toolbox(TASK, Scripted()), Budget(1e9))
    order = asked(found)
    assert order[-3:] == ["search inspect", "call look", "search submit"]
    told = [m["content"] for m in model.saw[0] if m["role"] == "assistant"][-1]
    best = max(findings_of(found.trajectory), key=lambda f: f.speed)
    assert best.name in told and json.dumps(best.schedule) in told
    assert found.best is not None, "what the search held back is judged in the end"


def test_a_model_that_wins_makes_the_searchs_best_needless() -> None:
    def submit(messages: Any) -> Turn:
        name = findings_of(messages)[-1].name
        return Turn("", (ToolCall.of("mine", "submit", candidate=name),))

    policy = SearchFirst("x", SearchPolicy(), Scripted2(submit))
    found = run_episode(policy, Toolbox(TASK, Scripted()), Budget(1e9))
    assert found.best is not None and asked(found).count("search submit") == 0


@pytest.mark.parametrize("profiles", [1, 2, 3, 4])
def test_when_the_time_is_up_the_best_is_submitted_whoever_was_at_work(profiles: int) -> None:
    policy = SearchFirst("x", SearchPolicy(), Scripted2(*[calls("look")] * 50))
    bench = Scripted()
    budget = Budget(profiles - 0.5)  # the clock counts what was timed
    found = run_episode(
        policy, Toolbox(TASK, bench), budget, clock=lambda: float(len(bench.worths))
    )
    assert found.best is not None and "judge" in bench.asked


def test_a_search_that_finds_nothing_leaves_the_model_the_task() -> None:
    class Broken(Scripted):
        def compile(self, candidate: Any) -> Any:
            from sandbox.failures import CompileFailed

            return CompileFailed("no compiler")

    model = Scripted2(calls("look"), lambda _: Turn("I give up."))
    found = run_episode(
        SearchFirst("x", SearchPolicy(), model), Toolbox(TASK, Broken()), Budget(1e9)
    )
    assert found.best is None and found.reason == "I give up." and len(model.saw) == 2


def test_the_search_tries_the_models_schedule_first_and_its_neighbours_next() -> None:
    chosen: list[Any] = []

    def sketch(messages: Any) -> Turn:
        chosen.append(json.loads(messages[-1]["content"])["schedules"][-1])
        return Turn("", (ToolCall.of("a", "sketch", schedule=chosen[0]),))

    def profile(messages: Any) -> Turn:
        name = json.loads(messages[-1]["content"])["candidate"]
        return Turn("", (ToolCall.of("b", "profile", candidate=name),))

    def submit(messages: Any) -> Turn:
        return Turn("", (ToolCall.of("c", "submit", candidate=findings_of(messages)[0].name),))

    model = Scripted2(calls("look"), sketch, profile, submit)
    policy = SearchLast("model+search", model, SearchPolicy())
    found = run_episode(policy, Toolbox(TASK, Scripted()), Budget(1e9))
    tried = [
        json.loads(c["function"]["arguments"])["schedule"]
        for m in found.trajectory
        for c in m.get("tool_calls", ())
        if c["id"].startswith("search_") and c["function"]["name"] == "sketch"
    ]
    assert tried[0] == chosen[0]
    far = [differences(one, chosen[0]) for one in tried]
    assert far == sorted(far) and len(far) > 1
    assert found.best is not None and asked(found)[-1] == "search submit"


@pytest.mark.parametrize(
    "end", [lambda _: Turn("done"), calls("submit", reason="no idea"), lambda _: Stopped("cost", "x")]
)  # fmt: skip
def test_a_model_that_gives_up_is_followed_by_the_search(end: Step) -> None:
    policy = SearchLast("x", Scripted2(calls("look"), end), SearchPolicy())
    found = run_episode(policy, Toolbox(TASK, Scripted()), Budget(1e9))
    assert found.best is not None


def by_last(tool: str) -> Step:
    """A call of a tool with what the last answer is about."""

    def step(messages: Any) -> Turn:
        answer = json.loads(next(m for m in reversed(messages) if m["role"] == "tool")["content"])
        if tool == "sketch":
            return Turn(
                "", (ToolCall.of(f"m{len(messages)}", tool, schedule=answer["schedules"][-1]),)
            )
        known = answer.get("candidate") or findings_of(messages)[-1].name
        return Turn("", (ToolCall.of(f"m{len(messages)}", tool, candidate=known),))

    return step


@pytest.mark.parametrize("obeys", [True, False])
def test_a_model_whose_time_is_up_has_its_best_sketch_judged_before_the_search(obeys: bool) -> None:
    bench = Scripted()
    last = by_last("submit") if obeys else calls("look")
    steps = (calls("look"), by_last("sketch"), by_last("profile"), last)
    policy = SearchLast("x", Scripted2(*steps), SearchPolicy())
    found = run_episode(
        policy, Toolbox(TASK, bench), Budget(0.5), clock=lambda: float(len(bench.worths))
    )
    assert found.best is not None and "judge" in bench.asked


@pytest.mark.parametrize("profiles", [1, 2, 3])
def test_when_the_time_of_the_search_after_a_model_is_up_the_best_is_submitted(
    profiles: int,
) -> None:
    bench = Scripted()
    steps = (calls("look"), by_last("sketch"), by_last("profile"))
    policy = SearchLast("x", Scripted2(*steps), SearchPolicy())
    found = run_episode(
        policy, Toolbox(TASK, bench), Budget(profiles - 0.5), clock=lambda: float(len(bench.worths))
    )
    assert found.best is not None and "judge" in bench.asked


@pytest.mark.parametrize("kind", [SearchFirst, SearchLast])
def test_after_the_time_is_up_what_a_noisy_machine_spoiled_is_judged_again(kind: Any) -> None:
    bench = Noisy(1)
    steps = (calls("look"), by_last("sketch"), by_last("profile"), by_last("submit"))
    parts = (
        (SearchPolicy(), Scripted2())
        if kind is SearchFirst
        else (Scripted2(*steps), SearchPolicy())
    )
    found = run_episode(
        kind("x", *parts), Toolbox(TASK, bench), Budget(0.5), clock=lambda: float(len(bench.worths))
    )
    assert found.best is not None and bench.asked.count("judge") == 2


class Noisy(Scripted):
    """The first judgements are spoiled; others, if they are to be refused, are refused."""

    def __init__(self, times: int, judged: str = "wins") -> None:
        super().__init__(judged=judged)
        self.times, self.names = times, list[str]()

    def judge(self, task: Any, candidate: Any) -> Any:
        self.names.append(candidate.digest)
        said, self.judged = self.judged, "noisy" if len(self.names) <= self.times else self.judged
        found = super().judge(task, candidate)
        self.judged = said
        return found


def test_a_models_sketch_that_is_judged_noisy_is_judged_again_itself() -> None:
    bench = Noisy(2)
    steps = (calls("look"), by_last("sketch"), by_last("profile"), by_last("submit"))
    policy = SearchLast("x", Scripted2(*steps), SearchPolicy(judgements=0))
    found = run_episode(policy, Toolbox(TASK, bench), Budget(1e9))
    assert found.stop == "submitted" and len(bench.names) == 3 and len(set(bench.names)) == 1


@pytest.mark.parametrize(
    ("first", "kind"), [(True, "infrastructure"), (False, "infrastructure"), (False, "cost")]
)
def test_a_model_that_cannot_go_on_is_why_a_fruitless_mixture_ended(first: bool, kind: Any) -> None:
    model, search = Scripted2(lambda _: Stopped(kind, "401")), SearchPolicy()
    policy = SearchFirst("x", search, model) if first else SearchLast("x", model, search)
    bench = Scripted(judged="too_slow")
    found = run_episode(policy, Toolbox(TASK, bench), Budget(1e9))
    assert "judge" in bench.asked and found.stop == kind
    assert found.reason.startswith("401; the search: nothing wins")


def test_a_models_own_source_is_judged_without_the_search() -> None:
    model = Scripted2(calls("submit", candidate="nobody"), lambda _: Turn("bye"))
    found = run_episode(
        SearchLast("x", model, SearchPolicy()), Toolbox(TASK, Scripted()), Budget(1e9)
    )
    assert asked(found)[0] == "call submit" and len(model.saw) == 2


def test_answers_without_schedules_stay_as_they_are() -> None:
    for content in ("{}", "x", '{"schedules": 3}'):
        message = {"role": "tool", "content": content, "tool_call_id": "1"}
        assert nearest_first(message, [{"a": 1}]) == message


def test_mixtures_are_named_by_their_parts() -> None:
    url = {"model": "m", "base_url": "http://h/v1"}
    first = make_policy(PolicySpec("search+openai", **url))
    last = make_policy(PolicySpec("openai+search", **url))
    assert isinstance(first, SearchFirst) and isinstance(last, SearchLast)
    assert (first.name, last.name) == ("search+openai:m", "openai+search:m")
    first.close()
    last.close()
    for name in ("openai+replay", "search+search", "search+nobody", "search+openai+search", "+"):
        assert "no policy is called" in registry.problem(PolicySpec(name, "m"))
