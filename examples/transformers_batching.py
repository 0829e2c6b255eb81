"""Continuous batching of ``transformers`` with CUDA graphs, on a small Llama with random weights: a graph for each padded
number of queries and of keys that it meets, captured in its own thread."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

if not __package__:  # as a script, which finds its own folder only
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.common import Example, main

VOCAB = 1024
PATIENCE_SECONDS = 120


class ContinuousBatching:
    """One manager that lives as long as this, and generates greedily for a batch of requests at a time.

    ``model.generate_batch`` does the same in one call. It adds its requests while the manager runs already, so which of them
    meet in a step depends on how two threads go; here all of them wait when it starts, and equal requests make equal steps.
    """

    step_is = "one token for each of a batch of requests, on the mean"
    timed_steps = 7

    def __init__(self, device: torch.device, small: bool = False) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        self.lengths = tuple(range(4, 12, 2)) if small else tuple(range(4, 52, 4))
        self.new_tokens = 4 if small else 24
        config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2 if small else 4,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=1024,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            attn_implementation="paged|sdpa",
        )
        self.model: Any = LlamaForCausalLM(config).to(device).eval()
        generation = GenerationConfig(
            max_new_tokens=self.new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0, bos_token_id=None
        )

        def manager(graphs: bool) -> Any:
            return self.model.init_continuous_batching(
                generation_config=generation,
                continuous_batching_config=ContinuousBatchingConfig(
                    block_size=16,
                    num_blocks=128,
                    max_batch_tokens=128,
                    max_requests_per_batch=16,
                    max_blocks_per_request=0,  # no path of flash attention's own
                    allow_block_sharing=False,
                    use_async_batching=False,
                    use_cuda_graph=graphs,
                    q_padding_interval_size=4,
                    kv_padding_interval_size=64,
                    return_logprobs=True,
                ),
            )

        eager = manager(graphs=False)  # loads the model's kernels, for what is measured to be the capture alone
        self.generate(eager, self.prompts(0), keep=False)
        self.manager = manager(graphs=True)

    def prompts(self, number: int) -> list[list[int]]:
        """Prompts of all lengths in an order of their own, with tokens by ``number`` alone."""
        rng = random.Random(number)
        lengths = rng.sample(self.lengths, len(self.lengths))
        return [[rng.randrange(VOCAB) for _ in range(length)] for length in lengths]

    def generate(self, manager: Any, prompts: list[list[int]], keep: bool = True) -> list[Any]:
        """The finished requests, in the order of their prompts.

        Raises:
            RuntimeError: a request failed, or did not finish in time.
        """
        status = getattr(manager, "background_thread_status", None)
        if status is not None:
            status.clear()  # as start() does: a manager that was stopped before takes no requests until then
        names = manager.add_requests(inputs=prompts, max_new_tokens=self.new_tokens)
        manager.start()
        done: dict[str, Any] = {}
        try:
            until = time.monotonic() + PATIENCE_SECONDS
            while len(done) < len(prompts) and time.monotonic() < until:
                result = manager.get_result(timeout=1)
                if result is None:
                    if not manager.is_running():
                        break
                elif result.error is not None:
                    raise RuntimeError(f"request {result.request_id} failed: {result.error}")
                elif result.is_finished():
                    done[result.request_id] = result
        finally:
            manager.stop(block=True, timeout=PATIENCE_SECONDS, keep_for_next_session=keep)
        if len(done) != len(prompts):
            raise RuntimeError(f"{len(prompts) - len(done)} of {len(prompts)} requests did not finish")
        return [done[name] for name in names]

    def capture(self) -> None:
        """Most graphs are captured by the first batch, when a number of queries and keys is met for the first time."""
        self.manager.warmup()
        self.generate(self.manager, self.prompts(0))

    def round(self, number: int) -> Iterator[Tensor]:
        for result in self.generate(self.manager, self.prompts(number)):
            yield torch.tensor(result.generated_tokens)
            yield torch.tensor(result.logprobs, dtype=torch.float64)

    def step(self, number: int) -> float:
        """Seconds of a whole batch by its number of tokens, from the first request that ran to the last that was done."""
        spans = [result.lifespan for result in self.generate(self.manager, self.prompts(0))]
        seconds: float = max(end for _, end in spans) - min(start for start, _ in spans)
        return seconds / self.new_tokens

    def close(self) -> None:
        self.model.destroy_cached_continuous_batching_manager()
        self.manager.batch_processor = None


EXAMPLE = Example("transformers_batching", ContinuousBatching, needs=("transformers",))

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
