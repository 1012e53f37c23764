"""Kernels that are more than an expression, without the CPU to help."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import cputrain.opencl  # noqa: F401
from cputrain.opencl.ops import winograd

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


@pytest.mark.parametrize("shape", [(3_000_000,), (3_000_000, 2), (20_000, 150)])
def test_sums_of_many_lose_no_digits(shape):
    x = torch.full(shape, 0.1)
    for dim in (0, tuple(range(len(shape)))):
        found = x.to("ocl").sum(dim).cpu().double()
        torch.testing.assert_close(found, x.double().sum(dim), rtol=2e-6, atol=0)
        torch.testing.assert_close(x.to("ocl").mean(dim).cpu(), x.mean(dim), rtol=2e-6, atol=0)


def test_sums_are_the_same_in_every_run():
    x = torch.randn(1 << 18).to("ocl")
    assert len({x.sum().item() for _ in range(5)}) == 1


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64])
def test_the_largest_and_where_it_is(kind):
    x = torch.randint(-4, 5, (5, 300, 3)).to(kind)
    if kind.is_floating_point:
        x[1, 7, 2] = float("nan")
    there = x.to("ocl")
    for dim in range(3):
        for name in ("max", "min"):
            found, places = getattr(there, name)(dim)
            expected, first = getattr(x, name)(dim)
            assert torch.equal(found.cpu().nan_to_num(), expected.nan_to_num())
            assert torch.equal(places.cpu(), first)
        assert torch.equal(there.argmax(dim).cpu(), x.argmax(dim))
        assert torch.equal((there > 3).any(dim).cpu(), (x > 3).any(dim))
        assert torch.equal((there > -4).all(dim, keepdim=True).cpu(), (x > -4).all(dim, True))
    assert there.argmin().item() == x.argmin().item()
    assert (there == 0).any().item()
    assert not (there == 0).all().item()
    if kind.is_floating_point:
        torch.testing.assert_close(there.max().cpu(), x.max(), equal_nan=True)


@pytest.mark.parametrize("kind", [torch.nn.Softmax, torch.nn.LogSoftmax])
def test_rows_of_every_kind(kind):
    x = torch.randn(5, 6, 7) * 30
    for dim in range(3):
        torch.testing.assert_close(kind(dim)(x.to("ocl")).cpu(), kind(dim)(x), rtol=1e-4, atol=1e-5)


STEPS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=30, deadline=None)
@given(
    each=st.sampled_from([(1, 1, 5), (1, 3, 4), (1, 20, 17), (2, 2, 3), (4, 1, 2), (6, 1, 1)]),
    window=st.tuples(st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 3])),
    steps=STEPS, gaps=st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    edges=st.tuples(st.integers(0, 2), st.integers(0, 3)),
    size=st.tuples(st.integers(9, 20), st.integers(7, 33)), count=st.sampled_from([1, 5]),
    turned=st.booleans(), biased=st.booleans(), flat=st.booleans(),
)  # fmt: skip
def test_convolutions_and_their_gradients(
    each, window, steps, gaps, edges, size, count, turned, biased, flat
):
    """Groups, steps, gaps and edges of every kind, transposed as well, of images and of rows."""
    groups, reads, writes = each
    c, k = groups * reads, groups * writes
    numbers = [(one[1],) if flat else one for one in (steps, edges, gaps)]
    size, window = (size[1:], window[1:]) if flat else (size, window)
    if turned:
        weight = torch.randn(c, writes, *window, dtype=torch.float64)
        run = functional.conv_transpose1d if flat else functional.conv_transpose2d
        more = (0,) * len(size), groups
        options = (numbers[0], numbers[1], *more, numbers[2])
    else:
        weight = torch.randn(k, reads, *window, dtype=torch.float64)
        run = functional.conv1d if flat else functional.conv2d
        options = (*numbers, groups)
    x = torch.randn(count, c, *size, dtype=torch.float64)
    bias = torch.randn(k, dtype=torch.float64) if biased else None
    agree(lambda *given: run(*given, *options), x, weight, bias)


@settings(max_examples=15, deadline=None)
@given(
    channels=st.tuples(st.sampled_from([16, 20, 40]), st.sampled_from([16, 17])),
    size=st.tuples(st.integers(5, 14), st.integers(5, 14)), edge=st.integers(0, 2),
    count=st.integers(1, 5), few=st.booleans(), biased=st.booleans(),
)  # fmt: skip
def test_convolutions_with_fewer_multiplications(channels, size, edge, count, few, biased):
    """All images at a time, and some: rounding is somewhat more than that of the CPU."""
    c, k = channels
    x, weight = torch.randn(count, c, *size), torch.randn(k, c, 3, 3)
    bias = torch.randn(k) if biased else None
    with pytest.MonkeyPatch.context() as patch:
        if few:
            patch.setattr(winograd, "MEMORY_DIVISOR", 1 << 40)
            winograd._chunks.cache_clear()
        exact = [one if one is None else one.double() for one in (x, weight, bias)]
        agree(lambda *given: functional.conv2d(*given, padding=edge), x, weight, bias, close=1e-5,
              exact=exact)  # fmt: skip
    winograd._chunks.cache_clear()


def agree(run, *tensors, close=1e-12, exact=None):
    """What the device gives, and the gradients of all tensors, are the CPU's, of `exact` ones."""
    results = []
    for where, every in (("cpu", exact or tensors), ("ocl", tensors)):
        given = [
            one if one is None else one.to(where).detach().requires_grad_(one.is_floating_point())
            for one in every
        ]
        out = run(*given)
        torch.manual_seed(1)
        out.backward(torch.randn(out.shape, dtype=tensors[0].dtype).to(where, out.dtype))
        found = [one.grad for one in given if one is not None and one.is_floating_point()]
        results.append([one.detach().cpu() for one in (out, *found)])
    for expected, found in zip(*results, strict=True):
        assert found.shape == expected.shape
        assert (found - expected).norm() <= close * expected.norm().clamp_min(1e-3)


