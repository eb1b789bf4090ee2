"""TRL's GRPO on the agent's own environment. Tables of measured schedules answer, in microseconds.

    pip install "cuda_agent[train]"
    python examples/grpo.py --tables tests/trainer/data/cpu-tables.parquet --steps 2
    python examples/grpo.py --tables TABLES --model NAME --steps 200 --completion 16384

Without ``--model`` it is a tiny model made from a configuration, with a tokenizer made from the tools' own text. That
one says nothing of use: it shows that all parts fit. A pretrained model needs a chat template that knows tools.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_instruct_2507_chat_template

from cuda_agent_backend.agent.tools.toolbox import tool_schemas
from trainer.environment.kernel_environment import KernelEnvironment
from trainer.policy.model import Size, actor_of, config_of
from trainer.rollout.held_out import HeldOut
from trainer.rollout.table_world import TableWorld
from trainer.rollout.world import World
from trainer.world.files import read

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TINY = Size(hidden=64, layers=2, heads=2, key_heads=1, head=32, inner=128, window=16384)
ASK = "Find the fastest kernel with the tools, submit it, and stop.\n"


def tiny_tokenizer(texts: Sequence[str], words: int = 2048) -> Any:
    """A byte-level BPE of some texts, with Qwen's chat template."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=words, initial_alphabet=alphabet, special_tokens=[PAD, START, END]
    )
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=END,
        pad_token=PAD,
        chat_template=qwen3_instruct_2507_chat_template,
    )


def tiny_model(tokenizer: Any) -> Any:
    """Weights drawn at random."""
    ids = len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id
    return actor_of(config_of(TINY, *ids), 0)


def rows_of(world: World, judgements: int, seeds: int) -> Dataset:
    """A row for each task that is trained on and each seed; `KernelEnvironment.reset` reads the columns."""
    prompt = [{"role": "user", "content": ASK}]
    named = {"prompt": prompt, "judgements": judgements}
    return Dataset.from_list(
        [{**named, "task": task, "seed": seed} for seed in range(seeds) for task in world.tasks]
    )


def trainer_of(
    world: World, model: Any, tokenizer: Any, rows: Dataset, args: argparse.Namespace
) -> GRPOTrainer:
    """A trainer whose rewards are the environment's."""
    settings = GRPOConfig(
        output_dir=str(args.out),
        max_steps=args.steps,
        learning_rate=args.rate,
        per_device_train_batch_size=args.attempts,
        num_generations=args.attempts,
        max_completion_length=args.completion,
        max_tool_calling_iterations=args.calls,
        bf16=torch.cuda.is_available(),
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    return GRPOTrainer(
        model=model,
        args=settings,
        train_dataset=rows,
        processing_class=tokenizer,
        environment_factory=partial(KernelEnvironment, world),
    )


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """From the command line."""
    parser = argparse.ArgumentParser(description="GRPO on tables of measured schedules")
    parser.add_argument("--tables", type=Path, nargs="+", required=True, help="of `measure`")
    parser.add_argument("--model", default="", help="its name or folder; a tiny one without")
    parser.add_argument("--out", type=Path, default=Path("build/grpo"))
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--attempts", type=int, default=4, help="at each task")
    parser.add_argument("--judgements", type=int, default=10, help="budget of an episode")
    parser.add_argument("--calls", type=int, default=40, help="rounds of tool calls, at most")
    parser.add_argument("--completion", type=int, default=2048, help="ids of an episode, at most")
    parser.add_argument("--rate", type=float, default=1e-6, help="learning rate")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> list[dict[str, float]]:
    """Train; what was logged at each step."""
    args = arguments(argv)
    world = TableWorld(read(args.tables), HeldOut(0.2), args.attempts)
    if args.model:
        model, tokenizer = args.model, AutoTokenizer.from_pretrained(args.model)
    else:
        tasks = [table.task for table in world.tables(world.tasks)]
        tokenizer = tiny_tokenizer([json.dumps(tool_schemas(files=False)), *tasks])
        model = tiny_model(tokenizer)
    trainer = trainer_of(world, model, tokenizer, rows_of(world, args.judgements, 4), args)
    trainer.train()
    return [step for step in trainer.state.log_history if "reward" in step]


if __name__ == "__main__":
    for step in main():
        print(json.dumps({"reward": step["reward"], "calls": step["tools/call_frequency"]}))
