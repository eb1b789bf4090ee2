"""Conversations as the small policy reads and writes them: messages to ids, and its ids to calls.

Behind the same boundary as a chat template (see `policies.chat`): ids sampled stay as they were, and only what is new
since the policy's last message is encoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent_backend.agent.policies.trained.grammar import Grammar, Words
from cuda_agent_backend.agent.policies.trained.rendering import (
    Known,
    answer_words,
    first_words,
    user_words,
    value_word,
)
from cuda_agent_backend.agent.policies.trained.vocabulary import known_or_bucket, words
from cuda_agent_backend.agent.protocol import Message, ToolCall, Turn

GAVE_UP = "nothing that is known of this task promises a faster kernel"


@dataclass(frozen=True)
class Encoded:
    """A conversation as ids. spoken: for each id whether the policy chose it."""

    ids: tuple[int, ...]
    spoken: tuple[bool, ...]


class Speech:
    """A vocabulary at work. Holds no conversation; many episodes share one."""

    def __init__(self, vocabulary: Sequence[str] | None = None) -> None:
        self.words = Words(words() if vocabulary is None else vocabulary)
        self._known = frozenset(self.words.ids)

    def grammar(self) -> Grammar:
        """Of a conversation that has not begun."""
        return Grammar(self.words)

    def ids(self, said: Sequence[str]) -> list[int]:
        """Of words, those unknown by their checksum."""
        return [self.words.ids[known_or_bucket(word, self._known)] for word in said]

    def heard(self, messages: Sequence[Message], known: Known, at_start: bool) -> list[int]:
        """The ids of messages that are not the policy's. at_start: whether the first user's message is the task."""
        said: list[str] = []
        for message in messages:
            if message["role"] == "tool":
                said += answer_words(message, known)
            elif message["role"] == "user":
                content = str(message.get("content", ""))
                said += first_words(content) if at_start else user_words(content)
                at_start = False
        return self.ids(said)

    def encoded(self, messages: Sequence[Message]) -> Encoded | None:
        """A whole conversation of another policy in this one's words, up to its last message; None where it says what
        these cannot."""
        listener, spoken = Listener(self), list[bool]()
        waiting: list[Message] = []
        for message in messages:
            if message["role"] != "assistant":
                waiting.append(message)
                continue
            heard = listener.hear(waiting)
            made = self.message_ids(message, listener.known)
            if made is None or not _follows(self.grammar().feed(listener.ids), made):
                return None
            listener.say(made)
            spoken += [False] * len(heard) + [True] * len(made)
            waiting = []
        return Encoded(tuple(listener.ids), tuple(spoken))

    def message_ids(self, message: Message, known: Known) -> list[int] | None:
        """The ids of an assistant's message, with its end; None where there is no word for a call."""
        said: list[str] = []
        for call in message.get("tool_calls", ()):
            words = call_words(call["function"]["name"], call["function"]["arguments"], known)
            if words is None:
                return None
            said += words
        return self.ids([*said, "<end>"]) if said else None

    def turn(self, ids: Sequence[int], known: Known, first: int) -> Turn:
        """The turn that ids say, those of a message that ended. first: the number of its first call."""
        said = [self.words.words[id] for id in ids]
        calls = [
            ToolCall.of(f"call_{first + n}", name, **arguments)
            for n, (name, arguments) in enumerate(self._calls(said, known))
        ]
        return Turn("", tuple(calls))

    def shortened(self, ids: Sequence[int], calls: int) -> list[int]:
        """A message that ended, without all but its first calls."""
        starts = [n for n, id in enumerate(ids) if id in self.words.calls]
        return list(ids) if len(starts) <= calls else [*ids[: starts[calls]], self.words.end]

    def _calls(self, said: Sequence[str], known: Known) -> Iterator[tuple[str, dict[str, Any]]]:
        starts = [n for n, word in enumerate(said) if self.words.ids[word] in self.words.calls]
        for start, end in zip(starts, [*starts[1:], len(said)], strict=True):
            name, rest = said[start].strip("<>"), [w for w in said[start + 1 : end] if w != "<end>"]
            if name == "give_up":
                yield "submit", {"reason": GAVE_UP}
            elif name == "sketch" and rest:
                yield name, {"schedule": self._schedule(rest, known)}
            elif rest:
                yield name, {"candidate": known.candidates[_number(rest[0])]}
            else:
                yield name, {}

    def _schedule(self, rest: Sequence[str], known: Known) -> list[dict[str, Any]]:
        schedule = [dict(kernel) for kernel in known.schedules[_number(rest[0])]]
        for n, word in enumerate(rest):
            if word != "<set>" or len(rest) < n + 4:
                continue
            kernel, name, value = rest[n + 1 : n + 4]
            number = int(kernel.partition(":")[2])
            for parameter, values in known.space[number].items():
                found = [v for v in values if self._word(value_word(v)) == value]
                if self._word(f"p:{parameter}") == name and found and number < len(schedule):
                    schedule[number][parameter] = found[0]
        return schedule

    def _word(self, word: str) -> str:
        return known_or_bucket(word, self._known)


