"""Episodes that go on: wherever their record ends, they come to what they would have come to."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import episode_kit as kit
import pytest
import test_tools

from cuda_agent_backend.agent import loop
from cuda_agent_backend.agent.conversation import CUT_OFF
from cuda_agent_backend.agent.loop import (
    NEW_SHELL,
    NOT_RUN,
    Budget,
    EpisodeResult,
    run_episode,
)
from cuda_agent_backend.agent.policies.rebuild import decide_again
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.protocol import (
    OUT_OF_TIME,
    Message,
    Policy,
    Schema,
    Stopped,
    ToolCall,
    Turn,
)
from cuda_agent_backend.agent.resume import MAX_AGE_S, MAX_FRUITLESS, begin
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.agent.trajectories.events import (
    Acted,
    Answered,
    Header,
    Resumed,
    Trajectory,
)
from cuda_agent_backend.agent.trajectories.file import Recorder, assistant_turns, read
from cuda_agent_backend.agent.workspace import policy_files as workfiles
from cuda_agent_backend.agent.workspace.folder import Workspace


def play(
    folder: Path,
    policy: Policy,
    tools: Any,
    header: Header | None = None,
    budget: Budget = Budget(1e9),  # noqa: B008
) -> EpisodeResult:
    """Go on with an episode, or begin one."""
    begun = begin(folder, header or kit.header(), lambda: policy, tools.schemas)
    assert begun.record is not None
    with begun.record as record:
        return run_episode(begun.policy, tools, budget, record=record, past=begun.past)


def only(folder: Path) -> Path:
    (path,) = folder.glob("*.jsonl")
    return path


def whole(folder: Path) -> Trajectory:
    found = read(only(folder))
    assert isinstance(found, Trajectory), found
    return found


def cuts(content: bytes) -> list[int]:
    """After each line, and in the middle of each."""
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    middles = [(a + b) // 2 for a, b in itertools.pairwise(ends)]
    return sorted([*ends, *middles])


def without_shell_news(messages: Sequence[Message]) -> list[Message]:
    return [m for m in kit.said(messages) if m["content"] != NEW_SHELL]


def same(one: EpisodeResult, other: EpisodeResult) -> bool:
    assert one.best is not None and other.best is not None
    return (one.best[0], one.stop, one.reward, one.turns) == (
        other.best[0],
        other.stop,
        other.reward,
        other.turns,
    )


def test_wherever_a_process_died_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    steps = [s for s in kit.winning() if not (isinstance(s, Turn) and s.content == "A shell.")]
    plain = play(tmp_path / "plain", kit.Script(steps), kit.Tools())
    content = only(tmp_path / "plain").read_bytes()
    for cut in cuts(content)[:-1]:
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / only(tmp_path / "plain").name).write_bytes(content[:cut])
        tools = kit.Tools()
        again = play(folder, kit.Script(steps), tools)
        found = whole(folder)
        assert same(plain, again), cut
        assert kit.said(again.trajectory) == kit.said(plain.trajectory)
        assert found.messages == again.trajectory and found.finished and not found.torn
        assert found.gains.candidates == tools.candidates
        assert set(found.gains.verdicts) == set(tools.verdicts)
        assert sum(isinstance(event, Acted) for event in found.events) == plain.turns
        answers = sum(len(e.messages) for e in found.events if isinstance(e, Answered))
        assert answers == sum(m["role"] == "tool" for m in plain.trajectory)


def test_what_was_answered_is_not_done_again(tmp_path: Path) -> None:
    play(tmp_path / "plain", kit.Script(kit.winning()), kit.Tools())
    content = only(tmp_path / "plain").read_bytes()
    lines = content.splitlines(keepends=True)
    for kept in range(2, len(lines)):
        folder = tmp_path / str(kept)
        folder.mkdir()
        (folder / only(tmp_path / "plain").name).write_bytes(b"".join(lines[:kept]))
        before = whole(folder)
        tools = kit.Tools()
        play(folder, kit.Script(kit.winning()), tools)
        done = [m["name"] for m in before.messages if m["role"] == "tool"]
        asked = [
            c.name
            for s in kit.winning()
            if isinstance(s, Turn) and not s.truncated
            for c in s.calls
        ]
        left = asked[len(done) :]
        if left and left[0] == "shell" and isinstance(before.events[-1], Acted):
            left = left[1:]  # it may have run: it is answered, not run again
        assert tools.done == left


def test_a_shell_command_that_was_interrupted_is_answered_and_not_run_again(tmp_path: Path) -> None:
    steps = [kit.calls("", ToolCall.of("1", "shell", command="make")), Stopped("cost", "spent")]
    play(tmp_path / "plain", kit.Script(steps), kit.Tools())
    lines = only(tmp_path / "plain").read_bytes().splitlines(keepends=True)
    folder = tmp_path / "cut"
    folder.mkdir()
    (folder / only(tmp_path / "plain").name).write_bytes(b"".join(lines[:3]))
    tools = kit.Tools()
    result = play(folder, kit.Script(steps), tools)
    assert tools.done == []
    answer = json.loads(result.trajectory[-1]["content"])
    assert not answer["ok"] and "interrupted" in answer["error"]


def test_a_policy_that_used_a_shell_is_told_that_it_is_a_new_one(tmp_path: Path) -> None:
    steps: list[kit.Step] = [
        kit.calls("", ToolCall.of("1", "shell", command="cd /x")),
        Stopped("infrastructure", "the server is gone"),
    ]
    play(tmp_path, kit.Script(steps), kit.Tools())
    steps[1] = kit.calls("", ToolCall.of("1", "submit", reason="enough"))
    result = play(tmp_path, kit.Script(steps), kit.Tools())
    assert [m["content"] for m in result.trajectory if m["role"] == "user"][1:] == [NEW_SHELL]


def test_seconds_that_were_used_are_told_and_the_budget_is_for_those_to_come(
    tmp_path: Path,
) -> None:
    now = [0.0]

    def clock() -> float:
        return now[0]

    def slow() -> None:
        now[0] += 10.0

    steps = kit.winning()
    stopped: list[kit.Step] = [*steps[:4], Stopped("infrastructure", "gone")]
    with Recorder.create(tmp_path / "a.jsonl", kit.header()) as record:
        run_episode(
            kit.Script(stopped, delay=slow), kit.Tools(), Budget(1e9), clock=clock, record=record
        )  # type: ignore[arg-type]
    opened = Recorder.reopen(tmp_path / "a.jsonl")
    assert isinstance(opened, tuple)
    record, past = opened
    assert past.used == 40.0 and len(past.turns) == 4
    now[0] = 0.0
    with record:
        result = run_episode(
            kit.Script(steps, delay=slow),
            kit.Tools(),
            Budget(19.0),
            clock=clock,
            record=record,
            past=past,  # type: ignore[arg-type]
        )
    assert result.reason == "19 s are used up"
    assert (result.stop, result.turns, result.seconds) == ("time", 7, 70.0)


class Clock:
    """Seconds that tools, or a policy, take."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self) -> None:
        self.now += 10.0


