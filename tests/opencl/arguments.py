"""Arguments that torch takes or refuses: overlapping, of any type, out of bounds, as on the CPU."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from torch.nn import functional

from cputrain.opencl import fallbacks, reset_fallbacks

CALLS = 3
"""Later ones are replayed."""


def outcome(call, where, x):
    """Return the values, or the error's type and first line; and what the argument holds then."""
    x = x.clone().to(where)
    torch.manual_seed(0)
    try:
        found = call(x)
        values = [found] if isinstance(found, torch.Tensor) else list(found or ())
        result = [one.cpu() for one in values]
    except Exception as error:
        result = (type(error), str(error).splitlines()[:1])
    return result, x.cpu()


def assert_as_on_cpu(call, x):
    expected, after = outcome(call, "cpu", x)
    for _ in range(CALLS):
        found, left = outcome(call, "ocl", x)
        if isinstance(expected, tuple):
            assert found == expected
        else:
            assert isinstance(found, list), found
            torch.testing.assert_close(found, expected, equal_nan=True)
            torch.testing.assert_close(left, after, equal_nan=True)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


IN_PLACE = [
    "add_", "sub_", "mul_", "div_", "copy_", "atan2_", "pow_", "fmod_", "eq_", "lt_",
    "logical_and_", "hypot_", "copysign_", "xlogy_", "clamp_",
]  # fmt: skip
PAIRS = {
    "shifted": lambda x: (x[1:], x[:-1]),
    "shifted back": lambda x: (x[:-1], x[1:]),
    "in steps, shifted": lambda x: (x[2::2], x[:-2:2]),
    "interleaved": lambda x: (x[::2], x[1::2]),
    "expanded": lambda x: (x[:1].expand(4), x[4:8]),
    "transposed": lambda x: (x[:9].view(3, 3), x[:9].view(3, 3).t()),
    "one of it": lambda x: (x[:6], x[:1]),
    "a row of it": lambda x: (x.view(3, 4), x.view(3, 4)[0]),
    "itself": lambda x: (x, x),
    "a view of all": lambda x: (x, x[:]),
    "of another type": lambda x: (x[:6], x.view(torch.int32)[:6]),
    "none": lambda x: (x[:0], x[:0]),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_writing_to_what_is_read(name, pair):
    def call(x):
        out, other = PAIRS[pair](x)
        return getattr(out, name)(other)

    assert_as_on_cpu(call, torch.arange(1.0, 13.0))


OUT = {
    "add": lambda a, o: torch.add(a, a, out=o),
    "exp": lambda a, o: torch.exp(a, out=o),
    "cumsum": lambda a, o: torch.cumsum(a, 0, out=o),
    "where": lambda a, o: torch.where(a > 3, a, -a, out=o),
    "cat": lambda a, o: torch.cat([a[:1], a[1:]], out=o),
    "sort": lambda a, o: torch.sort(
        a, out=(o, torch.empty(0, dtype=torch.int64, device=a.device))
    ),
    "sum": lambda a, o: torch.sum(a.view(1, -1), 0, out=o),
    "take": lambda a, o: torch.take(a, torch.arange(a.numel(), device=a.device), out=o),
    "mv": lambda a, o: torch.mv(torch.ones(len(a), len(a), device=a.device), a, out=o),
    "tril": lambda a, o: torch.tril(a.view(1, -1), out=o),
}  # fmt: skip
OUTPUTS = {
    "shifted": lambda x: (x[:-1], x[1:]),
    "the input": lambda x: (x, x),
    "a part, itself": lambda x: (x[2:8], x[2:8]),
    "apart": lambda x: (x[:5], x[6:11]),
    "expanded": lambda x: (x[:4], x[8:9].expand(4)),
    "interleaved": lambda x: (x[::2], x[1::2]),
    "nothing, in its memory": lambda x: (x[4:], x[0:0]),
    "too small, in its memory": lambda x: (x[4:10], x[0:2]),
    "nothing, elsewhere": lambda x: (x[4:], torch.empty(0, device=x.device)),
}


@pytest.mark.parametrize("layout", OUTPUTS)
@pytest.mark.parametrize("name", OUT)
def test_outputs_that_overlap_or_change_their_size(name, layout):
    assert_as_on_cpu(lambda x: OUT[name](*OUTPUTS[layout](x)), torch.arange(1.0, 13.0))


LISTS = {
    "overlapping": lambda x: ([x[:4], x[2:6]], [x[6:10].clone(), x[6:10].clone()]),
    "with another": lambda x: ([x[:4]], [x[1:5]]),
    "crosswise": lambda x: ([x[:4], x[4:8]], [x[4:8], x[:4]]),
    "twice": lambda x: ([x[:4], x[:4]], [x[4:8], x[8:12]]),
    "itself": lambda x: ([x[:4], x[4:8]], [x[:4], x[4:8]]),
    "expanded": lambda x: ([x[:1].expand(3), x[4:7]], [x[:3], x[4:7]]),
}
FOREACH = {
    "add": torch._foreach_add_, "mul": torch._foreach_mul_, "div": torch._foreach_div_,
    "maximum": torch._foreach_maximum_, "copy": torch._foreach_copy_,
    "lerp": lambda a, b: torch._foreach_lerp_(a, b, 0.5),
    "addcmul": lambda a, b: torch._foreach_addcmul_(a, b, b),
    "sqrt": lambda a, _: torch._foreach_sqrt_(a),
}  # fmt: skip


@pytest.mark.parametrize("layout", LISTS)
@pytest.mark.parametrize("name", FOREACH)
def test_lists_of_tensors_that_overlap(name, layout):
    def call(x):
        FOREACH[name](*LISTS[layout](x))

    assert_as_on_cpu(call, torch.arange(1.0, 13.0))


OTHERS = {
    "index_put_": lambda x: x[1:].index_put_((torch.arange(3, device=x.device),), x[:3]),
    "scatter_": lambda x: x[1:].scatter_(0, torch.arange(3, device=x.device), x[:3]),
    "scatter_add_": lambda x: x[1:].scatter_add_(0, torch.arange(3, device=x.device), x[:3]),
    "index_add_": lambda x: x[1:].index_add_(0, torch.arange(3, device=x.device), x[:3]),
    "setitem": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "addmm_": lambda x: x[:4].view(2, 2).addmm_(x[2:6].view(2, 2), x[6:10].view(2, 2)),
    "lerp_": lambda x: x[:4].lerp_(x[1:5], 0.5),
    "masked_fill_ of one": lambda x: x[:1].expand(4).masked_fill_(x[:4] > 0, 5.0),
    "from the CPU": lambda x: x[:1].expand(3).copy_(torch.ones(3)),
    # (what add_ would do there depends on the processor's vectors)
    "windows": lambda x: x.as_strided((3, 3), (1, 1)).add(1),
    "beyond its memory": lambda x: x.as_strided((5,), (3,)),
    "up to its end": lambda x: x[3:].as_strided((4,), (3,), 2),
    "beyond it, from another place": lambda x: x[3:].as_strided((12,), (1,)),
    "complex, at an odd place": lambda x: torch.view_as_complex(x[1:5].view(2, 2)),
    "of wider numbers, at an odd place": lambda x: x[1:5].view(torch.float64),
    "backwards": lambda x: x.as_strided((2,), (-1,)),
    "before its memory": lambda x: x.as_strided((2,), (1,), -1),
    "smaller and larger": lambda x: (x.resize_(4), x.resize_(12))[1],
    "smaller, of a view": lambda x: x[2:].resize_(8),
    "fused SGD": lambda x: torch._fused_sgd_(
        [x[:4]], [x[1:5]], [], weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0,
        nesterov=False, maximize=False, is_first_step=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_memory_that_is_shared(name):
    assert_as_on_cpu(OTHERS[name], torch.arange(1.0, 13.0))


TYPES = [
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16,
    torch.float16, torch.bfloat16, torch.float64,
]  # fmt: skip
BY_NAME = [
    "hardtanh", "relu6", "relu", "leaky_relu", "silu", "elu", "softplus", "hardsigmoid",
    "hardswish", "gelu", "mish", "selu", "celu", "logsigmoid", "softsign", "tanhshrink",
    "hardshrink", "softshrink", "sigmoid", "tanh",
]  # fmt: skip
FUNCTIONS = {
    **{name: getattr(functional, name) for name in BY_NAME},
    "hardtanh, fractions": lambda x: functional.hardtanh(x, -1.5, 1.5),
    "hardtanh, in place": lambda x: functional.hardtanh_(x.clone(), -0.5, 0.5),
    "silu, in place": lambda x: functional.silu(x.clone(), inplace=True),
    "threshold": lambda x: functional.threshold(x, 1, 5),
    "threshold, fractions": lambda x: functional.threshold(x, 0.5, 5.5),
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp, fractions": lambda x: x.clamp(-1.5, 2.5),
    "clamp, far": lambda x: x.clamp(-1000, 1000),
    "clamp, NaN": lambda x: x.clamp(float("nan"), 2),
    "clamp_": lambda x: x.clone().clamp_(0.5, 2),
    "add": lambda x: x + 300,
    "add a fraction": lambda x: x + 1.5,
    "add in place": lambda x: x.clone().add_(1.5),
    "alpha": lambda x: torch.add(x, x, alpha=2),
    "alpha, a fraction": lambda x: torch.add(x, x, alpha=2.0),
    "alpha, true": lambda x: torch.add(x, x, alpha=True),
    "sub": lambda x: x - 1,
    "sub true": lambda x: x - True,
    "rsub": lambda x: 1 - x,
    "neg": lambda x: -x,
    "abs": torch.abs,
    "div": lambda x: x / 2,
    "floor_divide": lambda x: x // 2,
    "pow": lambda x: x**2,
    "pow, negative": lambda x: x**-1,
    "exp": torch.exp,
    "floor": torch.floor,
    "round": torch.round,
    "where": lambda x: torch.where(x > 0, x, 0.5),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.5),
    "fill_": lambda x: x.clone().fill_(300),
    "fill_, negative": lambda x: x.clone().fill_(-1),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "addcdiv": lambda x: torch.addcdiv(x, x, x),
    "lerp": lambda x: torch.lerp(x, x, 0.5),
    "foreach": lambda x: torch._foreach_mul([x], 1.5),
    "sum": torch.sum,
    "sum, another type": lambda x: x.sum(dtype=torch.float32),
    "mean": torch.mean,
    "max": torch.max,
    "amax": lambda x: x.amax(0),
    "any": torch.any,
    "norm": torch.linalg.vector_norm,
    "eq": lambda x: x == 1.5,
    "gt, far": lambda x: x > 300,
    "mse": lambda x: functional.mse_loss(x, x.flip(0)),
    "softmax": lambda x: functional.softmax(x, -1),
    "pad": lambda x: functional.pad(x, (1, 1), value=2.5),
    "with a tensor of the CPU": lambda x: x + torch.tensor(1.5),
    "with a number": lambda x: x + torch.tensor(1.5, device=x.device, dtype=torch.float64),
    "with another type": lambda x: x * x.float(),
    "random_": lambda x: torch.tensor(x.clone().random_(0, 300).shape),
    "uniform_": lambda x: torch.tensor(x.clone().uniform_(0, 1).shape),
    "uniform_, endless": lambda x: x.clone().uniform_(0, float("inf")),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_any_type(name, dtype):
    assert_as_on_cpu(FUNCTIONS[name], torch.tensor([[-3, -1, 0], [1, 2, 3]]).to(dtype))


def test_a_chance_that_is_none_is_not_a_number():
    drawn = torch.bernoulli(torch.tensor([0.5, 2.0, -1.0, float("nan")], device="ocl"))
    assert drawn.isnan().tolist() == [False, True, True, True]


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(72, 6), torch.nn.LayerNorm(6),
    )  # fmt: skip


def losses_of(where, dtype, optimizer, scales):
    """Losses of training steps under autocast, and the last scale."""
    model = network().to(where)
    updates = optimizer(model.parameters(), lr=0.002)
    scaler = torch.amp.GradScaler(where, enabled=scales)
    images = torch.linspace(-1, 1, 5 * 3 * 64).reshape(5, 3, 8, 8).sin().to(where)
    losses = []
    for _ in range(5):
        with torch.autocast(where, dtype):
            loss = torch.nn.functional.cross_entropy(model(images), torch.arange(5, device=where))
        updates.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(updates)
        scaler.update()
        losses.append(loss.item())
    return [*losses, scaler.get_scale() / 1e5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "optimizer",
    [torch.optim.SGD, torch.optim.AdamW, partial(torch.optim.AdamW, fused=True)],
    ids=["SGD", "AdamW", "fused AdamW"],
)
def test_autocast_trains_as_on_the_cpu(optimizer, dtype, monkeypatch):
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")
    reset_fallbacks()
    losses = losses_of("ocl", dtype, optimizer, dtype is torch.float16)
    assert not fallbacks()
    expected = losses_of("cpu", dtype, optimizer, dtype is torch.float16)
    assert losses == pytest.approx(expected, rel=0.05, abs=0.05)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x: x @ x, torch.bfloat16),
        (lambda x: torch.nn.functional.linear(x, x), torch.bfloat16),
        (lambda x: (x @ x).relu(), torch.bfloat16),
        (lambda x: (x @ x).softmax(1), torch.float32),
        (lambda x: (x @ x).sum(), torch.float32),
        (lambda x: (x @ x).sum(dtype=torch.bfloat16), torch.bfloat16),
        (lambda x: (x @ x) + x, torch.float32),
        (lambda x: torch.cat([x @ x, x]), torch.float32),
        (lambda x: torch.nn.functional.layer_norm(x @ x, (4,)), torch.float32),
        (lambda x: x.double() @ x.double(), torch.float64),
    ],
)
def test_the_type_that_an_operator_computes_in_under_autocast(function, dtype):
    with torch.autocast("ocl", torch.bfloat16):
        assert function(torch.ones(4, 4, device="ocl")).dtype is dtype


