"""Calls that were seen before are asked for again without their kernel's Python, and are right
whatever is different about them."""

from __future__ import annotations

import signal
import threading
from functools import partial

import pytest
import torch

from cputrain.opencl import replay
from cputrain.opencl.replay import Replay
from cputrain.opencl.table import KERNELS

pytestmark = pytest.mark.usefixtures("forbidden")


@pytest.fixture(autouse=True)
def _nothing_is_known():
    replay._cache.clear()


def known():
    """Calls that are repeated from now on."""
    return sum(type(one) is Replay for one in replay._cache.values())


def there(*size, begin=0):
    return (torch.arange(torch.Size(size).numel()).reshape(size).float() + begin).to("ocl")


def learnt(call, *given):
    """The call is known: with these, or others of their forms."""
    before = known()
    for _ in range(4):
        call(*given)
    assert known() > before
    return call


def same(found, expected):
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


def test_another_tensor_of_the_same_form_gives_its_own_result():
    call = learnt(torch.add, there(3, 4), there(3, 4))
    kept = [call(there(3, 4, begin=one), there(3, 4, begin=7)) for one in range(4)]
    for begin, one in enumerate(kept):
        same(one, torch.arange(12.0).reshape(3, 4) * 2 + begin + 7)


def test_it_is_the_kernels_python_that_is_not_run(monkeypatch):
    ran = []

    def counted(*_):
        ran.append(1)
        return NotImplemented

    one = there(5)
    learnt(torch.exp, one)
    expected = torch.exp(one).cpu()
    monkeypatch.setitem(KERNELS, torch.ops.aten.exp.default, counted)
    same(torch.exp(one), expected)
    assert not ran
    with pytest.raises(NotImplementedError):
        torch.exp(there(6))
    assert ran


def test_both_may_be_one():
    call = learnt(torch.mul, there(6), there(6, begin=3))
    one = there(6)
    same(call(one, one), torch.arange(6.0) ** 2)
    replay._cache.clear()
    learnt(call, one, one)
    same(call(one, there(6, begin=3)), torch.arange(6.0) * (torch.arange(6.0) + 3))


def test_those_that_are_one_and_those_that_are_not_are_known_each():
    one = there(6)
    call = learnt(torch.mul, one, one)
    same(
        learnt(call, one, there(6))(one, there(6, begin=1)),
        torch.arange(6.0) * torch.arange(1.0, 7),
    )
    assert known() == 2
    same(call(one, one), torch.arange(6.0) ** 2)


def test_what_a_script_made_of_operators_is_run_by_itself():
    library = torch.library.Library("cputrain_tests", "DEF")
    library.define("scaled(Tensor x) -> Tensor")
    factors = iter(range(1, 9))
    library.impl("scaled", lambda x: x * next(factors), "CompositeImplicitAutograd")
    with torch.inference_mode():
        for factor in range(1, 9):
            same(torch.ops.cputrain_tests.scaled(there(3)), torch.arange(3.0) * factor)


def test_what_others_ask_for_meanwhile_is_not_repeated(monkeypatch):
    """A finaliser, say, that draws random numbers while a call is written down."""
    own = KERNELS[torch.ops.aten.exp.default]
    interrupts = []

    def interrupted(*given):
        if interrupts:
            interrupts.pop()
            torch.rand(8, device="ocl")
        return own(*given)

    monkeypatch.setitem(KERNELS, torch.ops.aten.exp.default, interrupted)
    one = there(5)
    torch.exp(one)
    interrupts.append(1)
    torch.exp(one)
    learnt(torch.exp, one)
    before = torch.ocl.get_rng_state()
    torch.exp(one)
    assert torch.equal(before, torch.ocl.get_rng_state())


def test_a_handler_of_a_signal_may_ask_as_well():
    """It comes while a kernel of the same kind is given its arguments."""
    call = learnt(torch.add, there(4), 1.0)
    found = []

    def handler(*_):
        found.append(call(there(4), 1.0))
        signal.setitimer(signal.ITIMER_REAL, 0.0005)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
    try:
        for turn in range(3000):
            one = there(4, begin=turn)
            same(call(one, 1.0), torch.arange(4.0) + turn + 1)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # the handler would set it again
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(found) > 3
    for one in found:
        same(one, torch.arange(4.0) + 1)


def test_views_of_ordinary_tensors_in_inference_mode():
    x = there(2, 3)
    with torch.inference_mode():
        for _ in range(5):
            same(x.view(6), torch.arange(6.0))
            same(x[1], torch.tensor([3.0, 4.0, 5.0]))
            same(x.t(), torch.arange(6.0).reshape(2, 3).t())
            assert [one.shape for one in x.chunk(2)] == [(1, 3), (1, 3)]
            assert not x.detach().is_inference()
            assert (x + 1).view(6).is_inference()
    x.view(6).requires_grad_().sum().backward()


def test_what_is_written_to_may_be_read_as_well(monkeypatch):
    one = there(6)
    learnt(torch.Tensor.add_, there(6), there(6))
    same(one.add_(one), torch.arange(6.0) * 2)
    whole = there(8)
    learnt(torch.Tensor.copy_, there(7), there(7, begin=1)[:])
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")  # the CPU refuses it
    with pytest.raises(RuntimeError, match="single memory location"):
        whole[:7].copy_(whole[1:])


