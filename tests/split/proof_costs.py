"""What a proof and the watch cost: `python -m tests.split.proof_costs`, on an idle machine.

A row for each network: a step of plain torch, the proof in such steps, what each later call takes
to see that the proof still holds (the key), and how long samples are compared again for.
"""

from __future__ import annotations

import sys
import time
import warnings
from statistics import median

import torch
from torch import nn

from cputrain import Split
from cputrain.bench.networks.definitions import import_torchvision_models
from cputrain.split.proof import watch
from cputrain.split.proof.model_state import structure
from tests.torchvision_folder import FOLDER

STEPS = 12
WATCHED_S = 20.0
"""Seconds of training in which comparisons are counted, after the first."""


def networks():
    """Return networks of usual sizes, each with the arguments of a call."""
    import transformers

    sys.path.append(str(FOLDER))
    torchvision = import_torchvision_models()
    yield "MLP, 3 layers of 512, batch 256", _perceptron(), (torch.randn(256, 512),)
    yield "ResNet-18, batch 32 of 96 × 96", torchvision.resnet18(), (torch.randn(32, 3, 96, 96),)
    yield (
        "ResNet-50, batch 16 of 128 × 128",
        torchvision.resnet50(),
        (torch.randn(16, 3, 128, 128),),
    )
    bert = transformers.BertModel(
        transformers.BertConfig(num_hidden_layers=6, hidden_size=384, num_attention_heads=6)
    )
    yield "BERT, 6 layers of 384, batch 16 of 128", bert, (torch.randint(30_000, (16, 128)),)
    gpt = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=6, n_head=6, n_embd=384, vocab_size=5_000)
    )
    yield "GPT-2, 6 layers of 384, batch 16 of 128", gpt, (torch.randint(5_000, (16, 128)),)


def _perceptron():
    layers = [one for _ in range(3) for one in (nn.Linear(512, 512), nn.ReLU())]
    return nn.Sequential(*layers)


def step(model, parameters, arguments):
    out = model(*arguments)
    out = out if isinstance(out, torch.Tensor) else out[0]
    out.square().mean().backward()
    for parameter in parameters:
        parameter.grad = None


def seconds(function) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def row(name, model, arguments) -> str:
    parameters = list(model.parameters())
    step(model, parameters, arguments)
    plain = median(seconds(lambda: step(model, parameters, arguments)) for _ in range(STEPS))
    split = Split(model, replicas=2)
    step(split, parameters, arguments)
    dispatcher = split._split_dispatcher
    assert split.calls_divided == 1, split.why_not
    key = median(seconds(lambda: structure(model, dispatcher._names())) for _ in range(20))
    watch.FIRST_PAUSE_S, proof = 0.0, dispatcher.proof_s
    dispatcher._check_schedule.begin(0.0)  # the first comparison comes at once, and is left out
    step(split, parameters, arguments)
    compared = before = dispatcher.watch_s
    begin = time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < WATCHED_S:
        step(split, parameters, arguments)
    share = (dispatcher.watch_s - before) / elapsed
    watched = f"{share:.2%}" if share else "none yet"
    return (
        f"| {name} | {plain * 1e3:.0f} | {proof / plain:.1f} | {key * 1e3:.2f} | "
        f"{key / plain:.2%} | {compared * 1e3:.0f} | {watched} |"
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("| network | plain step, ms | proof, steps | key, ms | of a step ", end="")
    print(f"| a comparison, ms | of {WATCHED_S:.0f} s of training |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for one in networks():
        print(row(*one), flush=True)
