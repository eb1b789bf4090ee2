"""An agent loop for verl: its servers sample, our environment answers. Needs verl, which pins torch: in its own venv.

In the file that ``actor_rollout_ref.rollout.agent.agent_loop_config_path`` names:

    - name: cuda_agent
      _target_: trainer.integrations.verl_loop.KernelAgentLoop
      config: world.toml

Rows have ``agent_name = "cuda_agent"``, ``task``, and where wanted ``seed`` and ``judgements``, as columns or in
``extra_info``. Their prompt is not used: the environment has its own.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)

from cuda_agent_backend.agent.policies.chat import Chat
from cuda_agent_backend.agent.policies.engine import EngineFailed, Sampled
from trainer.environment.session import JUDGEMENTS, TURNS, Session
from trainer.environment.tokens import play, response_of
from trainer.rollout.world import World
from trainer.stages import config as run_config
from trainer.stages.worlds import world_of

CHARACTERS = 400_000
"""Of a message that a model reads."""


@cache
def world_at(path: str) -> World:
    """The world of a configuration, one for all loops of a worker, closed with it. Raises `BadConfig`."""
    made = world_of(run_config.read(Path(path)).world)
    atexit.register(made.close)
    return made


def column(row: Mapping[str, Any], name: str) -> Any:
    """A value of a row, or of its ``extra_info``; None where it has none."""
    value = row.get(name)
    return (row.get("extra_info") or {}).get(name) if value is None else value


@register("cuda_agent")
class KernelAgentLoop(AgentLoopBase):
    """One episode a row. config: a TOML file whose [world] is played in. judgements, turns: of an episode."""

    def __init__(
        self,
        *args: Any,
        config: str,
        judgements: int = JUDGEMENTS,
        turns: int = TURNS,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._world, self._judgements, self._turns = world_at(config), judgements, turns

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Play the row's task.

        Raises ValueError where it names none that the world has, or where the prompt is longer than verl has room for.
        """
        task, seed = column(row, "task"), column(row, "seed")
        session = Session(self._world, self._judgements, self._turns)
        first = await asyncio.to_thread(
            session.start, str(task), int(seed or 0), column(row, "judgements")
        )
        most = int(self.rollout_config.response_length)
        times = {"generate_sequences": 0.0, "num_preempted": -1}
        request, end = uuid4().hex, int(self.tokenizer.eos_token_id)

        async def generate(ids: Sequence[int], room: int) -> Sampled | EngineFailed:
            started = perf_counter()
            found = await self.server_manager.generate(
                request_id=request,
                prompt_ids=list(ids),
                sampling_params={**sampling_params, "max_tokens": room},
            )
            times["generate_sequences"] += perf_counter() - started
            if not found.token_ids:
                return EngineFailed(f"nothing was sampled: {found.stop_reason}")
            ended = found.token_ids[-1] == end
            return Sampled(tuple(found.token_ids), tuple(found.log_probs or ()), ended)

        chat = Chat(self.tokenizer, CHARACTERS)
        started = perf_counter()
        turns = await play(session, first, chat, generate, most)
        times["tool_calls"] = perf_counter() - started - times["generate_sequences"]
        assert session.outcome is not None
        made = response_of(turns, session.outcome.reward, most, end)
        if len(made.prompt) > self.rollout_config.prompt_length:
            raise ValueError(
                f"the prompt of task {task} has {len(made.prompt)} ids, and rollout.prompt_length is "
                f"{self.rollout_config.prompt_length}: set it to at least as many"
            )
        return AgentLoopOutput(
            prompt_ids=list(made.prompt) or [end],
            response_ids=list(made.ids),
            response_mask=list(made.mask),
            response_logprobs=list(made.logprobs) if made.logprobs is not None else None,
            reward_score=made.reward,
            num_turns=2 * len(turns) + 1,
            metrics=AgentLoopMetrics(**times),
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                "stop": session.outcome.stop,
                "reward_extra_info": {"known": float(made.known), "judged": float(session.judged)},
            },
        )
