"""A small GPT-2 with the Trainer of transformers that is stopped and gone on with."""

import argparse
import hashlib

import torch
from safetensors.torch import load_file
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Counting(Dataset):
    def __init__(self, length, vocabulary=40, size=16):
        start = torch.randint(vocabulary, (length, 1))
        self.ids = (start + torch.arange(size)) % vocabulary

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class Printing(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        for key in ("loss", "grad_norm", "learning_rate", "eval_loss", "eval_accuracy"):
            if key in logs:
                print(state.global_step, key, float(logs[key]))


def accuracy(prediction):
    right = prediction.predictions[:, :-1].argmax(-1) == prediction.label_ids[:, 1:]
    return {"accuracy": float(right.mean())}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--resume", default=None)
    parser.add_argument("--folder", default="out")
    options = parser.parse_args()
    set_seed(3)
    config = GPT2Config(
        vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    args = TrainingArguments(
        output_dir=options.folder, use_cpu=True, max_steps=12, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, learning_rate=2e-3, warmup_steps=2, eval_strategy="steps",
        eval_steps=3, save_steps=3, logging_steps=1, disable_tqdm=True, report_to="none",
        seed=3, load_best_model_at_end=True, metric_for_best_model="eval_loss",
    )  # fmt: skip

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop |= state.global_step >= options.steps

    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=args,
        train_dataset=Counting(64),
        eval_dataset=Counting(16),
        compute_metrics=accuracy,
        callbacks=[Printing(), Stop(), EarlyStoppingCallback(3)],
    )
    trainer.train(resume_from_checkpoint=options.resume)
    trainer.save_model(f"{options.folder}/final")
    weights = load_file(f"{options.folder}/final/model.safetensors")
    for name, value in sorted(weights.items()):
        print(name, value.dtype, tuple(value.shape), value.double().abs().sum().item())
    last = f"{options.folder}/checkpoint-{options.steps}"
    state = torch.load(f"{last}/optimizer.pt", weights_only=True)
    for index, entry in state["state"].items():
        print(index, {k: (v.dtype, tuple(v.shape), v.stride()) for k, v in entry.items()})
    print([sorted(group) for group in state["param_groups"]])
    random = torch.load(f"{last}/rng_state.pth", weights_only=False)
    print("random", hashlib.sha256(random["cpu"].numpy().tobytes()).hexdigest())
