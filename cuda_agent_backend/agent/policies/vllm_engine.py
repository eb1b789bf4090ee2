"""vLLM in this process, behind the same boundary (`make test-vllm` runs it)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuda_agent_backend.agent.policies.engine import Sampled
from cuda_agent_backend.agent.policies.spec import Sampling


class VllmEngine:
    """A `vllm.LLM`, given ids and asked for the log-probabilities of what it drew, after temperature and top_p."""

    def __init__(self, llm: Any, ends: Sequence[int], sampling: Sampling) -> None:
        self.llm, self.ends, self.sampling = llm, tuple(ends), sampling

    @property
    def window(self) -> int:
        """See `Engine`."""
        return int(self.llm.llm_engine.model_config.max_model_len)

    def generate(self, prompts: Sequence[Sequence[int]]) -> list[Sampled]:
        """See `Engine`."""
        from vllm import SamplingParams

        own = self.llm.get_default_sampling_params()
        wished = self.sampling
        parameters = [
            SamplingParams(
                temperature=own.temperature if wished.temperature is None else wished.temperature,
                top_p=own.top_p if wished.top_p is None else wished.top_p,
                max_tokens=min(wished.max_new_tokens, self.window - len(prompt)),
                seed=wished.seed,
                stop_token_ids=list(self.ends),
                logprobs=0,
                detokenize=False,
            )
            for prompt in prompts
        ]
        made = self.llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts], parameters, use_tqdm=False
        )
        return [self._sampled(one.outputs[0]) for one in made]

    def _sampled(self, output: Any) -> Sampled:
        ids = tuple(int(id) for id in output.token_ids)
        steps = zip(ids, output.logprobs, strict=True)
        logprobs = tuple(float(step[id].logprob) for id, step in steps)
        return Sampled(ids, logprobs, bool(ids) and ids[-1] in self.ends)


def load(
    folder: str, ends: Sequence[int], sampling: Sampling, memory_share: float, **more: Any
) -> VllmEngine:
    """A model by its name or folder. Raises what vLLM does.

    memory_share: of the device's memory that vLLM takes for itself; the rest is for the kernels that are tried there.
    more: arguments of `vllm.LLM`.
    """
    from vllm import LLM

    llm = LLM(
        model=folder,
        logprobs_mode="processed_logprobs",
        enable_prefix_caching=True,
        gpu_memory_utilization=memory_share,
        **more,
    )
    return VllmEngine(llm, ends, sampling)
