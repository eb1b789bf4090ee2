"""The openai policy against an endpoint that does everything wrong that servers do."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import episode_kit as kit
import pytest
from endpoint_kit import Endpoint, Reply, call, endpoint, said

from cuda_agent_backend.agent.policies.endpoint import EndpointPolicy
from cuda_agent_backend.agent.policies.endpoint_faults import MAX_DELAY_S, delay, retry_after
from cuda_agent_backend.agent.policies.endpoint_requests import size
from cuda_agent_backend.agent.policies.spec import Limits, PolicySpec, Sampling
from cuda_agent_backend.agent.protocol import Stopped, ToolCall, Turn, Usage
from cuda_agent_backend.agent.resume import begin
from cuda_agent_backend.agent.trajectories.events import Acted, Said
from cuda_agent_backend.agent.trajectories.file import Recorder
from cuda_agent_backend.agent.trajectories.store import new_path

KEY = "sk-very-secret-0123456789"
ASK: list[dict[str, Any]] = [{"role": "user", "content": "Write a kernel."}]
LIMITS = Limits(timeout_s=20.0, retries=3)


def policy(server: Endpoint, limits: Limits = LIMITS, slept: list[float] | None = None) -> Any:
    sleep = [].append if slept is None else slept.append
    spec = PolicySpec("openai", "m", server.url, Sampling(temperature=0.5), limits)
    return EndpointPolicy(spec, KEY, sleep)


def asked(
    *replies: Any, limits: Limits = LIMITS, messages: Sequence[Any] = ASK
) -> tuple[Turn | Stopped, Endpoint]:
    with endpoint(*replies) as server:
        made = policy(server, limits)
        found = made.act(messages, [])
        made.close()
        return found, server


def turn(*replies: Any, **given: Any) -> Turn:
    found, _ = asked(*replies, **given)
    assert isinstance(found, Turn), found
    return found


def test_a_whole_answer_becomes_a_turn_with_its_usage() -> None:
    prices = Limits(price_in=2.0, price_out=10.0)
    found, server = asked(said("Look.", [call("look", "{}")], "tool_calls"), limits=prices)
    assert isinstance(found, Turn)
    assert (found.content, found.calls[0].name, found.truncated) == ("Look.", "look", False)
    assert found.usage == Usage(100, 10, pytest.approx(3e-4))
    (request,) = server.asked
    assert (request["model"], request["max_tokens"], request["temperature"]) == ("m", 8192, 0.5)
    assert not request.get("stream") and "top_p" not in request
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_tokens_from_the_servers_cache_have_their_own_price() -> None:
    answer = said("x")
    answer["usage"]["prompt_tokens_details"] = {"cached_tokens": 40}
    found = turn(answer, limits=Limits(price_in=2.0, price_cached=0.5, price_out=0.0))
    assert found.usage and found.usage.cost == pytest.approx((60 * 2.0 + 40 * 0.5) * 1e-6)


@pytest.mark.parametrize(
    "bad",
    [
        Reply("{}", 429),
        Reply("busy", 503),
        Reply("", 500),
        Reply("{}", 408),
        Reply(json.dumps(said("x")), cut=30),
        Reply("<html>hello</html>"),
        Reply('{"choices": [{"mess', 200),
        Reply("[1, 2]"),
        Reply("null"),
        Reply(json.dumps({"choices": []})),
        Reply(json.dumps({"choices": [{"message": None}]})),
        Reply(json.dumps({"error": {"message": "overloaded"}})),
        Reply("[" * 100_000),
        Reply("", cut=0, headers={"Content-Length": "100"}),
    ],
    ids=str,
)
def test_what_passes_is_asked_again(bad: Reply) -> None:
    found, server = asked(bad, bad, said("Here."))
    assert isinstance(found, Turn) and found.content == "Here."
    assert len(server.asked) == 3


def test_a_server_that_stays_away_is_infrastructure() -> None:
    found, server = asked(Reply("down", 500))
    assert isinstance(found, Stopped) and found.kind == "infrastructure"
    assert len(server.asked) == 4 and found.reason.startswith("after 4 attempts: ")
    with endpoint(said("x")) as gone:
        pass
    found = policy(gone).act(ASK, [])
    assert isinstance(found, Stopped) and found.kind == "infrastructure"


def test_pauses_grow_and_are_not_shorter_than_the_server_asks() -> None:
    slept: list[float] = []
    late = Reply("{}", 429, {"Retry-After": "7"})
    with endpoint(Reply("{}", 429), Reply("{}", 429), late, said("x")) as server:
        assert isinstance(policy(server, slept=slept).act(ASK, []), Turn)
    assert 0.25 <= slept[0] <= 0.5 and 0.5 <= slept[1] <= 1.0 and slept[2] == 7.0


def test_a_wait_that_the_time_does_not_allow_is_not_begun() -> None:
    slept: list[float] = []
    with endpoint(Reply("{}", 429, {"Retry-After": "100"})) as server:
        found = policy(server, slept=slept).act(ASK, [])
    assert isinstance(found, Stopped) and found.kind == "infrastructure"
    assert slept == []


@pytest.mark.parametrize("slow", [Reply(json.dumps(said("x")), slow=0.2), Reply("{}", hang=3.0)])
def test_a_slow_answer_ends_with_the_time(slow: Reply) -> None:
    found, _ = asked(slow, limits=Limits(timeout_s=0.5, retries=3))
    assert isinstance(found, Stopped) and found.kind == "infrastructure"


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (400, "This model's maximum context length is 8192 tokens", "context"),
        (400, "the request exceeds the available context size", "context"),
        (413, "too large", "context"),
        (402, "pay", "cost"),
        (429, "insufficient_quota: you exceeded your quota", "cost"),
        (401, f"Incorrect API key provided: {KEY}", "infrastructure"),
        (404, "no such model", "infrastructure"),
        (400, "temperature is not supported", "infrastructure"),
    ],
)
def test_a_refusal_ends_the_episode_in_its_kind(status: int, text: str, kind: str) -> None:
    found, server = asked(Reply(json.dumps({"error": {"message": text}}), status))
    assert isinstance(found, Stopped) and found.kind == kind
    assert len(server.asked) == 1
    assert KEY not in found.reason and "secret" not in found.reason


def test_the_key_is_in_nothing_that_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with endpoint(said(f"your key is {KEY}", [call("look", json.dumps({"x": KEY}))])) as server:
        made = policy(server)
        found = made.act(ASK, [])
    assert isinstance(found, Turn) and "[key]" in found.content
    assert KEY not in f"{found} {made!r} {made.name} {caplog.text}"


@pytest.mark.parametrize("finish", ["length", "content_filter", "max_tokens", "weather", 7])
def test_calls_of_a_message_that_may_be_cut_off_are_never_handed_on(finish: Any) -> None:
    found = turn(said("half", [call("submit", '{"candidate": "a')], finish))
    assert found.truncated and found.calls == () and found.content == "half"


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call", None, ""])
def test_reasons_that_servers_give_for_a_whole_message(finish: Any) -> None:
    found = turn(said("", [call()], finish))
    assert not found.truncated and found.calls[0].name == "look"


@pytest.mark.parametrize(
    ("given", "name", "arguments"),
    [
        (call("sketch", {"schedule": []}), "sketch", '{"schedule": []}'),
        (call("sketch", '{"schedule": ['), "sketch", '{"schedule": ['),
        (call("look", None), "look", ""),
        (call(None, "{}"), "", "{}"),
        ({"id": "a", "name": "look", "arguments": "{}"}, "look", "{}"),
        ("look", "", '"look"'),
        (None, "", "null"),
        ({"id": "a", "function": "look"}, "", '{"id": "a", "function": "look"}'),
    ],
)
def test_calls_go_on_as_they_are_written(given: Any, name: str, arguments: str) -> None:
    (found,) = turn(said("", [given], "tool_calls")).calls
    assert (found.name, found.arguments) == (name, arguments)


def test_calls_that_the_server_left_in_the_text_are_read_there() -> None:
    before = [*ASK, {"role": "assistant", "content": "", "tool_calls": [call(id="call_1")]}]
    before.append({"role": "tool", "tool_call_id": "call_1", "name": "look", "content": "{}"})
    text = (
        'So.<tool_call>{"name": "look"}</tool_call><tool_call>{"name": "sketch", "sche</tool_call>'
    )
    found = turn(said(text), messages=before)
    assert found.content == "So."
    assert [(c.name, c.arguments) for c in found.calls] == [
        ("look", "{}"),
        ("sketch", '{"name": "sketch", "sche'),
    ]
    assert len({c.id for c in found.calls} | {"call_1"}) == 3


def test_tags_are_no_calls_in_a_message_with_calls_or_cut_off_or_in_thoughts() -> None:
    text = '<tool_call>{"name": "submit"}</tool_call>'
    beside = turn(said(text, [call()]))
    assert beside.content == text and [c.name for c in beside.calls] == ["look"]
    cut = turn(said(text, finish="length"))
    assert cut.truncated and cut.calls == ()
    assert turn(said(None, reasoning_content=text)).calls == ()


def test_ids_are_unique_in_the_conversation() -> None:
    before = [*ASK, {"role": "assistant", "content": "", "tool_calls": [call(id="b")]}]
    before.append({"role": "tool", "tool_call_id": "b", "name": "look", "content": "{}"})
    given = [call(id=id) for id in ("a", "a", None, "", 3, "b")]
    found = turn(said("", given), messages=before)
    assert found.calls[0].id == "a"
    assert len({c.id for c in found.calls} | {"b"}) == 7


def test_lists_of_parts_and_thoughts_are_read() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, "b"]
    assert turn(said(parts)).content == "ab"
    assert turn(said(None, reasoning_content="thinking")).content == "thinking"
    assert turn(said("says", reasoning_content="thinking")).content == "says"
    old = said("", function_call={"name": "look", "arguments": "{}"})
    assert turn(old).calls[0].name == "look"


def test_an_empty_answer_is_asked_for_again_and_paid() -> None:
    found, server = asked(said(""), said(None), said("x"))
    assert isinstance(found, Turn) and found.content == "x"
    assert found.usage == Usage(300, 30, 0.0)
    found, server = asked(said(""))
    assert found == Turn("", usage=Usage(300, 30, 0.0)) and len(server.asked) == 3


def test_a_huge_answer_is_cut_and_none_of_its_calls_is_run() -> None:
    small = Limits(message_characters=1000)
    found = turn(said("x" * 5000, [call()]), limits=small)
    assert found.truncated and not found.calls and len(found.content) < 1100
    found = turn(said("", [call("write", "y" * 5000)]), limits=small)
    assert found.truncated and not found.calls
    found = turn(said("", [call(id=str(n)) for n in range(100)]))
    assert found.truncated and not found.calls
    found = turn(Reply(b"x" * 100_000), limits=small)
    assert found.truncated and "was not read" in found.content


def test_an_allowance_that_is_spent_ends_the_episode() -> None:
    for limits in (Limits(max_tokens=200), Limits(max_cost=1.5e-4, price_in=1.0)):
        with endpoint(said("x")) as server:
            made = policy(server, limits)
            assert isinstance(made.act(ASK, []), Turn) and isinstance(made.act(ASK, []), Turn)
            found = made.act(ASK, [])
        assert isinstance(found, Stopped) and found.kind == "cost" and len(server.asked) == 2


def test_what_an_episode_spent_before_it_was_taken_up_counts(tmp_path: Path) -> None:
    header, usage = kit.header(), Usage(80, 40, 1e-4)
    with Recorder.create(new_path(tmp_path, header), header) as record:
        record.write(Said(ASK[0], 0.0))
        record.write(Acted(kit.calls("", ToolCall.of("1", "look"), usage=usage), 1.0, 1.0))
    given = ({"max_tokens": 121}, {"max_tokens": 120}, {"max_cost": 9e-5})
    for limits, left in zip([Limits(**one) for one in given], (1, 0, 0), strict=True):
        with endpoint(said("x")) as server:
            made = policy(server, limits)
            begun = begin(tmp_path, header, lambda made=made: made, ())
            assert begun.past is not None and begun.record is not None
            begun.record.close()
            found = made.act(ASK, [])
        assert len(server.asked) == left
        assert isinstance(found, Turn) if left else found.kind == "cost"


def test_usage_that_the_server_does_not_tell_is_guessed() -> None:
    answer = {**said("x" * 300), "usage": None}
    found = turn(answer, messages=[{"role": "user", "content": "y" * 3000}])
    assert found.usage and found.usage.completion_tokens == 100
    assert found.usage.prompt_tokens > 1000


@pytest.mark.parametrize("count", [10**400, -5, "100", True, 1e300, float("nan"), None, [3]])
def test_numbers_of_tokens_that_cannot_be_are_guessed_instead(count: Any) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": count}
    details = {"prompt_tokens_details": {"cached_tokens": count}}
    prices = Limits(price_in=1.0, price_cached=0.5, price_out=1.0)
    found = turn({**said("x" * 300), "usage": {**usage, **details}}, limits=prices)
    assert found.usage and found.usage.completion_tokens == 100
    assert found.usage.prompt_tokens == size(ASK) // 3 and 0 < found.usage.cost < 1


@pytest.fixture
def usual_depth() -> Iterator[None]:
    """Of Python's own; libraries that other tests import raise it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("usual_depth")