@settings(max_examples=25, deadline=None)
@given(
    size=st.tuples(st.integers(6, 15), st.integers(6, 20)), reach=st.integers(1, 4),
    step=st.integers(1, 3), edge=st.integers(0, 2), gap=st.integers(1, 2), more=st.booleans(),
    whole=st.booleans(), by=st.sampled_from([None, 3]), batch=st.booleans(),
)  # fmt: skip
def test_pools_and_their_gradients(size, reach, step, edge, gap, more, whole, by, batch):
    x = torch.randn(*([2] if batch else []), 3, *size, dtype=torch.float64)
    edge = min(edge, reach // 2)
    if gap * (reach - 1) < min(size):
        agree(lambda one: functional.max_pool2d(one, reach, step, edge, gap, more), x)
    agree(lambda one: functional.avg_pool2d(one, reach, step, edge, more, whole, by), x)
    agree(lambda one: functional.adaptive_avg_pool2d(one, (reach, step)), x)


@pytest.mark.parametrize("shape", [(4, 3, 5, 7), (64, 5), (3, 20, 9), (2, 300, 40, 3)])
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("scales", [True, False])
def test_norms_of_channels(shape, trains, scales):
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    model = kind(shape[1], affine=scales, dtype=torch.float64).train(trains)
    for one in model.parameters():
        nn.init.normal_(one)
    model.running_mean.normal_()
    model.running_var.uniform_(0.5, 2)
    x = torch.randn(shape, dtype=torch.float64) * 3 + 100  # (a mean that is far away)
    models = {"cpu": model, "ocl": copy.deepcopy(model).to("ocl")}
    agree(lambda one: models[one.device.type](one), x, close=1e-10)
    for one, other in zip(model.state_dict().values(), models["ocl"].state_dict().values(),
                          strict=True):  # fmt: skip
        torch.testing.assert_close(other.cpu(), one)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(7, 5), (3, 5, 4, 6)])
def test_losses_of_classes(reduction, shape):
    target = torch.randint(5, (shape[0], *shape[2:]))
    target.view(-1)[1] = -100  # counts for nothing
    weight = torch.rand(5, dtype=torch.float64)
    x = torch.randn(shape, dtype=torch.float64)
    agree(lambda one: functional.cross_entropy(
        one, target.to(one.device), weight.to(one.device), reduction=reduction
    ), x)  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_of_what_lies_apart_in_memory(reduction, weighted):
    """What is made dense for a kernel lives until it is through."""
    targets, weights = torch.randint(5, (33, 3)), torch.rand(5, 2, dtype=torch.float64)
    x = torch.randn(5, 33, dtype=torch.float64).t()

    def loss(one):
        weight = weights.to(one.device)[:, 0] if weighted else None
        return functional.cross_entropy(
            one, targets.to(one.device)[:, 0], weight, reduction=reduction
        )

    for _ in range(4):  # the later ones are repeated
        agree(loss, x)


def test_a_target_that_is_no_class_shows():
    x = torch.randn(4, 5, device="ocl")
    assert torch.isnan(functional.cross_entropy(x, torch.tensor([0, 9, 1, 2]).to("ocl"))).item()


def test_rows_that_are_picked_and_what_goes_back_to_them():
    numbers = torch.randint(11, (6, 9))
    numbers[2, 3] = 4
    weight = torch.randn(11, 7, dtype=torch.float64)
    agree(lambda one: functional.embedding(numbers.to(one.device), one, padding_idx=4), weight)
    x = torch.randn(3, 8, 5, dtype=torch.float64)
    places = torch.tensor([7, 0, 0, 3])
    found = x.to("ocl").index_select(1, places.to("ocl"))
    assert torch.equal(found.cpu(), x.index_select(1, places))