def test_calls_of_a_turn_are_not_run_once_the_time_is_up() -> None:
    clock, (slow,) = Clock(), kit.losers(1)
    many = [ToolCall.of(str(n), "look") for n in range(64)]
    turns = [kit.calls("", kit.draft(slow), kit.profile(slow), *many), kit.calls("enough")]
    tools: Any = kit.Tools(delay=clock.passes)
    result = run_episode(kit.Script(turns), tools, Budget(45.0), clock=clock)
    assert tools.done == ["draft", "profile", *["look"] * 3] and result.seconds == 50.0
    answers = [json.loads(m["content"]) for m in result.trajectory if m["role"] == "tool"]
    assert len(answers) == 66
    assert [a["error"] for a in answers if not a["ok"]] == [NOT_RUN] * 61
    assert result.trajectory[-2]["content"] == OUT_OF_TIME


def test_one_submission_of_a_turn_is_judged_when_the_time_is_up() -> None:
    clock, (one, two) = Clock(), kit.losers(2)
    turns = [
        kit.calls("", kit.draft(one), kit.draft(two), kit.profile(one)),
        *[kit.calls("", kit.submit(one), kit.submit(two))] * 3,
    ]
    tools: Any = kit.Tools(delay=clock.passes)
    result = run_episode(kit.Script(turns), tools, Budget(25.0), clock=clock)
    assert tools.done[3:] == ["submit", "submit"] and result.stop == "time"


