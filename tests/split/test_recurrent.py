"""Recurrent layers with dropout between them: the random numbers of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cputrain import Split

LAYERS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    "projections": lambda *sizes, **options: nn.LSTM(*sizes, proj_size=5, **options),
}  # fmt: skip

OPTIONS: list[dict[str, Any]] = [
    {}, {"bidirectional": True}, {"bias": False}, {"bias": False, "bidirectional": True},
]  # fmt: skip


class Reads(nn.Module):
    """A recurrent layer: its outputs, or its last states; from given states, too."""

    def __init__(
        self, layer: nn.RNNBase, *, takes_states: bool = False, gives_states: bool = False
    ) -> None:
        super().__init__()
        self.layer, self.takes_states, self.gives_states = layer, takes_states, gives_states

    def forward(self, data: Tensor) -> Tensor:
        states = None
        if self.takes_states:
            size = self.layer.num_layers * (2 if self.layer.bidirectional else 1)
            states = data.mean(1).mean(1) * data.new_ones(size, self.layer.hidden_size, 1)
            states = states.transpose(1, 2).contiguous()
            if isinstance(self.layer, nn.LSTM):
                states = (states, states * 2)
        outputs, last = self.layer(data, states)
        if self.gives_states:
            return sum(each.transpose(0, 1).flatten(1).sum(1) for each in last)
        return outputs


def results(model: nn.Module, data: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    model.zero_grad()
    output = model(data)
    output.square().sum().backward()
    grads = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    return [output.detach(), *grads, torch.rand(1)]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_shards_drop_what_the_whole_batch_drops(
    kind: str, options: dict[str, Any], exactly: None
) -> None:
    layer = LAYERS[kind](8, 16, 3, dropout=0.3, batch_first=True, **options)
    takes_states = kind in ("lstm", "gru") and not options
    model = Reads(layer, takes_states=takes_states, gives_states=kind == "lstm")
    data = torch.randn(12, 7, 8)
    expected = results(model, data)
    for way in ({"replicas": 2}, {"reproducible": 5}):
        split = Split(model, **way)
        for result, wanted in zip(results(split, data), expected, strict=True):
            torch.testing.assert_close(result, wanted)
        assert split.calls_divided == 1


def test_evaluation_and_a_single_layer_are_torchs_own() -> None:
    data = torch.randn(12, 7, 8)
    layers = [
        nn.GRU(8, 16, 2, dropout=0.3, batch_first=True).eval(),
        nn.GRU(8, 16, 1, batch_first=True),
        nn.GRU(8, 16, 2, batch_first=True),
    ]
    for layer in layers:
        split = Split(Reads(layer), replicas=2)
        torch.testing.assert_close(split(data), Reads(layer)(data))
        assert split.calls_divided == 1