def test_an_answer_nested_deeper_than_python_goes_is_asked_for_again() -> None:
    deep: Any = "x"
    for _ in range(600):
        deep = [deep]
    assert turn(said(deep), said("fine")).content == "fine"


@pytest.mark.parametrize("after", ["1e999", "nan", "-3", "Mon, 01 Jan 0001 00:00:00 +2300", "x"])
def test_a_time_to_wait_that_cannot_be_is_none(after: str) -> None:
    assert not retry_after({"retry-after": after}, 1e9)


def test_however_many_attempts_there_were_the_next_delay_is_bounded() -> None:
    assert delay(5000, None, random.Random(0)) <= MAX_DELAY_S


def long_conversation(turns: int) -> list[dict[str, Any]]:
    messages = list(ASK)
    for n in range(turns):
        made = {"role": "assistant", "content": "", "tool_calls": [call(id=f"c{n}")]}
        messages += [made, {"role": "tool", "tool_call_id": f"c{n}", "content": "log " * 1000}]
    return messages


def test_old_observations_are_shortened_when_the_context_is_short() -> None:
    limits = Limits(context_tokens=8192 + 12000)
    messages = long_conversation(20)
    _, server = asked(said("x"), limits=limits, messages=messages)
    sent = server.asked[0]["messages"]
    assert len(sent) == len(messages)
    assert sent[-1]["content"] == messages[-1]["content"]
    assert "of 4000 characters left out" in sent[2]["content"]
    assert len(json.dumps(sent)) < 3 * 12000 < len(json.dumps(messages))