def test_seconds_in_which_a_policy_was_asked_in_vain_are_not_counted(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "a.jsonl"
    with Recorder.create(path, kit.header()) as record:
        gone = kit.Script([Stopped("infrastructure", "gone")], delay=clock.passes)
        tools: Any = kit.Tools()
        first = run_episode(gone, tools, Budget(5.0), clock=clock, record=record)
    assert (first.stop, first.seconds, first.reward) == ("infrastructure", 0.0, None)
    opened = Recorder.reopen(path)
    assert isinstance(opened, tuple)
    with opened[0] as record:
        tools = kit.Tools()
        policy = kit.Script(kit.winning())
        again = run_episode(policy, tools, Budget(5.0), clock=clock, record=record, past=opened[1])
    assert again.stop == "submitted" and again.seconds == 0.0


def test_of_a_policy_that_was_never_heard_nothing_is_known() -> None:
    clock = Clock()
    clock.passes()
    ticks = itertools.count(0.0, 10.0)
    tools: Any = kit.Tools()
    result = run_episode(kit.Script([]), tools, Budget(5.0), clock=lambda: next(ticks))
    assert (result.stop, result.turns, result.reward) == ("time", 0, None)


@pytest.mark.parametrize("kind", ["turns", "cost", "context", "infrastructure"])
@pytest.mark.parametrize("fast", [True, False])
def test_what_was_found_and_not_submitted_is_judged_at_the_end(
    tmp_path: Path, kind: Any, fast: bool
) -> None:
    number, other = kit.winners(1)[0] if fast else kit.losers(2)[0], kit.losers(2)[1]
    steps: list[kit.Step] = [
        kit.calls("", kit.draft(number), kit.draft(other), kit.profile(number), kit.profile(other)),
        kit.calls("go on" if kind == "turns" else "", kit.draft(other)),
    ]
    if kind != "turns":
        steps[1] = Stopped(kind, "over")
    tools: Any = kit.Tools()
    result = play(
        tmp_path, kit.Script(steps), tools, budget=Budget(1e9, turns=1 + (kind != "turns"))
    )
    judged = fast and kind != "infrastructure"
    assert ("submit" in tools.done) is judged
    assert result.stop == ("submitted" if judged else kind)
    assert (result.best is not None) is judged
    found = whole(tmp_path)
    assert found.messages == result.trajectory and len(found.turns) == result.turns == 1
    assert set(found.gains.verdicts) == ({kit.name_of(number)} if judged else set())
    if judged:
        assert kit.name_of(number) in found.messages[-1]["content"]


def test_a_judgement_at_the_end_is_not_made_again(tmp_path: Path) -> None:
    (number,) = kit.winners(1)
    turn = kit.calls("", kit.draft(number), kit.profile(number))
    play(tmp_path, kit.Script([turn]), kit.Tools(), budget=Budget(1e9, turns=1))
    path = only(tmp_path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    tools = kit.Tools()
    result = play(tmp_path, kit.Script([]), tools, budget=Budget(1e9, turns=1))
    assert result.stop == "submitted" and tools.done == []


def test_the_record_of_a_policys_files_has_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workfiles, "MAX_BYTES", 100)
    monkeypatch.setattr(loop, "MAX_RECORDED", 250)
    with Workspace(tmp_path / "w") as workspace:
        number = [0]

        def rewrites() -> None:
            number[0] += 1
            for name, size in (("a", 60), ("b", 90), ("c", 30)):
                workspace.provide(name, str(number[0]) * size, protect=False)

        tools = kit.Tools(workspace=workspace, delay=rewrites)
        steps = [kit.calls("", ToolCall.of("1", "look"))] * 4
        play(tmp_path / "t", kit.Script(steps), tools, budget=Budget(1e9, turns=4))
    answered = [e for e in whole(tmp_path / "t").events if isinstance(e, Answered)]
    assert [sorted(event.gains.files) for event in answered] == [["a", "c"]] * 2 + [[]] * 2


def test_turns_that_were_used_stay_used(tmp_path: Path) -> None:
    steps = kit.winning()
    play(tmp_path, kit.Script([*steps[:4], Stopped("infrastructure", "gone")]), kit.Tools())
    result = play(tmp_path, kit.Script(steps), kit.Tools(), budget=Budget(1e9, turns=5))
    assert (result.stop, result.turns) == ("turns", 5)


@pytest.mark.parametrize(
    ("steps", "stop", "reward"),
    [
        (kit.winning(), "submitted", 3.0),
        ([kit.calls("no idea")], "gave_up", -1.0),
        ([kit.calls("", ToolCall.of("1", "submit", reason="no"))], "gave_up", -1.0),
        ([*kit.winning()[:5], Stopped("context", "full")], "context", 1.0),
        ([Stopped("cost", "spent")], "cost", None),
        ([Stopped("infrastructure", "gone")], "infrastructure", None),
        ([lambda messages: 1 / 0], "bug", -1.0),
        ([lambda messages: None], "bug", -1.0),
        ([lambda messages: Turn(b"bytes")], "bug", -1.0),
        ([lambda messages: Turn("", (ToolCall(1, "look", "{}"),))], "bug", -1.0),
    ],
)
def test_why_an_episode_ended_is_kept_apart(
    tmp_path: Path, steps: list[kit.Step], stop: str, reward: float | None
) -> None:
    result = play(tmp_path, kit.Script(steps), kit.Tools())
    end = whole(tmp_path).end
    assert end is not None
    assert (result.stop, result.reward) == (end.stop, end.reward) == (stop, reward)
    assert whole(tmp_path).finished is (stop != "infrastructure")


def test_a_tools_exception_is_ours_and_the_record_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a fault of the tool"):
        play(tmp_path, kit.Script([kit.calls("", ToolCall.of("1", "fail"))]), kit.Tools())
    end = whole(tmp_path).end
    assert end is not None and end.stop == "bug" and "a fault of the tool" in end.reason


def test_a_truncated_turn_is_answered_once(tmp_path: Path) -> None:
    result = play(tmp_path, kit.Script(kit.winning()), kit.Tools())
    assert [m["content"] for m in result.trajectory].count(CUT_OFF) == 1


def test_being_told_to_stop_leaves_an_episode_that_goes_on(tmp_path: Path) -> None:
    count = [0]

    def after_three() -> bool:
        count[0] += 1
        return count[0] > 3

    with Recorder.create(tmp_path / "0-0.jsonl", kit.header()) as record:
        result = run_episode(
            kit.Script(kit.winning()),
            kit.Tools(),
            Budget(1e9),
            record=record,
            cancelled=after_three,
        )  # type: ignore[arg-type]
    assert result.stop == "interrupted" and result.reward is None
    assert whole(tmp_path).end is None


# --- policies with a state ---


class Killed(BaseException):
    """Stands in for the death of the process."""


class Dying:
    """A record that dies after so many events."""

    def __init__(self, record: Recorder, left: int) -> None:
        self.record, self.left = record, left

    def write(self, entry: Any) -> None:
        if not self.left:
            raise Killed
        self.left -= 1
        self.record.write(entry)


def test_a_search_goes_on_wherever_it_died(tmp_path: Path) -> None:
    def toolbox() -> Toolbox:
        return Toolbox(test_tools.TASK, test_tools.Scripted(judged="too_slow"))

    plain = run_episode(SearchPolicy(), toolbox(), Budget(1e9))
    assert plain.turns > 4
    for lives in (1, 2, 3):
        folder, deaths = tmp_path / str(lives), 0
        while True:
            tools = toolbox()
            begun = begin(folder, kit.header(), SearchPolicy, tools.schemas)
            assert begun.record is not None
            with begun.record as record:
                try:
                    dying: Any = Dying(record, lives + (begun.past is not None))
                    again = run_episode(
                        begun.policy, tools, Budget(1e9), record=dying, past=begun.past
                    )
                    break
                except Killed:
                    deaths += 1
        assert deaths >= 3
        assert kit.said(again.trajectory) == kit.said(plain.trajectory)
        assert (again.reason, again.stop) == (plain.reason, plain.stop)


def test_a_policy_that_decides_otherwise_now_begins_anew(tmp_path: Path) -> None:
    class Changed(kit.Script):
        def resume(self, messages: Sequence[Message], tools: Sequence[Schema]) -> str:
            return decide_again(self, messages, tools)

    steps = kit.winning()
    play(tmp_path, Changed([*steps[:3], Stopped("infrastructure", "gone")]), kit.Tools())
    made = []

    class Closing(Changed):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    def make() -> Policy:
        made.append(Closing([steps[1], *steps[1:]]))
        return made[-1]

    begun = begin(tmp_path, kit.header(), make, ())
    assert [policy.closed for policy in made] == [1, 0] and begun.record is not None
    with begun.record as record:
        tools: Any = kit.Tools()
        result = run_episode(begun.policy, tools, Budget(1e9), record=record)
    first, second = sorted(tmp_path.glob("*.jsonl"), key=lambda path: path.stat().st_size)
    assert result.turns == len(steps)
    ends = [found.end for found in map(read, (first, second)) if isinstance(found, Trajectory)]
    assert [end.stop for end in ends if end] == ["bug", "submitted"]


# --- which file is taken up ---


def left_off(folder: Path, **changes: Any) -> None:
    """An episode whose server went away."""
    steps: list[kit.Step] = [*kit.winning()[:3], Stopped("infrastructure", "gone")]
    play(folder, kit.Script(steps), kit.Tools(), kit.header(**changes))


@pytest.mark.parametrize(
    "other",
    [
        {"policy": "another"},
        {"flags": {"threads": 1}},
        {"toolchain": "clang"},
        {"tools": "1" * 64},
        {"machine": {"cpu": "b"}},
        {"started": kit.header().started + 2 * MAX_AGE_S},
    ],
)
def test_an_episode_under_other_conditions_is_not_taken_up(
    tmp_path: Path, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    left_off(tmp_path)
    header = kit.header(**other)
    monkeypatch.setattr("time.time", lambda: header.started)
    begun = begin(tmp_path, header, lambda: kit.Script([]), ())
    assert begun.past is None and begun.record is not None
    begun.record.close()
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


def test_one_that_kills_its_process_each_time_is_let_go(tmp_path: Path) -> None:
    left_off(tmp_path)
    path = only(tmp_path)
    for _ in range(MAX_FRUITLESS):
        begun = begin(tmp_path, kit.header(), lambda: kit.Script([]), ())
        assert begun.past is not None and begun.record is not None
        begun.record.write(Resumed(0.0))
        begun.record.close()
    begun = begin(tmp_path, kit.header(), lambda: kit.Script([]), ())
    assert begun.past is None and begun.record is not None
    assert begun.record.path != path


def test_being_told_of_a_new_shell_is_no_progress(tmp_path: Path) -> None:
    def killed() -> None:
        raise Killed

    shell = kit.calls("", ToolCall.of("1", "shell", command="cd /x"))
    play(tmp_path, kit.Script([shell, Stopped("infrastructure", "gone")]), kit.Tools())
    path = only(tmp_path)
    for number in range(MAX_FRUITLESS):
        assert whole(tmp_path).fruitless == number
        with pytest.raises(Killed):
            play(tmp_path, kit.Script([], delay=killed), kit.Tools())
    assert whole(tmp_path).messages[-1]["content"] == NEW_SHELL
    begun = begin(tmp_path, kit.header(), lambda: kit.Script([]), ())
    assert begun.past is None and begun.record is not None
    assert begun.record.path != path


def test_a_file_that_another_writes_and_one_that_is_damaged_are_passed_by(tmp_path: Path) -> None:
    left_off(tmp_path)
    first = begin(tmp_path, kit.header(), lambda: kit.Script([]), ())
    second = begin(tmp_path, kit.header(), lambda: kit.Script([]), ())
    assert first.past is not None and second.past is None
    assert first.record is not None and second.record is not None
    first.record.close()
    second.record.close()
    second.record.path.unlink()
    damaged = only(tmp_path)
    damaged.write_bytes(damaged.read_bytes().replace(b'"acted"', b'"akted"', 1))
    before = damaged.read_bytes()
    assert begin(tmp_path, kit.header(), lambda: kit.Script([]), ()).past is None
    assert damaged.read_bytes() == before


def test_without_a_place_to_write_the_episode_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    begun = begin(tmp_path / "file", kit.header(), lambda: kit.Script(kit.winning()), ())
    assert begun.record is None
    assert run_episode(begun.policy, kit.Tools(), Budget(1e9)).best is not None  # type: ignore[arg-type]


# --- replays ---


def test_a_replay_gives_the_same_conversation(tmp_path: Path) -> None:
    def toolbox() -> Toolbox:
        return Toolbox(test_tools.TASK, test_tools.Scripted())

    with Recorder.create(tmp_path / "a.jsonl", kit.header()) as record:
        first = run_episode(SearchPolicy(), toolbox(), Budget(1e9), record=record)
    turns = assistant_turns(tmp_path / "a.jsonl")
    assert isinstance(turns, tuple)
    again = run_episode(kit.Script(turns), toolbox(), Budget(1e9))
    assert kit.said(again.trajectory) == kit.said(first.trajectory)
    assert (again.reason, again.stop) == (first.reason, first.stop)


# --- a server that goes away and comes back ---


class Server(BaseHTTPRequestHandler):
    """A model's server that says the next turn of a script."""

    served: list[int]
    dies_at: int

    def do_POST(self) -> None:
        number = int(self.headers["Turn"])
        if number == type(self).dies_at:
            self.connection.close()  # in the middle of a request
            threading.Thread(target=self.server.shutdown, daemon=True).start()
            return
        type(self).served.append(number)
        turn = kit.winning()[number]
        assert isinstance(turn, Turn)
        said = [[call.id, call.name, call.arguments] for call in turn.calls]
        body = json.dumps({"content": turn.content, "calls": said, "truncated": turn.truncated})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None: ...


class Client:
    """A policy that asks the server; where there is none it stops, as an infrastructure's failure."""

    name = "client"

    def __init__(self, port: int) -> None:
        self.port = port

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        number = sum(message["role"] == "assistant" for message in messages)
        try:
            asked = HTTPConnection("127.0.0.1", self.port, timeout=10)
            asked.request("POST", "/", headers={"Turn": str(number)})
            found = json.loads(asked.getresponse().read())
        except (OSError, HTTPException, ValueError) as error:
            return Stopped("infrastructure", f"the server is gone: {error}")
        return Turn(
            found["content"], tuple(ToolCall(*c) for c in found["calls"]), found["truncated"]
        )


def test_a_server_that_dies_and_comes_back_loses_nothing(tmp_path: Path) -> None:
    served: list[int] = []
    results = []
    for dies_at in (2, 5, 8, -1):
        handler = type("Handler", (Server,), {"served": served, "dies_at": dies_at})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        results.append(play(tmp_path, Client(server.server_port), kit.Tools()))
        server.shutdown()
        thread.join()
        server.server_close()
        gone = play(tmp_path / "none", Client(server.server_port), kit.Tools())
        assert gone.stop == "infrastructure" and gone.reward is None
    assert [result.stop for result in results] == ["infrastructure"] * 3 + ["submitted"]
    assert served == list(range(len(kit.winning())))
    plain = run_episode(kit.Script(kit.winning()), kit.Tools(), Budget(1e9))  # type: ignore[arg-type]
    assert without_shell_news(results[-1].trajectory) == kit.said(plain.trajectory)


def test_the_policys_files_are_as_they_were_in_a_new_folder(tmp_path: Path) -> None:
    from cuda_agent_backend.agent.workspace.folder import Workspace

    steps: list[kit.Step] = [
        kit.calls("", ToolCall.of("0", "look")),
        kit.calls("", ToolCall.of("1", "write", path="a.cu", content="one\ntwo\n")),
        kit.calls("", ToolCall.of("2", "write", path="b/c.cu", content="three\n")),
        kit.calls("", ToolCall.of("3", "edit", path="a.cu", old="two", new="2")),
        kit.calls("", ToolCall.of("4", "edit", path="a.cu", old="one", new="1")),
        kit.calls("", ToolCall.of("5", "submit", reason="enough")),
    ]

    def life(folder: Path, place: Path) -> tuple[EpisodeResult, dict[str, Any]]:
        with Workspace(place) as workspace:
            workspace.provide("task.py", "given")
            tools = Toolbox(test_tools.TASK, test_tools.Scripted(), workspace=workspace)
            result = play(folder, kit.Script(steps), tools)
            return result, {path: workspace.text_of(path) for path in workspace.paths()}

    plain, files = life(tmp_path / "plain", tmp_path / "w")
    assert files["a.cu"] == "1\n2\n" and files["b/c.cu"] == "three\n"
    assert '"room"' in files["baselines.json"]
    content = only(tmp_path / "plain").read_bytes()
    for number, cut in enumerate(cuts(content)[2:-1]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / only(tmp_path / "plain").name).write_bytes(content[:cut])
        stale = tmp_path / f"w{number}"
        (stale / "b").mkdir(parents=True)
        (stale / "b" / "d.cu").write_text("of a call that was interrupted")
        again, found = life(folder, stale)
        assert found == files
        assert kit.said(again.trajectory) == kit.said(plain.trajectory)
