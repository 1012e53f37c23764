"""Tensors on their way from one device to another, side by side."""

from __future__ import annotations

import torch

from cputrain.split.execution.flat_params import Packed

HERE = torch.device("cpu")


def brought(tensor):
    """As from another device."""
    return tensor.clone()


def test_what_is_packed_comes_out_as_it_was():
    """Of two types, in several orders of memory, one of them twice, some not there, one sparse."""
    twice = torch.randn(3, 4)
    tensors = [
        twice,
        None,
        torch.randn(5, dtype=torch.float64),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        twice,
        torch.randn(6, 4).t(),
        torch.randn(4, 6)[:, ::2],
        torch.eye(3).to_sparse(),
        torch.tensor(7.0),
        torch.empty(0, 3),
    ]
    found = Packed(tensors, HERE).fetch(brought)
    for one, other in zip(tensors, found, strict=True):
        if one is None:
            assert other is None
            continue
        assert other.layout == one.layout
        assert torch.equal(other.to_dense(), one.to_dense())
        assert other is not one
    assert found[3].is_contiguous(memory_format=torch.channels_last)


def test_memory_is_used_again_where_it_fits():
    memory = {}
    first = Packed([torch.ones(3)], HERE, memory).fetch(brought)
    (kept,) = memory.values()
    both = [Packed([torch.full((3,), value)], HERE, memory) for value in (2.0, 3.0)]
    second, _ = (one.fetch(brought) for one in reversed(both))
    assert second[0].tolist() == [3.0] * 3
    second = both[0].fetch(brought)
    assert memory[torch.float32] is kept
    assert [one.tolist() for one in (*first, *second)] == [[1.0] * 3, [2.0] * 3]
    third = Packed([torch.zeros(2), torch.zeros(2)], HERE, memory).fetch(brought)
    assert memory[torch.float32] is not kept
    assert [one.tolist() for one in third] == [[0.0] * 2] * 2