class Listener:
    """One conversation in ids, as far as it was heard and said."""

    def __init__(self, speech: Speech) -> None:
        self.speech, self.known = speech, Known()
        self.ids: list[int] = []
        self._open = False

    def hear(self, messages: Sequence[Message]) -> list[int]:
        """The ids of messages that are not the policy's, up to where it speaks next; a message of its own that was cut
        off is ended first."""
        words = self.speech.words
        new = [words.end] if self._open else []
        new += self.speech.heard(messages, self.known, not self.ids)
        new.append(words.assistant)
        self.ids += new
        self._open = True
        return new

    def say(self, ids: Sequence[int]) -> None:
        """Take in what the policy said."""
        self.ids += ids
        self._open = not ids or ids[-1] != self.speech.words.end


def call_words(name: str, arguments: str, known: Known) -> list[str] | None:
    """A call in words; None where it names what has no word, such as a file."""
    try:
        given = json.loads(arguments or "{}")
    except ValueError:
        return None
    if name == "look":
        return ["<look>"]
    if name == "sketch":
        return sketch_words(given.get("schedule"), known)
    candidate = given.get("candidate")
    if name == "submit" and not candidate:
        return ["<give_up>"]
    if name in ("inspect", "verify", "profile", "submit") and candidate in known.candidates:
        return [f"<{name}>", f"<c:{known.candidates.index(candidate)}>"]
    return None


def sketch_words(schedule: Any, known: Known) -> list[str] | None:
    """A schedule as the one proposed that it differs least from, and the changes; None where none is of its kind."""
    best: list[str] | None = None
    for number, proposed in enumerate(known.schedules):
        changes = _changes(schedule, proposed)
        if changes is None:
            continue
        made = ["<sketch>", f"<s:{number}>"]
        made += [w for k, n, v in changes for w in ("<set>", f"k:{k}", f"p:{n}", value_word(v))]
        if best is None or len(made) < len(best):
            best = made
    return best


def _changes(wanted: Any, proposed: Sequence[dict[str, Any]]) -> list[tuple[int, str, Any]] | None:
    if not isinstance(wanted, list) or len(wanted) != len(proposed):
        return None
    found = []
    for number, (new, old) in enumerate(zip(wanted, proposed, strict=True)):
        if not isinstance(new, dict) or new.keys() != old.keys():
            return None
        found += [(number, name, new[name]) for name in sorted(old) if new[name] != old[name]]
    return found


def _follows(grammar: Grammar, ids: Sequence[int]) -> bool:
    for id in ids:
        if id not in grammar.allowed():
            return False
        grammar.feed([id])
    return True


def _number(word: str) -> int:
    return int(word.strip("<>").partition(":")[2])