def test_autocast_casts_a_parameter_again_once_it_has_changed():
    weight = torch.nn.Parameter(torch.ones(2, 2, device="ocl"))
    rows = torch.ones(1, 2, device="ocl")
    with torch.autocast("ocl", torch.bfloat16):
        assert (rows @ weight).tolist() == [[2, 2]]
        with torch.no_grad():
            weight.mul_(3)
        assert (rows @ weight).tolist() == [[6, 6]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("has_weight", [False, True])
def test_batch_norm_of_16_bits_with_parameters_of_32(dtype, has_weight, monkeypatch):
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")
    images = torch.linspace(-2, 3, 4 * 3 * 5).reshape(4, 3, 5).to("ocl", dtype)
    weight = torch.tensor([1.0, 2.0, -3.0]).to("ocl") if has_weight else None
    bias = torch.tensor([0.1, -20.0, 3.0]).to("ocl")
    reset_fallbacks()
    out, *_ = torch.native_batch_norm(images, weight, bias, None, None, True, 0.1, 1e-5)
    assert not fallbacks()
    expected, *_ = torch.native_batch_norm(
        images.cpu().float(), None if weight is None else weight.cpu(), bias.cpu(), None, None,
        True, 0.1, 1e-5,
    )  # fmt: skip
    assert out.dtype is dtype
    torch.testing.assert_close(out.cpu(), expected.to(dtype))


def test_a_loss_that_overflows_in_float16_is_refused_under_autocast():
    chances = torch.rand(3, device="ocl")
    with torch.autocast("ocl"), pytest.raises(RuntimeError, match="with_logits"):
        torch.nn.functional.binary_cross_entropy(chances, chances)


@pytest.mark.parametrize("options", [{"enabled": False}, {"dtype": torch.float32}])
def test_autocast_that_changes_nothing(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast("ocl", **options):
            product = torch.ones(3, 4, device="ocl") @ torch.ones(4, 2, device="ocl")
    assert product.dtype is torch.float32
