"""Train a GPT-2 of transformers, whole or by LoRA, on random tokens, with AdamW.

    python cputrain/bench/language/finetune.py --size 125 --method lora

The model has random weights and transformers' defaults, dropout included. Nothing is downloaded.
"""

import argparse
import json
import time
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

SIZES: dict[int, dict[str, Any]] = {
    60: {"n_embd": 512, "n_layer": 10, "n_head": 8},
    125: {"n_embd": 768, "n_layer": 12, "n_head": 12},
}
"""Shapes by millions of parameters; of the larger one by GPT-2's authors."""


def make_model(size: int, method: str, length: int) -> torch.nn.Module:
    """Return the model; with "lora", the weights of PEFT's adapters alone require gradients."""
    config = GPT2Config(n_positions=length, **SIZES[size])
    model: torch.nn.Module = GPT2LMHeadModel(config)
    if method == "lora":
        from peft import LoraConfig, get_peft_model

        options = LoraConfig(
            r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True,
            task_type="CAUSAL_LM",
        )  # fmt: skip
        model = get_peft_model(model, options)
    return model.train()


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--size", type=int, choices=SIZES, default=60, help="millions of parameters"
    )
    parser.add_argument("--method", choices=("full", "lora"), default="full")
    parser.add_argument("--steps", type=int, default=4, help="timed steps (default: 4)")
    parser.add_argument("--batch", type=int, default=4, help="sequences in a batch (default: 4)")
    parser.add_argument("--length", type=int, default=512, help="tokens in a sequence")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = make_model(options.size, options.method, options.length)
    optimizer = torch.optim.AdamW(
        [param for param in model.parameters() if param.requires_grad], lr=1e-4
    )
    vocabulary = GPT2Config().vocab_size
    losses, seconds = [], []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        tokens = torch.randint(vocabulary, (options.batch, options.length))
        begin = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    tokens_per_step = options.batch * options.length
    result = {
        "losses": losses, "seconds_per_step": seconds[1:], "samples_per_step": tokens_per_step,
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
