"""Chat templates of models that tests build, and what a model writes to call a tool."""

from __future__ import annotations

import json
from typing import Any

MESSAGES = """{%- for m in messages %}BEGIN{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}BEGINassistant
{% endif %}"""


def template(tools: str, begin: str = "<|im|>") -> str:
    """A template that knows tools. tools: how they stand in the system's message. begin: the mark of a message."""
    told = "{%- if tools %}BEGINsystem\n" + tools + "<|end|>\n{% endif %}"
    return (told + MESSAGES).replace("BEGIN", begin)


def call(name: str, **arguments: Any) -> str:
    """A call as the templates write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
