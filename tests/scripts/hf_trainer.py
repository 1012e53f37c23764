"""A small GPT-2 from a configuration, with the Trainer of transformers: evaluation, saving."""

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Counting(Dataset):
    """Sequences that count on from somewhere."""

    def __init__(self, length, vocabulary=48, size=24):
        start = torch.randint(vocabulary, (length, 1))
        self.ids = (start + torch.arange(size)) % vocabulary

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class Printing(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        for key in ("loss", "eval_loss"):
            if key in logs:
                print(f"loss {logs[key]}")


set_seed(3)
config = GPT2Config(
    vocab_size=48, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config)
args = TrainingArguments(
    output_dir="out",
    use_cpu=True,
    num_train_epochs=1,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    warmup_steps=2,
    max_grad_norm=1.0,
    eval_strategy="steps",
    eval_steps=8,
    save_steps=8,
    logging_steps=1,
    disable_tqdm=True,
    report_to="none",
    seed=3,
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=Counting(128),
    eval_dataset=Counting(16),
    callbacks=[Printing()],
)
trainer.train()
trainer.save_model("final")
torch.save(model.state_dict(), "weights.pt")
