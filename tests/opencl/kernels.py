"""Kernels that are more than an expression, without the CPU to help."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cputrain.opencl  # noqa: F401

pytestmark = pytest.mark.usefixtures("forbidden")


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.tuples(*[st.sampled_from([1, 2, 15, 16, 17, 63, 64, 65, 130])] * 3),
    turned=st.tuples(st.booleans(), st.booleans()),
    kind=st.sampled_from([torch.float32, torch.float64]),
    batch=st.sampled_from([None, 1, 3]),
    third=st.sampled_from([None, "row", "column", "whole"]),
)
def test_products_of_matrices(sizes, turned, kind, batch, third):
    rows, deep, columns = sizes
    several = [] if batch is None else [batch]

    def matrix(n, m, is_turned):
        made = torch.randn(*several, *((m, n) if is_turned else (n, m)), dtype=kind)
        return made.mT if is_turned else made

    one, two = matrix(rows, deep, turned[0]), matrix(deep, columns, turned[1])
    shape = {"row": (columns,), "column": (rows, 1), "whole": (rows, columns)}.get(third)
    if shape is None:
        expected = one @ two
        found = (torch.bmm if several else torch.mm)(one.to("ocl"), two.to("ocl"))
    else:
        add = torch.baddbmm if several else torch.addmm
        more = torch.randn(*shape, dtype=kind)
        expected = add(more, one, two, beta=0.5, alpha=2)
        found = add(more.to("ocl"), one.to("ocl"), two.to("ocl"), beta=0.5, alpha=2)
    error = float((found.cpu() - expected).norm() / expected.norm().clamp_min(1e-6))
    assert error <= (1e-5 if kind is torch.float32 else 1e-13)
    assert found.is_contiguous()


def test_what_was_asked_to_count_for_nothing_does():
    nothing = torch.full((3,), float("nan"), device="ocl")
    found = torch.addmm(
        nothing, torch.ones(2, 4, device="ocl"), torch.ones(4, 3, device="ocl"), beta=0
    )
    assert found.cpu().tolist() == [[4.0] * 3] * 2


@settings(max_examples=40, deadline=None)
@given(
    size=st.lists(st.sampled_from([1, 2, 3, 7, 65, 300]), min_size=1, max_size=4).filter(
        lambda size: torch.Size(size).numel() < 100_000
    ),
    data=st.data(),
)
def test_sums_over_any_dimensions(size, data):
    dims = data.draw(st.lists(st.integers(0, len(size) - 1), min_size=1, unique=True))
    order = data.draw(st.permutations(range(len(size))))
    x = torch.randn(size).permute(order)
    there = x.to("ocl")
    for reduce in (torch.sum, torch.mean, torch.amax, torch.amin):
        for keep in (False, True):
            torch.testing.assert_close(
                reduce(there, dims, keepdim=keep).cpu(), reduce(x, dims, keepdim=keep),
                rtol=1e-4, atol=1e-4,
            )  # fmt: skip


def test_sums_are_the_same_in_every_run():
    x = torch.randn(1 << 18).to("ocl")
    assert len({x.sum().item() for _ in range(5)}) == 1


@pytest.mark.parametrize("kind", [torch.nn.Softmax, torch.nn.LogSoftmax])
def test_rows_of_every_kind(kind):
    x = torch.randn(5, 6, 7) * 30
    for dim in range(3):
        torch.testing.assert_close(kind(dim)(x.to("ocl")).cpu(), kind(dim)(x), rtol=1e-4, atol=1e-5)


def test_a_perceptron_trains_without_the_cpu():
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 4))
    twin = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 4))
    twin.load_state_dict(model.state_dict())
    model.to("ocl")
    x, y = torch.randn(32, 8), torch.randn(32, 4)
    curves = []
    for trained, where in ((model, "ocl"), (twin, "cpu")):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = ((trained(x.to(where)) - y.to(where)) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(losses)
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    assert curves[0][-1] < curves[0][0]