OPTIMIZERS = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
    (torch.optim.Adam, {"lr": 0.01}),
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.01, "maximize": True}),
    (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
]


HOWS = [
    (*one, how) for one in OPTIMIZERS for how in ({}, {"foreach": True}, {"fused": True})
    if one[0] is not torch.optim.RMSprop or "fused" not in how  # torch has none
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "how"), HOWS)
def test_steps_of_optimizers(kind, options, how):
    """More tensors than one kernel has, of many sizes."""
    model = nn.Sequential(
        *[layer for n in range(6) for layer in (nn.Linear(5 + n, 6 + n), nn.Tanh())]
    ).double()
    twin = copy.deepcopy(model).to("ocl")
    x = torch.randn(7, 5).double()
    for trained, where, more in ((model, "cpu", {}), (twin, "ocl", how)):
        optimizer = kind(trained.parameters(), **options, **more)
        for _ in range(4):
            optimizer.zero_grad()
            (trained(x.to(where)) ** 2).sum().backward()
            nn.utils.clip_grad_norm_(trained.parameters(), 0.5)
            optimizer.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-10, atol=1e-12)


def test_what_is_no_number_goes_through_and_everything_ends():
    """Whatever compares must not wait for a number to equal itself."""
    x = torch.full((2, 4, 6, 6), float("nan"), device="ocl", requires_grad=True)
    weight = torch.randn(4, 4, 3, 3, device="ocl", requires_grad=True)
    out = functional.max_pool2d(functional.conv2d(x, weight, padding=1), 2)
    out = functional.batch_norm(out, None, None, training=True)
    out = functional.cross_entropy(out.flatten(1), torch.tensor([0, 3]).to("ocl"))
    out.backward()
    rows = functional.embedding(torch.tensor([1, 1]).to("ocl"), x.detach().view(8, 36))
    for one in (out, weight.grad, rows.sum(), x.detach().softmax(1).sum(), x.detach().amax()):
        assert one.detach().cpu().isnan().all()
    assert x.grad.shape == x.shape


def test_a_perceptron_trains_without_the_cpu():
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


@pytest.mark.parametrize("order", [1, 2, float("inf")])
def test_lengths_of_many_elements(order):
    """Of so many that parts of them are put together."""
    x = torch.randn(3, 5000)
    there = x.to("ocl")
    for dim in (None, 0, 1):
        torch.testing.assert_close(
            torch.linalg.vector_norm(there, order, dim).cpu(),
            torch.linalg.vector_norm(x, order, dim),
        )
    parameters = [nn.Parameter(torch.zeros(700).to(where)) for where in ("cpu", "ocl")]
    for one in parameters:
        one.grad = torch.ones(700).to(one.device)
    found = [nn.utils.clip_grad_norm_([one], 1.0).item() for one in parameters]
    assert found[1] == pytest.approx(found[0])
    torch.testing.assert_close(parameters[1].grad.cpu(), parameters[0].grad)


def test_a_single_element_far_away_costs_no_digits():
    x = torch.randn(64, 2, 40, 40)
    x[0, :, 0, 0] = 3000
    exact = functional.batch_norm(x.double(), None, None, training=True)
    found = functional.batch_norm(x.to("ocl"), None, None, training=True).cpu()
    assert ((found - exact) / exact).abs().median() < 1e-6


def test_a_bias_may_lie_anywhere():
    x, weight = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    for bias in (torch.arange(8.0)[::2], torch.ones(1).expand(4)):
        torch.testing.assert_close(
            functional.conv2d(x.to("ocl"), weight.to("ocl"), bias.to("ocl")[:]).cpu(),
            functional.conv2d(x, weight, bias), rtol=1e-4, atol=1e-4,
        )  # fmt: skip
    sliced = torch.arange(8.0).to("ocl")[::2]
    found = functional.conv2d(x.to("ocl"), weight.to("ocl"), sliced).cpu()
    expected = functional.conv2d(x, weight, torch.arange(8.0)[::2])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_results_lie_as_torchs_do():
    x = torch.randn(2, 3, 4, 5, device="ocl")
    for one in (x.softmax(1), x.log_softmax(0), *x.max(0), *x.min(2, keepdim=True), x.argmax(1)):
        assert one.is_contiguous()


def test_tensors_that_are_in_a_list_twice_have_both_in_turn(monkeypatch):
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")
    one, more = torch.zeros(9, device="ocl"), torch.ones(9, device="ocl")
    torch._foreach_add_([one, one], [more, more * 2])
    assert one.cpu().tolist() == [3.0] * 9