@pytest.mark.parametrize("first", [1, 1.0, True, 0.0, -0.0])
@pytest.mark.parametrize("then", [1, 1.0, True, 0.0, -0.0])
def test_numbers_that_are_equal_may_not_be_the_same(first, then):
    whole = torch.arange(1, 5, dtype=torch.int32).to("ocl")
    learnt(torch.mul, whole, first)
    found, expected = torch.mul(whole, then), torch.mul(whole.cpu(), then)
    assert found.dtype is expected.dtype
    same(found, expected)
    assert torch.equal(found.cpu().double().signbit(), expected.double().signbit())


def test_an_argument_by_its_name_is_another():
    one, other = there(4), there(4, begin=9)
    learnt(partial(torch.sub, alpha=2), one, other)
    same(torch.sub(one, other), one.cpu() - other.cpu())
    same(torch.sub(one, other, alpha=2), one.cpu() - 2 * other.cpu())
    same(torch.sum(there(2, 2), 0, keepdim=True), torch.tensor([[2.0, 4.0]]))


def test_types_are_those_of_the_moment():
    whole = torch.arange(4, dtype=torch.int64).to("ocl")
    learnt(torch.true_divide, whole, 2)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.true_divide(whole, 2).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.true_divide(whole, 2).dtype is torch.float32


def test_forms_that_change_in_place_are_seen():
    one, other = there(2, 3), there(2, 3)
    learnt(torch.add, one, other)
    one.t_()
    other.t_()
    found = torch.add(one, other)
    assert found.size() == (3, 2)
    same(found, torch.arange(6.0).reshape(2, 3).t() * 2)
    learnt(torch.neg, there(4))
    grown = there(4)
    grown.resize_(2)
    same(torch.neg(grown), torch.tensor([-0.0, -1.0]))
    grown.data = there(3)
    same(torch.neg(grown), -torch.arange(3.0))


def test_views_are_of_the_memory_that_is_given():
    learnt(lambda one: one[1:].view(2, 2), there(3, 2))
    whole = there(3, 2)
    part = whole[1:].view(2, 2)
    part.zero_()
    same(whole, torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    assert part._base is not None


def test_several_results():
    def call(one):
        return torch.ops.aten.native_layer_norm(one, [3], None, None, 1e-5)

    learnt(call, there(4, 3))
    one = there(4, 3, begin=1) ** 2
    found = call(one)
    expected = torch.ops.aten.native_layer_norm(one.cpu(), [3], None, None, 1e-5)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, check_stride=False)
    assert len({id(one.memory) for one in found}) == 3


def test_lists_of_tensors():
    def call(ones, others):
        torch._foreach_add_(ones, others, alpha=-0.5)

    learnt(call, [there(3), there(2, 2)], [there(3), there(2, 2)])
    ones = [there(3), there(2, 2)]
    call(ones, [there(3, begin=1), there(2, 2, begin=1)])
    same(ones[0], torch.arange(3.0) - 0.5 * (torch.arange(3.0) + 1))
    torch._foreach_add_(ones, [there(3), there(2, 2)], alpha=-0.25)  # a rate of its own
    same(ones[1], torch.arange(4.0).reshape(2, 2) * 0.25 - 0.5)


def test_random_numbers_go_on():
    """The same as if each were drawn anew."""

    def drawn(*, forgets):
        torch.manual_seed(3)
        found = []
        for _ in range(6):
            if forgets:
                replay._cache.clear()
            found.append(torch.nn.functional.dropout(torch.ones(50, device="ocl"), 0.5).cpu())
            found.append(torch.ones(50, device="ocl").uniform_().cpu())
        return found

    anew = drawn(forgets=True)
    again = drawn(forgets=False)
    assert known() > 0
    for one, other in zip(anew, again, strict=True):
        same(one, other)
    assert len({tuple(one.tolist()) for one in again}) == len(again)


def test_what_looks_at_values_is_never_repeated(monkeypatch):
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")
    for count in (1, 2, 3, 4, 5, 6):
        one = torch.tensor([1.0] * count + [0.0] * (6 - count)).to("ocl")
        assert len(torch.nonzero(one)) == count
        assert one.sum().item() == count


def test_a_product_of_parts_keeps_no_memory_longer_than_it_needs():
    """What was between is free for the next as soon as it is used up."""

    def call(one):
        return torch.nn.functional.gelu(one @ one, approximate="tanh")

    with torch.no_grad():
        one = there(64, 64) / 4096
        call(one)
        before = torch.ocl.memory_stats()["allocated"]
        learnt(call, one)
        kept = [call(one) for _ in range(3)]
        assert torch.ocl.memory_stats()["allocated"] - before <= 3 * 64 * 64 * 4 * 1.25
        assert torch.equal(kept[0].cpu(), kept[2].cpu())


def test_threads_each_get_their_own():
    """While one writes down what a call asks for, another asks for the like."""
    wrong = []

    def work(number):
        for turn in range(40):
            size = 3 + turn % 5
            one = there(size, begin=number)
            for _ in range(4):
                one = one * 2 + number
            expected = torch.arange(float(size)) + number
            for _ in range(4):
                expected = expected * 2 + number
            if not torch.equal(one.cpu(), expected):
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


def test_no_more_than_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(replay, "MAX_ENTRIES", 20)
    for size in range(1, 60):
        same(there(size) + 1, torch.arange(float(size)) + 1)
    assert len(replay._cache) <= 20
