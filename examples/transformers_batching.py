"""Continuous batching of ``transformers`` with CUDA graphs, on a small model with random weights.

python -m examples.transformers_batching [--small]
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from torch import Tensor

from examples.common import NeedsPackage, Options, main

__all__ = ["TransformersBatching"]

VOCAB = 1024


def _transformers() -> Any:
    try:
        import transformers
        from transformers.generation import ContinuousBatchingConfig, GenerationConfig
    except ImportError:
        raise NeedsPackage("this example needs transformers 5.17 or newer: pip install transformers") from None
    return transformers, ContinuousBatchingConfig, GenerationConfig


class TransformersBatching:
    """Captures happen where the batcher meets a shape for the first time, in its own thread: the first round captures."""

    def __init__(self, options: Options) -> None:
        transformers, batching, generation = _transformers()
        transformers.logging.set_verbosity_error()
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2 if options.small else 8,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=512,
            attn_implementation="paged|sdpa",
            tie_word_embeddings=False,
        )
        self.model = transformers.LlamaForCausalLM(config).to("cuda").eval()
        self.requests = 6 if options.small else 12
        self.generation = generation(
            max_new_tokens=6 if options.small else 16, do_sample=False, eos_token_id=-1, pad_token_id=0, bos_token_id=1
        )
        self.batching = batching(
            block_size=32,
            num_blocks=64,
            max_batch_tokens=256,
            max_blocks_per_request=0,
            use_cuda_graph=True,
            use_async_batching=False,
            q_padding_interval_size=8,
            kv_padding_interval_size=256,
            allow_block_sharing=False,
        )
        self.manager: Any = None

    def _start(self) -> None:
        self.manager = self.model.init_continuous_batching(
            generation_config=self.generation, continuous_batching_config=self.batching
        )
        self.manager.start()

    def capture(self) -> None:
        self._start()
        for turn in range(3):
            self.round(turn)

    def round(self, turn: int) -> list[Tensor]:
        draw = random.Random(turn)
        prompts = [[draw.randrange(2, VOCAB) for _ in range(draw.randint(4, 24))] for _ in range(self.requests)]
        return self._generate(prompts)

    def _generate(self, prompts: list[list[int]]) -> list[Tensor]:
        names = self.manager.add_requests(inputs=prompts)
        found: dict[str, Any] = {}
        while len(found) < len(prompts):
            result = self.manager.get_result(timeout=5)
            if result is None:
                if not self.manager.is_running():
                    raise RuntimeError("the batcher has stopped")
            elif result.error is not None:
                raise RuntimeError(f"a request failed: {result.error}")
            elif result.is_finished():
                found[result.request_id] = result
        return [torch.tensor(found[name].generated_tokens) for name in names]

    def step(self) -> None:
        self._generate([[5, 6, 7, 8]])

    def close(self) -> None:
        if self.manager is not None:
            self.manager.stop(block=True)
        self.manager = None


if __name__ == "__main__":
    sys.exit(main(TransformersBatching))
