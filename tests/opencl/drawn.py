"""Random numbers of the device: Philox, so that a seed means the same on every device."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import cputrain.opencl  # noqa: F401

pytestmark = pytest.mark.usefixtures("forbidden")

MANY = 100_000


def test_they_are_philoxs():
    """The first numbers of Philox 4x32-10 of counter 0 under key 0 are known."""
    torch.manual_seed(0)
    assert torch.rand(1, device="ocl").item() == (0x6627E8D5 >> 8) / 2**24


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_they_are_spread_as_they_should_be(kind):
    even = torch.rand(MANY, device="ocl", dtype=kind).cpu()
    assert 0 <= even.min() < even.max() < 1
    assert even.mean().item() == pytest.approx(1 / 2, abs=5e-3)
    assert even.var().item() == pytest.approx(1 / 12, abs=5e-3)
    normal = torch.randn(MANY, device="ocl", dtype=kind).cpu()
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert (normal**power).mean().item() == pytest.approx(moment, abs=0.1)
    between = torch.empty(MANY, device="ocl", dtype=kind).uniform_(-3, 5).cpu()
    assert -3 <= between.min() < -2.9
    assert 4.9 < between.max() < 5
    whole = torch.randint(-2, 5, (MANY,), device="ocl").cpu()
    assert sorted(set(whole.tolist())) == list(range(-2, 5))
    assert torch.bincount(whole + 2).float().std() < MANY / 7 * 0.03


def test_dropout_leaves_what_it_should_and_its_gradient_is_of_the_same():
    x = torch.ones(MANY, device="ocl", requires_grad=True)
    out = functional.dropout(x, 0.3)
    assert (out.cpu() == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert out.mean().item() == pytest.approx(1, abs=0.01)
    out.sum().backward()
    assert torch.equal(x.grad.cpu(), out.detach().cpu())


def test_a_seed_begins_them_anew_and_no_two_draws_are_alike():
    def drawn():
        return [torch.rand(9, device="ocl").tolist(), torch.randn(9, device="ocl").tolist(),
                torch.rand(9, device="ocl").tolist()]  # fmt: skip

    torch.manual_seed(5)
    first = drawn()
    assert first[0] != first[2]
    torch.manual_seed(5)
    assert drawn() == first
    assert drawn() != first
    torch.manual_seed(6)
    assert drawn() != first


def test_where_they_are_is_kept_and_put_back():
    torch.rand(7, device="ocl")
    state = torch.ocl.get_rng_state()
    first = torch.rand(5, device="ocl").tolist()
    torch.ocl.set_rng_state(state)
    assert torch.rand(5, device="ocl").tolist() == first
    with pytest.raises(RuntimeError, match="16 bytes"):
        torch.ocl.set_rng_state(torch.get_rng_state())
    torch.ocl.set_rng_state(state)
    with torch.random.fork_rng(devices=[0], device_type="ocl"):
        torch.rand(100, device="ocl")
    assert torch.rand(5, device="ocl").tolist() == first


def test_what_is_computed_again_in_a_backward_draws_the_same():
    x = torch.ones(64, device="ocl", requires_grad=True)
    out = checkpoint(lambda one: functional.dropout(one, 0.5) * one, x, use_reentrant=False)
    out.sum().backward()
    assert torch.equal(x.grad.cpu(), 2 * out.detach().cpu())


def test_a_generator_that_is_given_is_used():
    def drawn(where):
        own = torch.Generator().manual_seed(4)
        return torch.empty(6, device=where).uniform_(generator=own).cpu()

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CPUTRAIN_OCL_FALLBACK")
        assert torch.equal(drawn("ocl"), drawn("cpu"))
