"""A process that runs the example with TRL: as it is written, and with a policy that knows the tools.

    python grpo_process.py FOLDER

It writes FOLDER/said.json. A process of its own, as trainers set seeds, environment variables and shared state.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from world_kit import FILE

from trainer.environment.kernel_environment import KernelEnvironment

EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo.py"
ANSWER = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
ATTEMPTS = 4


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("grpo_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(name: str, **arguments: Any) -> str:
    value = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{value}\n</tool_call>"


def next_message(answers: list[Any]) -> str:
    """What a policy that knows the tools says after so many answers of theirs."""
    match len(answers):
        case 0:
            return call("look")
        case 1:
            return call("sketch", schedule=answers[0]["schedules"][0])
        case 2:
            return call("submit", candidate=answers[1]["candidate"])
    return "Done."


def own_reward(world: Any, task: str) -> float:
    """What that policy earns, without any trainer."""
    with KernelEnvironment(world) as environment:
        environment.reset(task, seed=0)
        schedules = json.loads(environment.look())["schedules"]
        environment.submit(json.loads(environment.sketch(schedules[0]))["candidate"])
        return environment.get_reward()


def scripted(example: Any, argv: list[str]) -> dict[str, Any]:
    """Two steps of a model that cannot speak: half of its attempts are put into its mouth, the others give up."""
    args = example.arguments([*argv, "--steps", "2", "--rate", "1e-2", "--completion", "6000"])
    world = example.TableWorld(example.read(args.tables), example.HeldOut(0.2), ATTEMPTS)
    texts = [json.dumps(example.tool_schemas(files=False)), *map(str, world.tasks)]
    tokenizer = example.tiny_tokenizer(texts)
    model = example.tiny_model(tokenizer)
    before = [weight.detach().clone() for weight in model.parameters()]
    rows = example.rows_of(world, 10, 1)
    trainer = example.trainer_of(world, model, tokenizer, rows, args)
    prompts: list[str] = []

    def generate(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        said = []
        for number, ids in enumerate(prompt_ids):
            text = tokenizer.decode(ids)
            answers = [json.loads(found) for found in ANSWER.findall(text)]
            if not answers:
                prompts.append(text)
            gives_up = not answers and number % 2
            said.append("I give up." if gives_up else next_message(answers))
        return [tokenizer(text + example.END)["input_ids"] for text in said], None

    trainer._generate_single_turn = generate
    trainer.train()
    tables = world.tables(world.tasks)
    played = [
        next(t.id for t in tables if t.parsed.to_json() in text) for text in prompts[::ATTEMPTS]
    ]
    return {
        "logged": [step for step in trainer.state.log_history if "reward" in step],
        "prompts": prompts,
        "own": [own_reward(world, task) for task in played],
        "moved": any(
            not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)
        ),
    }


def main(folder: Path) -> None:
    example = loaded()
    argv = ["--tables", str(FILE), "--out", str(folder)]
    plain = example.main([*argv, "--steps", "1", "--attempts", "2", "--completion", "32"])
    said = {"plain": plain, "scripted": scripted(example, argv)}
    (folder / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
