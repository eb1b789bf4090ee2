"""Conversations as a local model reads them: its chat template, and the ids of what is new since its last message.

What a model sampled is never encoded anew: ids stay as they were drawn, and only messages after its own are rendered,
behind a stand-in for what came before. A model whose template knows no tools, or that has no template, gets them in a
plain form: schemas in a system message, calls as JSON between ``<tool_call>`` and ``</tool_call>``, answers between
``<tool_response>`` and ``</tool_response>`` in a user's message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cuda_agent_backend.agent.policies.endpoint_requests import prepared
from cuda_agent_backend.agent.protocol import Message, Schema

PLAIN_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
OPEN, CLOSE = "<tool_call>", "</tool_call>"
PLAIN_TOOLS = f"""You work with tools. To call one, write a JSON object with "name" and "arguments" between tags:
{OPEN}
{{"name": "look", "arguments": {{}}}}
{CLOSE}
There may be several in a message; answers come after it. The tools, as JSON schemas:
"""


class Chat:
    """A tokenizer's chat template."""

    def __init__(self, tokenizer: Any, message_characters: int) -> None:
        self.tokenizer, self._limit = tokenizer, message_characters
        template = str(tokenizer.chat_template or "")
        self._plain = "tools" not in template
        self._own = {} if template else {"chat_template": PLAIN_TEMPLATE}

    def whole(self, messages: Sequence[Message], tools: Sequence[Schema]) -> list[int]:
        """The ids of a conversation, up to where the model's next message begins."""
        return self._ids(self._text(messages, tools, True))

    def following(
        self, answer: Message, new: Sequence[Message], end: int | None
    ) -> list[int] | None:
        """The ids of ``new`` behind the model's own message, up to where its next one begins.

        end: the id with which the model ended its message; None if it was cut off, and the end is part of what follows.
        None where the template renders a conversation otherwise once there is more of it.
        """
        before: list[Message] = [{"role": "user", "content": "-"}, answer]
        base = self._text(before, [], False)
        full = self._text([*before, *new], [], True)
        mark = self.tokenizer.eos_token if end is None else self.tokenizer.decode([end])
        place = base.rfind(mark) if mark else -1
        if not full.startswith(base) or place < 0:
            return None
        start = place if end is None else place + len(mark)
        return self._ids(full[start:])

    def saying(self, answer: Message) -> list[int] | None:
        """The ids of a message that another policy said, as the template writes it, up to and with its end.

        None where the template does not begin a message of the model's as it begins the one that is asked for.
        """
        asked: list[Message] = [{"role": "user", "content": "-"}]
        begun, full = self._text(asked, [], True), self._text([*asked, answer], [], False)
        place = full.rfind(self.tokenizer.eos_token)
        if not full.startswith(begun) or place < len(begun):
            return None
        return self._ids(full[len(begun) : place + len(self.tokenizer.eos_token)])

    def _text(self, messages: Sequence[Message], tools: Sequence[Schema], more: bool) -> str:
        made = [self._harmless(_with_objects(m)) for m in prepared(messages, self._limit)]
        if self._plain:
            made = plain(made, tools)
        text: str = self.tokenizer.apply_chat_template(
            made,
            tools=None if self._plain or not tools else list(tools),
            add_generation_prompt=more,
            tokenize=False,
            **self._own,
        )
        return text

    def _harmless(self, message: Message) -> Message:
        """Marks of the template within a text, as a tool may read them from a file, must not end a message."""
        text = message["content"]
        for mark in self.tokenizer.all_special_tokens:
            text = text.replace(mark, f"{mark[:1]} {mark[1:]}")
        return {**message, "content": text}

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def plain(messages: Sequence[Message], tools: Sequence[Schema]) -> list[Message]:
    """A conversation for a template that knows no tools."""
    made: list[Message] = []
    if tools:
        text = PLAIN_TOOLS + "\n".join(json.dumps(tool["function"]) for tool in tools)
        made.append({"role": "system", "content": text})
    for message in messages:
        content = str(message["content"])
        if message["role"] == "tool":
            wrapped = f"<tool_response>\n{content}\n</tool_response>"
            made.append({"role": "user", "content": wrapped})
            continue
        calls = [c["function"] for c in message.get("tool_calls", ())]
        written = [f"{OPEN}\n{json.dumps(call)}\n{CLOSE}" for call in calls]
        made.append(
            {"role": message["role"], "content": "\n".join(filter(None, [content, *written]))}
        )
    return _joined(made)


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Neighbours of one role as one message: many templates want roles by turns."""
    made: list[Message] = []
    for message in messages:
        if made and made[-1]["role"] == message["role"] != "assistant":
            joined = f"{made[-1]['content']}\n{message['content']}"
            made[-1] = {**made[-1], "content": joined}
        else:
            made.append(message)
    return made


def _with_objects(message: Message) -> Message:
    """Arguments of calls as objects, as templates read them."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": json.loads(call["function"]["arguments"]),
            },
        }
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}
