"""What the small policy may say next: a function of the ids so far, so that sampler and trainer agree on it.

A message is one call or several, then ``<end>``. A call names a tool, and a schedule or a candidate that the
conversation has named; a schedule may be changed in a few parameters, to values that `look` told of. So every message
is a call that the tools take, but for a changed schedule, of which the sketch says whether it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cuda_agent_backend.agent.policies.trained.vocabulary import CALLS, ENDS_EPISODE

MOST_CALLS = 8
"""Of a message."""
MOST_CHANGES = 4
"""Parameters in which one schedule is changed."""
OF_CANDIDATE = ("<inspect>", "<verify>", "<profile>", "<submit>")


class Words:
    """A vocabulary as the grammar needs it: each word's id, and the ids of each kind."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.words = tuple(vocabulary)
        self.ids: Mapping[str, int] = {word: n for n, word in enumerate(vocabulary)}
        self.calls = {self.ids[word] for word in CALLS}
        self.of_candidate = {self.ids[word] for word in OF_CANDIDATE}
        self.ends_episode = {self.ids[word] for word in ENDS_EPISODE}
        self.schedules = self._kind("<s:")
        self.candidates = self._kind("<c:")
        self.kernels = self._kind("k:")
        self.names = self._kind("p:", "p#")
        self.values = self._kind("v:", "v#")
        self.end, self.assistant = self.ids["<end>"], self.ids["<assistant>"]
        self.look, self.sketch = self.ids["<look>"], self.ids["<sketch>"]
        self.give_up, self.set = self.ids["<give_up>"], self.ids["<set>"]
        self.space, self.tool = self.ids["<space>"], self.ids["<tool>"]
        self.marks = {n for word, n in self.ids.items() if word.startswith("<")}

    def _kind(self, *prefixes: str) -> frozenset[int]:
        return frozenset(n for word, n in self.ids.items() if word.startswith(prefixes))


class Grammar:
    """Follows a conversation id by id. ``allowed`` is the sorted ids that may come next in a message of the policy."""

    def __init__(self, words: Words) -> None:
        self._w = words
        self.speaking = False
        """Whether the policy's message is under way."""
        self._schedules: set[int] = set()
        self._candidates: set[int] = set()
        self._space: dict[int, dict[int, list[int]]] = {}
        self._in_space = False
        self._kernel = self._name = -1
        self._message: list[int] = []
        self._calls = self._changes = 0

    def feed(self, ids: Iterable[int]) -> Grammar:
        """Take in what was said, by whomever."""
        for id in ids:
            if self.speaking:
                self._say(id)
            else:
                self._hear(id)
        return self

    def _say(self, id: int) -> None:
        words = self._w
        self._message.append(id)
        if id == words.end:
            self.speaking = False
            return
        if id in words.calls:
            self._calls, self._changes = self._calls + 1, 0
        elif id == words.set:
            self._changes += 1
        elif id in words.kernels:
            self._kernel = id
        elif id in words.names:
            self._name = id

    def _hear(self, id: int) -> None:
        words = self._w
        if id == words.assistant:
            self.speaking, self._in_space = True, False
            self._message, self._calls, self._changes = [], 0, 0
        elif id == words.space:
            self._in_space, self._space = True, {}
        elif id in words.schedules:
            self._schedules.add(id)
        elif id in words.candidates:
            self._candidates.add(id)
        elif self._in_space and id in words.marks:
            self._in_space = False
        elif self._in_space:
            self._note_space(id)

    def _note_space(self, id: int) -> None:
        words = self._w
        if id in words.kernels:
            self._kernel = id
        elif id in words.names:
            self._name = id
        elif id in words.values:
            self._space.setdefault(self._kernel, {}).setdefault(self._name, []).append(id)

    def allowed(self) -> tuple[int, ...]:
        """The ids that may come next, sorted; never empty while the policy speaks, and empty while it does not."""
        if not self.speaking:
            return ()
        words = self._w
        last = self._message[-1] if self._message else None
        if last is None:
            return self._starts(True)
        if last == words.sketch:
            return tuple(sorted(self._schedules))
        if last in words.of_candidate:
            return tuple(sorted(self._candidates))
        if last == words.set:
            return tuple(sorted(k for k, names in self._space.items() if names))
        if last in words.kernels:
            return tuple(sorted(self._space[last]))
        if last in words.names:
            return tuple(sorted(set(self._space[self._kernel][last])))
        if self._message[-2:-1] and self._message[-2] in words.ends_episode:
            return (words.end,)
        if last in words.ends_episode:
            return (words.end,)
        may_change = last in words.schedules or last in words.values
        changes = may_change and self._space and self._changes < MOST_CHANGES
        return tuple(sorted((*self._starts(False), *((words.set,) if changes else ()))))

    def _starts(self, first: bool) -> tuple[int, ...]:
        """What a call may begin with, and the end of the message where there is a call in it."""
        words = self._w
        if self._calls >= MOST_CALLS:
            return (words.end,)
        found = {words.look, words.give_up} if first else {words.end}
        if self._schedules:
            found.add(words.sketch)
        if self._candidates:
            found |= words.of_candidate if first else words.of_candidate - words.ends_episode
        return tuple(sorted(found))
