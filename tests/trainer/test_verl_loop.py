"""The agent loop for verl, where verl can be imported: it pins torch, so it has an environment of its own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.chat import call
from token_kit import Speaker, byte_tokenizer

from cuda_agent_backend.agent.policies.engine import Sampled

TABLES = Path(__file__).parent / "data" / "cpu-tables.parquet"
pytestmark = pytest.mark.skipif(
    find_spec("verl") is None,
    reason="verl is not installed; it pins torch, and goes into an environment of its own",
)


@pytest.fixture(scope="module", autouse=True)
def imported() -> Iterator[None]:
    """verl sets variables of the environment as it is imported."""
    before = set(os.environ)
    import trainer.integrations.verl_loop  # noqa: F401

    yield
    for name in set(os.environ) - before:
        del os.environ[name]


class Servers:
    """verl's client of its servers, as far as a loop asks it."""

    def __init__(self, speaker: Speaker) -> None:
        self.speaker, self.asked = speaker, list[dict[str, Any]]()

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: Any
    ) -> Any:
        self.asked.append({"request_id": request_id, **sampling_params})
        found = await self.speaker(prompt_ids, sampling_params["max_tokens"])
        if isinstance(found, Sampled):
            return SimpleNamespace(
                token_ids=list(found.ids), log_probs=list(found.logprobs), stop_reason="completed"
            )
        return SimpleNamespace(token_ids=[], log_probs=None, stop_reason="aborted")


def loop_of(servers: Servers, config: Path, prompt_length: int = 9000) -> Any:
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap

    from trainer.integrations.verl_loop import KernelAgentLoop

    rollout = {"prompt_length": prompt_length, "response_length": 20_000}
    return KernelAgentLoop(
        config=str(config),
        trainer_config=DictConfigWrap(
            OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
        ),
        server_manager=servers,
        tokenizer=servers.speaker.tokenizer,
        processor=None,
        dataset_cls=object,
        data_config=DictConfigWrap(OmegaConf.create({})),
        tools=None,
    )


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "world.toml"
    path.write_text(f"[world]\npaths = [{json.dumps(str(TABLES))}]\n")
    return path


def first_proposal(text: str) -> str:
    answer = json.loads(text[text.rindex('{"eager_us"') :].partition("<|end|>")[0])
    return call("sketch", schedule=answer["schedules"][0])


def submission(text: str) -> str:
    answer = json.loads(text[text.rindex('{"candidate"') :].partition("<|end|>")[0])
    return call("submit", candidate=answer["candidate"])


def test_the_reward_lands_on_a_sampled_id_in_verls_own_batch(config: Path) -> None:
    from trainer.integrations.verl_loop import world_at

    speaker = Speaker(byte_tokenizer(), call("look"), first_proposal, submission, "Done.")
    servers = Servers(speaker)

    async def run() -> Any:
        task = world_at(str(config)).tasks[0]
        row = {"extra_info": {"task": task, "seed": 3}, "raw_prompt": [], "judgements": 2}
        return await loop_of(servers, config).run({"temperature": 1.0}, **row)

    output = asyncio.run(run())
    batch = output.as_dict()
    own = batch["responses"][batch["response_mask"].bool()].tolist()
    assert own == [id for said in speaker.said for id in said]
    assert batch["prompts"].tolist() == speaker.given[0]
    assert batch["response_mask"][-1] == 1
    assert batch["rm_scores"][-1] == output.reward_score and output.reward_score in (-1, 1, 2, 3)
    assert batch["rm_scores"].count_nonzero() == 1
    assert output.num_turns == 2 * len(speaker.said) + 1
    assert len({asked["request_id"] for asked in servers.asked}) == 1
    assert all(asked["temperature"] == 1.0 for asked in servers.asked)
    assert output.extra_fields["reward_extra_info"]["known"] == 1.0
    assert "Budget: 2 judgements." in speaker.tokenizer.decode(output.prompt_ids)


def test_a_server_that_fails_trains_nothing(config: Path) -> None:
    from trainer.integrations.verl_loop import world_at

    servers = Servers(Speaker(byte_tokenizer()))

    async def run() -> Any:
        return await loop_of(servers, config).run({}, task=world_at(str(config)).tasks[0])

    output = asyncio.run(run())
    assert (output.reward_score, output.response_mask) == (0.0, [0])
    assert output.extra_fields["stop"] == "infrastructure"
    assert output.extra_fields["reward_extra_info"]["known"] == 0.0


def test_a_prompt_that_verl_has_no_room_for_is_said(config: Path) -> None:
    from trainer.integrations.verl_loop import world_at

    async def run() -> Any:
        servers = Servers(Speaker(byte_tokenizer(), "Done."))
        loop = loop_of(servers, config, prompt_length=10)
        return await loop.run({}, task=world_at(str(config)).tasks[0])

    with pytest.raises(ValueError, match=r"rollout\.prompt_length is 10: set it to at least"):
        asyncio.run(run())


def test_verl_knows_the_loop_by_its_name() -> None:
    from verl.experimental.agent_loop import agent_loop

    from trainer.integrations import verl_loop

    target = agent_loop._agent_loop_registry["cuda_agent"]["_target_"]
    assert target == f"{verl_loop.__name__}.KernelAgentLoop"