def test_a_context_that_the_server_finds_too_long_is_shortened_and_tried_again() -> None:
    full = Reply(json.dumps({"error": {"code": "context_length_exceeded", "message": "x"}}), 400)
    found, server = asked(full, full, said("x"), messages=long_conversation(20))
    assert isinstance(found, Turn)
    sizes = [len(json.dumps(r["messages"])) for r in server.asked]
    assert sizes[1] < 0.65 * sizes[0] and sizes[2] < 0.35 * sizes[0]


def test_malformed_calls_of_the_past_are_sent_as_servers_can_read_them() -> None:
    made = [call("a b\n", '{"x": ', "1"), call("", "[1]", "2"), call("look", "", "3")]
    messages = [*ASK, {"role": "assistant", "content": "\ud800", "tool_calls": made}]
    _, server = asked(said("x"), messages=messages)
    sent = server.asked[0]["messages"][1]["tool_calls"]
    assert [c["function"]["name"] for c in sent] == ["a_b_", "unnamed", "look"]
    assert [json.loads(c["function"]["arguments"]) for c in sent] == [
        {"malformed": '{"x": '},
        {"malformed": "[1]"},
        {},
    ]


def test_a_server_that_wants_the_other_name_of_the_bound_gets_it() -> None:
    refused = {"error": {"message": "Unsupported parameter: use 'max_completion_tokens' instead."}}
    found, server = asked(Reply(json.dumps(refused), 400), said("x"))
    assert isinstance(found, Turn) and server.asked[1]["max_completion_tokens"] == 8192
    assert "max_tokens" not in server.asked[1]


def test_requests_keep_their_pace() -> None:
    slept: list[float] = []
    with endpoint(said("x")) as server:
        for _ in range(3):
            made = policy(server, Limits(requests_per_minute=0.6), slept)
            assert isinstance(made.act(ASK, []), Turn)
    assert len(slept) == 2 and 90.0 < slept[0] <= 100.0 and 190.0 < slept[1] <= 200.0


def test_the_key_comes_from_the_usual_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_agent_backend.agent.policies.registry import make_policy

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ImportError, match="OPENAI_API_KEY"):
        make_policy(PolicySpec("openai", "m"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with endpoint(said("x")) as server:
        assert make_policy(PolicySpec("openai", "m", server.url)).act(ASK, [])
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_no_part_of_the_package_but_settings_reads_the_environment() -> None:
    import cuda_agent_backend.agent as agent

    for path in Path(agent.__path__[0]).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "os.environ" not in text and "getenv" not in text, path


def test_the_key_is_not_among_what_the_judges_workers_inherit() -> None:
    from sandbox.workers.settings import KEEP

    assert "OPENAI_API_KEY" not in KEEP
