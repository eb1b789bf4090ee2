"""An episode as ids, for trainers that keep ids themselves: a session, and anything that samples.

What was sampled is never encoded anew. What the environment says is masked. An episode ends on an id that the policy
sampled, as its reward is put on the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from cuda_agent_backend.agent.policies.calls import read_message
from cuda_agent_backend.agent.policies.chat import Chat
from cuda_agent_backend.agent.policies.engine import EngineFailed, Sampled
from cuda_agent_backend.agent.policies.local import LEAST_ROOM
from cuda_agent_backend.agent.protocol import Message, Stopped, Tokens, Turn
from trainer.environment.session import Session

Generate = Callable[[Sequence[int], int], Awaitable[Sampled | EngineFailed]]
"""What follows some ids, at most so many of it."""
UNKNOWN = 0.0
"""Stands for a reward that is not known; none of its ids is then learnt from."""


class TemplateChanges(ValueError):
    """A chat template renders a conversation otherwise once there is more of it, so ids cannot be kept."""


@dataclass(frozen=True)
class Response:
    """An episode as one sequence of ids.

    prompt: ids before the policy's first. ids: the rest; mask: of each whether the policy sampled it (1) or not (0);
    logprobs: of each as it was sampled, 0.0 where it was not, None where they are not known. reward: C7, on the last
    id, which the policy sampled. known: whether the reward says anything of the policy; where not, the mask is 0.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    reward: float
    known: bool


def response_of(
    turns: Sequence[Tokens], reward: float | None, most: int, empty: int = 0
) -> Response:
    """Turns that follow each other as one sequence, of at most ``most`` ids after the prompt.

    empty: the id that stands for a response where nothing was said, as where a server failed at once. Raises ValueError
    where a turn does not follow the one before.
    """
    if not all(turn.follows for turn in turns[1:]):
        raise ValueError("a turn does not follow the one before: they are no one sequence")
    ids, mask, logprobs = list[int](), list[int](), list[float]()
    for number, turn in enumerate(turns):
        said = turn.prompt if number else ()
        ids += [*said, *turn.ids]
        mask += [0] * len(said) + [1] * len(turn.ids)
        logprobs += [*([0.0] * len(said)), *turn.logprobs]
    scored = all(len(turn.logprobs) == len(turn.ids) for turn in turns)
    end = max((n + 1 for n, own in enumerate(mask[:most]) if own), default=0)
    known = reward is not None and end > 0
    return Response(
        turns[0].prompt if turns else (),
        tuple(ids[:end]) or (empty,),
        tuple(mask[:end]) if known else (0,) * max(1, end),
        (tuple(logprobs[:end]) or (0.0,)) if scored else None,
        reward if reward is not None and known else UNKNOWN,
        known,
    )


async def play(
    session: Session,
    first: Sequence[Message],
    chat: Chat,
    generate: Generate,
    most: int,
) -> tuple[Tokens, ...]:
    """Play an episode that was begun to its end; its turns as they were sampled.

    first: its first messages. most: ids after the prompt. Tools run in a thread, so that
    other episodes go on. Raises `TemplateChanges`. Whatever is raised, the session is closed.
    """
    try:
        return await _played(session, first, chat, generate, most)
    finally:
        await asyncio.to_thread(session.close)  # a call that a thread still runs ends first


async def _played(
    session: Session,
    first: Sequence[Message],
    chat: Chat,
    generate: Generate,
    most: int,
) -> tuple[Tokens, ...]:
    found: list[Tokens] = []
    ids: list[int] = []
    new = chat.whole(first, session.schemas)
    start, calls = len(new), 1
    while session.outcome is None:
        room = most - (len(ids) + len(new) - start)
        if room < min(LEAST_ROOM, most):
            reason = f"{most - room} ids leave no room for a message in {most}"
            await asyncio.to_thread(session.take, Stopped("context", reason))
            break
        said = await generate([*ids, *new], room)
        if isinstance(said, EngineFailed):
            session.take(Stopped("infrastructure", said.reason))
            break
        found.append(Tokens(tuple(new), said.ids, said.logprobs, bool(found)))
        ids += [*new, *said.ids]
        end = said.ids[-1] if said.ended else None
        turn = _turn(chat, ids, said.ids, end, calls)
        calls += len(turn.calls)
        answers = await asyncio.to_thread(session.take, turn)
        if session.outcome is None:
            following = chat.following(turn.to_message(), answers, end)
            if following is None:
                raise TemplateChanges(
                    "the chat template renders a conversation otherwise once there is more of it"
                )
            new = following
    return tuple(found)


def _turn(chat: Chat, ids: Sequence[int], said: Sequence[int], end: int | None, first: int) -> Turn:
    """What a message says. One that does not end is cut off, and its calls are not run."""
    if end is None:
        return Turn(chat.tokenizer.decode(list(said)), truncated=True)
    before = ids[: len(ids) - len(said)]
    content, calls = read_message(chat.tokenizer, said[:-1], before, first)
    return Turn(content, calls)
