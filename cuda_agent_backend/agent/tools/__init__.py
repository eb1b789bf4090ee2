"""The tools of an episode: what a policy may do about one task.

Three groups (`kernels`, `files`, `shell`), bound together by `toolbox`. Every answer is a JSON object with ``ok``; what
went wrong comes back as text that the policy can act on, never as an exception.
"""

from __future__ import annotations

from cuda_agent_backend.agent.tools.kernels import Bench
from cuda_agent_backend.agent.tools.registry import Tool
from cuda_agent_backend.agent.tools.shell import Shell, ShellResult
from cuda_agent_backend.agent.tools.toolbox import Toolbox, tool_schemas

__all__ = ["Bench", "Shell", "ShellResult", "Tool", "Toolbox", "tool_schemas"]
