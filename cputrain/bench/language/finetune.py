"""Train a GPT-2 or a BERT of transformers, whole or by LoRA, on random tokens, with AdamW.

    python cputrain/bench/language/finetune.py --size 125 --method lora

The model has random weights and transformers' defaults, dropout included. Nothing is downloaded.
"""

import argparse
import json
import time
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

SIZES: dict[int, tuple[int, int, int]] = {60: (512, 10, 8), 125: (768, 12, 12)}
"""Width, layers and heads by millions of parameters; those of the larger one are GPT-2's."""


def make_gpt2(size: int, length: int) -> torch.nn.Module:
    """Return a GPT-2 for sequences of a length."""
    width, num_layers, num_heads = SIZES[size]
    return GPT2LMHeadModel(
        GPT2Config(n_positions=length, n_embd=width, n_layer=num_layers, n_head=num_heads)
    )


def make_bert(size: int, length: int) -> torch.nn.Module:
    """Return a BERT for sequences of a length."""
    width, num_layers, num_heads = SIZES[size]
    return BertForMaskedLM(
        BertConfig(
            max_position_embeddings=length, hidden_size=width, intermediate_size=4 * width,
            num_hidden_layers=num_layers, num_attention_heads=num_heads,
        )
    )  # fmt: skip


MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt2": (make_gpt2, {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    "bert": (make_bert, {"target_modules": ["query", "value"]}),
}
"""For each architecture, its function and where PEFT adds adapters."""


def make_model(name: str, size: int, method: str, length: int) -> torch.nn.Module:
    """Return the model; with "lora", the weights of PEFT's adapters alone require gradients."""
    make, places = MODELS[name]
    model: torch.nn.Module = make(size, length)
    if method == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, **places))
    return model.train()


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument(
        "--size", type=int, choices=SIZES, default=60, help="millions of parameters"
    )
    parser.add_argument("--method", choices=("full", "lora"), default="full")
    parser.add_argument("--steps", type=int, default=4, help="timed steps (default: 4)")
    parser.add_argument("--batch", type=int, default=4, help="sequences in a batch (default: 4)")
    parser.add_argument("--length", type=int, default=512, help="tokens in a sequence")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = make_model(options.model, options.size, options.method, options.length)
    optimizer = torch.optim.AdamW(
        [param for param in model.parameters() if param.requires_grad], lr=1e-4
    )
    config: Any = model.config
    losses, seconds = [], []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        tokens = torch.randint(config.vocab_size, (options.batch, options.length))
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
