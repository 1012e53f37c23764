"""Models that return whatever people return, and are given whatever people give."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    hidden: list


class Bag(dict):
    __getattr__ = dict.__getitem__


Pair = namedtuple("Pair", "logits hidden")


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.body = nn.Linear(6, 12)
        self.head = nn.Linear(12, 3)
        self.calls = 0

    def compile(self, optimizer, loss):
        """Of the same name as torch's, and something else."""
        self.optimizer = optimizer(self.parameters(), lr=0.05)
        self.loss = loss
        return self

    def forward(self, *, model, self_args=(), **call):
        self.calls += 1
        hidden = torch.relu(self.body(model["x"]))
        logits = self.head(hidden)
        if self.kind == "dict":
            return {"logits": logits, "hidden": (hidden, None), "step": self.calls}
        if self.kind == "dataclass":
            return Output(loss=self.loss(logits, model["y"]), logits=logits, hidden=[hidden])
        if self.kind == "namespace":
            return SimpleNamespace(logits=logits, hidden=hidden)
        if self.kind == "bag":
            return Bag(logits=logits, hidden=OrderedDict(last=hidden))
        return Pair(logits, hidden)


torch.manual_seed(0)
x, y = torch.randn(16, 6), torch.randint(3, (16,))
for kind in ("dict", "dataclass", "namespace", "bag", "tuple"):
    net = Net(kind).compile(torch.optim.Adam, nn.functional.cross_entropy)
    for _ in range(3):
        out = net(model={"x": x, "y": y}, call=1)
        logits = out["logits"] if kind == "dict" else out.logits
        loss = net.loss(logits, y) + (out.hidden[0].mean() * 0 if kind == "dataclass" else 0)
        net.optimizer.zero_grad()
        loss.backward()
        net.optimizer.step()
        print(f"loss {loss.item()}")
        print(f"loss {float(np.abs(logits.detach().numpy()).mean())}")
    assert net.calls == 3

config = BertConfig(
    vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=16, num_labels=2, attn_implementation="sdpa",
)  # fmt: skip
bert = BertForSequenceClassification(config)
optimizer = torch.optim.AdamW(bert.parameters(), lr=1e-3)
for _ in range(5):
    ids = torch.randint(30, (8, 12))
    mask = (torch.arange(12) < torch.randint(6, 13, (8, 1))).long()
    out = bert(input_ids=ids, attention_mask=mask, labels=ids[:, 0] % 2, output_hidden_states=True)
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {out.loss.item()}")
    print(f"loss {float(out.hidden_states[-1].detach().numpy().mean() + 1)}")
