"""A small GPT-2 learns one kind of sentences, and then, with LoRA, those of another kind.

The model is transformers' own, with random weights; PEFT adds the adapters. Nothing is downloaded.

    python examples/lora.py              # a loop
    python examples/lora.py --trainer    # transformers' Trainer
"""

import argparse
import random
import tempfile
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCABULARY = 8192
LENGTH = 128
BATCH = 8

ANIMALS = ["fox", "hen", "cat", "owl", "goat", "mule", "hare", "newt"]
DEEDS = ["sees", "follows", "paints", "feeds", "counts", "carries"]
PARTS = ["engine", "valve", "pump", "rotor", "gear", "filter", "sensor", "switch"]
REPAIRS = ["replaces", "tests", "cleans", "drives", "blocks", "feeds"]
WORDS = {
    word: number
    for number, word in enumerate(dict.fromkeys(["the", ".", *ANIMALS, *DEEDS, *PARTS, *REPAIRS]))
}


def make_blocks(subjects: list[str], verbs: list[str], count: int) -> torch.Tensor:
    """Return sentences of the subjects and verbs as blocks of token numbers."""
    rng = random.Random(0)
    tokens: list[int] = []
    while len(tokens) < count * LENGTH:
        subject = rng.choice(subjects)
        # every subject has verbs of its own, which is what there is to learn
        verb = verbs[(subjects.index(subject) + rng.randrange(2)) % len(verbs)]
        sentence = f"the {subject} {verb} the {rng.choice(subjects)} ."
        tokens += [WORDS[word] for word in sentence.split()]
    return torch.tensor(tokens[: count * LENGTH]).view(count, LENGTH)


def train(model: torch.nn.Module, blocks: torch.Tensor, steps: int, rate: float) -> None:
    """Train in a loop, as one writes it without a trainer."""
    trainable = [param for param in model.parameters() if param.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=rate)
    model.train()
    for step in range(steps):
        batch = blocks[torch.arange(step * BATCH, (step + 1) * BATCH) % len(blocks)]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == steps - 1:
            print(f"  step {step:3d}  loss {loss.item():.4f}", flush=True)


def train_by_trainer(model: torch.nn.Module, blocks: torch.Tensor, steps: int, rate: float) -> None:
    """Train by transformers' Trainer."""
    options = TrainingArguments(
        output_dir=tempfile.gettempdir(),  # nothing is saved
        max_steps=steps,
        learning_rate=rate,
        per_device_train_batch_size=BATCH,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    samples = [{"input_ids": block, "labels": block} for block in blocks]
    Trainer(model=model, args=options, train_dataset=samples).train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=25, help="steps of each training")
    parser.add_argument("--trainer", action="store_true", help="train by transformers' Trainer")
    options = parser.parse_args()
    learn = train_by_trainer if options.trainer else train

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=256, n_layer=4, n_head=4)
    model = GPT2LMHeadModel(config)
    began = time.perf_counter()
    print(f"all {model.num_parameters():,} parameters, sentences about animals")
    learn(model, make_blocks(ANIMALS, DEEDS, 64), options.steps, 1e-3)

    lora = LoraConfig(
        r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, lora)
    trainable = sum(param.numel() for param in model.parameters() if param.requires_grad)
    print(f"{trainable:,} parameters of LoRA, sentences about machines")
    learn(model, make_blocks(PARTS, REPAIRS, 64), options.steps, 5e-3)
    print(f"{time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
