"""A pretrained model in a local folder: ``config.json``, safetensors, ``tokenizer.json`` with a chat template.

Nothing is fetched, and no code of the folder is run. What is wrong with it is said before the first episode.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG, TOKENIZER, INDEX = "config.json", "tokenizer.json", "model.safetensors.index.json"


@dataclass(frozen=True)
class Pretrained:
    """A model, its tokenizer, the ids that end its messages, and digests that say which ones they are.

    tokenizer_sha256: of the tokenizer's file and its chat template. weights_sha256: of the configuration, and of what
    each file of tensors says that it holds; not of the numbers.
    """

    model: Any
    tokenizer: Any
    ends: tuple[int, ...]
    tokenizer_sha256: str
    weights_sha256: str


@dataclass(frozen=True)
class Broken:
    """Why a folder cannot be trained from, and what to do."""

    reason: str


def load(folder: Path, dtype: str, device: Any) -> Pretrained | Broken:
    """The model of a folder on a device. dtype: "bfloat16" or "float32"."""
    if why := _why_incomplete(folder):
        return Broken(f"the checkpoint {folder} {why}")
    found = _tokenizer(folder)
    if isinstance(found, Broken):
        return found
    model = _model(folder, dtype, device)
    if isinstance(model, Broken):
        return model
    from cuda_agent_backend.agent.policies.local import ends_of

    ends = tuple(ends_of(found, str(folder)))
    if why := _why_strangers(found, model, ends):
        return Broken(f"the tokenizer in {folder} is not the one of its model: {why}")
    _sample_plainly(model, ends)
    return Pretrained(model, found, ends, _tokenizer_digest(folder, found), _digest(folder))


def _why_incomplete(folder: Path) -> str:
    """What a folder lacks; "" where it can be read. The headers of all tensors are looked at, their numbers are not."""
    from safetensors import SafetensorError, safe_open

    if not folder.is_dir():
        return "is no folder; name one in [model] checkpoint, nothing is fetched"
    absent = [name for name in (CONFIG, TOKENIZER) if not (folder / name).is_file()]
    try:
        index = folder / INDEX
        wanted = (
            set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else set()
        )
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return f"has an {INDEX} that cannot be read: {type(error).__name__}: {error}"
    absent += sorted(name for name in wanted if not (folder / str(name)).is_file())
    if absent:
        return f"has no {', '.join(absent)}; copy it as a whole"
    files = tensor_files(folder)
    if not files:
        return "holds no .safetensors; other formats may run code and are not read: convert it"
    for path in files:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            return f"has a broken file {path.name}: {error}; copy it anew"
    return ""


def tensor_files(folder: Path) -> list[Path]:
    """The files of a folder that hold tensors."""
    return sorted(folder.glob("*.safetensors"))


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # tokenizers raises Exception itself
        first = str(error).strip().partition("\n")[0][:300]
        return Broken(f"the tokenizer in {folder} cannot be read: {first}; copy the folder anew")
    if not found.chat_template:
        return Broken(
            f"the tokenizer in {folder} has no chat template, so the model cannot tell messages apart; take a model "
            "that was tuned to chat, or put its chat_template.jinja there"
        )
    return found


def _model(folder: Path, dtype: str, device: Any) -> Any:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    read: Any = AutoModelForCausalLM.from_pretrained
    try:
        model, said = read(
            folder,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            attn_implementation="sdpa",
            local_files_only=True,
            output_loading_info=True,
            device_map={
                "": device
            },  # straight there: several processes would each fill the host's memory
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        first = str(error).strip().partition("\n")[0][:300]
        return Broken(f"the model in {folder} cannot be read: {first}; copy the folder anew")
    if absent := sorted(said["missing_keys"]):
        return Broken(
            f"the model in {folder} lacks {len(absent)} tensors, such as {absent[0]}; copy the folder anew"
        )
    if not hasattr(model, "model") or not hasattr(model, "lm_head"):
        return Broken(
            f"{type(model).__name__} in {folder} has no body `model` with a head `lm_head`, as Qwen, Llama and Mistral "
            "have; others cannot be trained here"
        )
    made: Any = model.eval()
    return made


def _why_strangers(tokenizer: Any, model: Any, ends: tuple[int, ...]) -> str:
    config = model.config.get_text_config()
    words = int(config.vocab_size)
    if (most := max(tokenizer.get_vocab().values(), default=0)) >= words:
        return f"it has an id {most}, and the model {words} of them"
    known: set[int] = set()
    for named in (config.eos_token_id, getattr(model.generation_config, "eos_token_id", None)):
        known |= set(named if isinstance(named, list) else [named]) - {None}
    if not ends:
        return "it names no id that ends a message"
    if known and not known & {tokenizer.eos_token_id}:
        return f"it ends messages by id {tokenizer.eos_token_id}, the model by {sorted(known)}"
    return ""


def _sample_plainly(model: Any, ends: tuple[int, ...]) -> None:
    """Sample from what the model says and nothing else: a repetition penalty would be unknown to the update."""
    from transformers import GenerationConfig

    make: Any = GenerationConfig
    model.generation_config = make(eos_token_id=list(ends), pad_token_id=ends[0])


def _tokenizer_digest(folder: Path, tokenizer: Any) -> str:
    text = (folder / TOKENIZER).read_bytes() + str(tokenizer.chat_template).encode()
    return hashlib.sha256(text).hexdigest()


def _digest(folder: Path) -> str:
    made = hashlib.sha256((folder / CONFIG).read_bytes())
    for path in tensor_files(folder):
        with path.open("rb") as file:
            header = file.read(int.from_bytes(file.read(8), "little"))
        made.update(f"{path.name} {path.stat().st_size}".encode() + header)
    return made.hexdigest()
