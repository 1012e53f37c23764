"""Batch norm by kernels of cputrain has the effects of torch's operators."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cputrain.kernels import build
from cputrain.runtime import batch_norm as runtime
from cputrain.runtime.batch_norm import BatchNorms

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="there is no C compiler")

SHAPES = [
    (8, 16, 24, 24), (3, 5, 67, 71), (2, 64, 9, 64), (1, 3, 160, 150), (70, 33, 5, 7),
    (16, 20, 211), (2, 4, 9, 31, 33), (4, 1, 130, 130), (3, 2100, 4, 4),
]  # fmt: skip
"""Shapes of more than `MIN_ELEMENTS`, with and without what does not fill a vector."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda output: output,
    "relu": torch.relu,
    "relu_": torch.relu_,
    "F.relu": F.relu,
    "F.relu in place": lambda output: F.relu(output, inplace=True),
    "Tensor.relu": lambda output: output.relu(),
    "Tensor.relu_": lambda output: output.relu_(),
    "leaky": lambda output: F.leaky_relu(output, 0.2),
    "leaky in place": lambda output: F.leaky_relu(output, 0.1, inplace=True),
    "relu6": F.relu6,
    "nn.ReLU6": nn.ReLU6(inplace=True),
    "hardtanh": lambda output: F.hardtanh(output, -0.5, 0.7),
}


@contextmanager
def kernels(*, by_channel: bool | None = None) -> Iterator[BatchNorms]:
    """Patch torch, and have kernels compute inputs that are as small as those of the tests."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in [name for name in vars(runtime) if name.startswith("MIN_")]:
            monkeypatch.setattr(runtime, name, 16)
        patches = BatchNorms()
        loaded = patches.load()
        assert loaded is not None
        loaded.by_channel = by_channel
        try:
            yield patches
        finally:
            patches.undo()


def call_of(name: str) -> Callable[[Tensor], Tensor]:
    """The activation of a name, looked up when it is called."""
    if name in {"relu", "relu_"}:
        return lambda output: getattr(torch, name)(output)
    return (lambda output: F.relu6(output)) if name == "relu6" else ACTIVATIONS[name]


def inputs_of(shape: tuple[int, ...], layout: Any, seed: int, needs: Any = (1, 1, 1)) -> Any:
    """Input, weight, bias, running mean and variance, and the gradient of the output."""
    draws = torch.Generator().manual_seed(seed)
    data = (torch.randn(shape, generator=draws) * 3 + 1).contiguous(memory_format=layout)
    channels = shape[1]
    weight, bias = (torch.randn(channels, generator=draws) for _ in range(2))
    running = torch.randn(channels, generator=draws), torch.rand(channels, generator=draws) + 0.5
    grad = torch.randn(shape, generator=draws)
    for one, is_needed in zip((data, weight, bias), needs, strict=True):
        one.requires_grad_(bool(is_needed))
    return data, weight, bias, running, grad


def results_of(case: Any, name: str) -> dict[str, Tensor | None]:
    """What a forward and a backward leave."""
    data, weight, bias, running, grad = case
    output = call_of(name)(F.batch_norm(data, *running, weight, bias, True, 0.3, 1e-3))
    if output.requires_grad:
        output.backward(grad)
    names = ("output", "mean", "variance", "input", "weight", "bias")
    return dict(
        zip(names, (output.detach(), *running, data.grad, weight.grad, bias.grad), strict=True)
    )


def layouts(shape: tuple[int, ...]) -> list[Any]:
    others = {4: [torch.channels_last], 5: [torch.channels_last_3d]}
    return [torch.contiguous_format, *others.get(len(shape), [])]


CASES = [(shape, layout) for shape in SHAPES for layout in layouts(shape)]


@pytest.mark.parametrize(("shape", "layout"), CASES)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_are_those_of_float64(shape: Any, layout: Any, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for name, by_channel in itertools.product(
            ("none", "relu_", "leaky", "relu6"), (True, False)
        ):
            with kernels(by_channel=by_channel) as patches:
                results = results_of(inputs_of(shape, layout, 3), name)
                assert patches.num_computed
            exact = [
                one.detach().double().requires_grad_(one.requires_grad)
                if isinstance(one, Tensor) else tuple(map(Tensor.double, one))
                for one in inputs_of(shape, layout, 3)
            ]  # fmt: skip
            expected = results_of(exact, name)
            for key, result in results.items():
                assert result is not None
                wanted = expected[key]
                assert wanted is not None
                # where rounding moves a number across an activation's bound, gradients differ
                near = 1e-5 * wanted.abs().max()
                if key in {"weight", "bias"}:  # sums of numbers of both signs
                    near += 1e-7 * results["output"].numel() / len(wanted)  # type: ignore[union-attr]
                wrong = ((result - wanted).abs() > near).sum().item()
                assert wrong <= 1e-5 * wanted.numel(), (name, key, wrong)
                if key in {"output", "input"}:
                    assert result.is_contiguous(memory_format=layout)
    finally:
        torch.set_num_threads(before)


def made(seed: int = 0, layout: Any = torch.contiguous_format) -> Any:
    """Input, batch norm and a further weight."""
    torch.manual_seed(seed)
    norm = nn.BatchNorm2d(16)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    data = torch.randn(8, 16, 24, 24).contiguous(memory_format=layout).requires_grad_()
    return data, norm, torch.randn(8, 16, 24, 24)


def grads(*ones: Any) -> list[Any]:
    return [one.grad for one in ones]


PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a program with every kind of activation that is not in place, and one that is."""
    for name in ("relu", "F.relu in place", "leaky", "relu6"):
        PROGRAMS[f"{function.__name__} {name}"] = lambda name=name: function(call_of(name))
    return function


@program
def used_twice(act: Any) -> Any:
    data, norm, grad = made()
    output = norm(data)
    ((act(output.clone()) * 3 + output * 2 + act(output)) * grad).sum().backward()
    return grads(data, norm.weight, norm.bias)


@program
def output_is_differentiated(act: Any) -> Any:
    data, norm, grad = made()
    output = norm(data)
    result = act(output)
    return torch.autograd.grad(
        (result * grad).sum(), (output, data, norm.weight), allow_unused=True
    )


@program
def hook_before(act: Any) -> Any:
    data, norm, grad = made()
    output, seen = norm(data), []
    output.register_hook(lambda one: (seen.append(one), one * 2)[1])
    (act(output) * grad).sum().backward()
    return [*seen, *grads(data, norm.weight)]


@program
def hook_after_and_dropped(act: Any) -> Any:
    data, norm, grad = made()
    output, seen = norm(data), []
    result = act(output)
    output.register_hook(lambda one: (seen.append(one), one * 2)[1])
    del output
    (result * grad).sum().backward()
    return [*seen, *grads(data, norm.weight)]


@program
def hook_that_is_removed(act: Any) -> Any:
    data, norm, grad = made()
    output = norm(data)
    result = act(output)
    output.register_hook(lambda one: one * 2).remove()
    del output
    (result * grad).sum().backward()
    return grads(data, norm.weight)


@program
def retained_before(act: Any) -> Any:
    data, norm, grad = made()
    output = norm(data)
    output.retain_grad()
    (act(output) * grad).sum().backward()
    return grads(output, data, norm.weight)


@program
def retained_after(act: Any) -> Any:
    data, norm, grad = made()
    output = norm(data)
    result = act(output)
    output.retain_grad()
    result.retain_grad()
    (result * grad).sum().backward()
    return grads(output, result, data, norm.weight)


@program
def node_hooks(act: Any) -> Any:
    data, norm, grad = made()
    seen: list[Any] = []
    for is_early in (True, False):
        output = norm(data)
        node = output.grad_fn
        if is_early:
            node.register_hook(lambda _, outer: seen.append(outer))
        result = act(output)
        if not is_early:
            node.register_prehook(lambda outer: seen.append(outer))
        del output
        (result * grad).sum().backward()
    return [*grads(data, norm.weight), *[one for outer in seen for one in outer]]


@program
def module_hooks(act: Any) -> Any:
    data, norm, grad = made()
    seen: list[Any] = []
    norm.register_forward_hook(lambda _, __, output: seen.append(output))
    norm.register_full_backward_hook(lambda _, inner, outer: seen.extend([*inner, *outer]))
    (act(norm(data)) * grad).sum().backward()
    return [*seen, *grads(data, norm.weight)]


@program
def activations_are_held(act: Any) -> Any:
    data, norm, grad = made()
    held: list[Any] = []
    norm.register_forward_hook(lambda _, __, output: held.append(output))
    loss = (act(norm(data)) * grad).sum()
    return torch.autograd.grad(loss, held, allow_unused=True)


@program
def gradient_penalty(act: Any) -> Any:
    data, norm, grad = made()
    (first,) = torch.autograd.grad((act(norm(data)) * grad).sum(), data, create_graph=True)
    (first.square().sum() + first.sum()).backward()
    return grads(data, norm.weight, norm.bias)


@program
def backward_twice(act: Any) -> Any:
    data, norm, grad = made()
    loss = (act(norm(data)) * grad).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return grads(data, norm.weight, norm.bias)


@program
def backward_once_too_often(act: Any) -> Any:
    data, norm, grad = made()
    loss = (act(norm(data)) * grad).sum()
    loss.backward()
    loss.backward()


@program
def changed_input(act: Any) -> Any:
    data, norm, grad = made()
    changed = data * 2
    result = act(norm(changed))
    changed.add_(1)
    (result * grad).sum().backward()


@program
def changed_weight(act: Any) -> Any:
    data, norm, grad = made()
    result = act(norm(data))
    with torch.no_grad():
        norm.weight.add_(1)
    (result * grad).sum().backward()


@program
def changed_output(act: Any) -> Any:
    data, norm, grad = made()
    output = norm(data)
    output.mul_(2)
    (act(output) * grad).sum().backward()
    return grads(data, norm.weight, norm.bias)


@program
def views_of_the_output(act: Any) -> Any:
    data, norm, grad = made()
    output = norm(data)
    view = output[2:5]
    result = act(output)
    ((result * grad).sum() + (view * 3).sum()).backward()
    return grads(data, norm.weight, norm.bias)


@program
def checkpointed(act: Any) -> Any:
    seen: list[Any] = []
    for reentrant in (True, False):
        data, norm, grad = made()
        result = checkpoint(lambda one, norm=norm: act(norm(one)), data, use_reentrant=reentrant)
        (result * grad).sum().backward()
        seen += [*grads(data, norm.weight), norm.running_mean, norm.running_var]
    return seen


@program
def saved_elsewhere(act: Any) -> Any:
    data, norm, grad = made()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda one: one.double(), lambda one: one.float()
    ):
        result = act(norm(data))
    (result * grad).sum().backward()
    return grads(data, norm.weight, norm.bias)


@program
def some_parameters(act: Any) -> Any:
    seen: list[Any] = []
    for needs in itertools.product((True, False), repeat=3):
        data, norm, grad = made()
        for one, is_needed in zip((data, norm.weight, norm.bias), needs, strict=True):
            one.requires_grad_(is_needed)
        result = act(norm(data))
        if result.requires_grad:
            (result * grad).sum().backward()
        seen += [result, *grads(data, norm.weight, norm.bias)]
    return seen


@program
def running_statistics(act: Any) -> Any:
    seen: list[Any] = []
    for options in ({"momentum": None}, {"track_running_stats": False}, {"affine": False},
                    {"eps": 0.1, "momentum": 0.7}):  # fmt: skip
        data, _, grad = made()
        norm = nn.BatchNorm2d(16, **options)
        for _ in range(3):
            (act(norm(data)) * grad).sum().backward()
        with torch.no_grad():
            seen.append(act(norm(data * 2)))
        seen += [data.grad, *(one.detach() for one in norm.state_dict().values())]
        versions = [one._version for one in norm.buffers()]
        seen.append(norm.eval()(data))
        seen.append(torch.tensor(versions))
    return seen


@program
def transforms(act: Any) -> Any:
    data, norm, grad = made()
    norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    parameters = dict(norm.named_parameters())

    def loss(values: Any, one: Any) -> Any:
        return (act(torch.func.functional_call(norm, values, (one,))) * grad).sum()

    first = torch.func.grad(loss)(parameters, data.detach())
    second = torch.func.jvp(
        lambda one: loss(parameters, one), (data.detach(),), (torch.ones_like(data),)
    )
    return [*first.values(), *second]


@program
def compiled(act: Any) -> Any:
    torch.compiler.reset()
    data, norm, grad = made()
    results = [
        torch.compile(lambda one: act(norm(one)) * 2, backend="aot_eager", fullgraph=True)(data)
    ]
    (results[0] * grad).sum().backward()
    return [*results, *grads(data, norm.weight), norm.running_mean]


@program
def traced(act: Any) -> Any:
    data, norm, grad = made()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, one: Tensor) -> Tensor:
            return act(self.norm(one))  # type: ignore[no-any-return]

    names = [str(node.target) for node in torch.fx.symbolic_trace(Model()).graph.nodes]
    trace = torch.jit.trace(Model(), data.detach(), check_trace=False)
    exported = torch.export.export(Model(), (data.detach(),))
    (trace(data) * grad).sum().backward()
    kinds = [node.kind() for node in trace.inlined_graph.nodes()]
    ops = [str(node.target) for node in exported.graph.nodes]
    return [names[-3:], [kind for kind in kinds if "norm" in kind], ops, *grads(data, norm.weight)]


@program
def scripted(act: Any) -> Any:
    data, norm, grad = made()
    seen: list[Any] = []
    for activation in (nn.ReLU(), nn.ReLU(inplace=True), nn.LeakyReLU(0.2), nn.ReLU6()):
        model = torch.jit.script(nn.Sequential(norm, activation))
        (act(model(data)) * grad).sum().backward()
        seen += [str(model.graph).count("aten::"), *grads(data, norm.weight)]
    return seen


@program
def operators_are_seen(act: Any) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **kwargs or {})

    data, norm, grad = made()
    with Mode():
        (act(norm(data)) * grad).sum().backward()
    result = act(norm(data))
    with Mode():
        (result * grad).sum().backward()
    return [seen[: seen.index("aten.mul.Tensor")], *grads(data, norm.weight)]


@program
def other_types(act: Any) -> Any:
    class Kept(Tensor):
        pass

    seen: list[Any] = []
    for change in (Tensor.double, Tensor.bfloat16, lambda one: one.as_subclass(Kept)):
        data, norm, grad = made()
        changed = change(data)
        if changed.dtype == torch.float64:
            norm = norm.double()
        result = act(norm(changed))
        (result.float() * grad).sum().backward()
        seen += [type(result).__name__, str(result.dtype), *grads(data, norm.weight)]
    return seen


@program
def autocast(act: Any) -> Any:
    data, norm, grad = made()
    conv = nn.Conv2d(16, 16, 3, padding=1)
    with torch.autocast("cpu", torch.bfloat16):
        result = act(norm(conv(data)))
    (result.float() * grad).sum().backward()
    return [str(result.dtype), *grads(conv.weight, norm.weight)]


@program
def gradients_of_any_layout(act: Any) -> Any:
    seen: list[Any] = []
    for layout in (torch.contiguous_format, torch.channels_last):
        data, norm, grad = made(layout=layout)
        for one in (grad, grad.contiguous(memory_format=torch.channels_last), grad[:1, :1, :1, :1]):
            act(norm(data)).backward(one.expand(grad.shape))
        act(norm(data)).sum().backward()
        act(norm(data))[:, ::2, 1:].square().sum().backward()
        seen += [*grads(data, norm.weight, norm.bias)]
    return seen


@program
def a_channel_of_one_value(act: Any) -> Any:
    act(nn.BatchNorm1d(1 << 17)(torch.randn(1, 1 << 17, requires_grad=True)))


@program
def wrong_sizes(act: Any) -> Any:
    act(nn.BatchNorm2d(5)(torch.randn(8, 16, 24, 24)))


@program
def extreme_numbers(act: Any) -> Any:
    seen: list[Any] = []
    for number in (float("nan"), float("inf"), 3e38, 0.0):
        data, norm, grad = made()
        with torch.no_grad():
            data[1, 3, 4:6] = number
            data[:, 5] = number
            grad[2, 7, 1] = number
        act(norm(data)).backward(grad)
        seen += [data.grad.isfinite(), norm.weight.grad.isfinite(), norm.running_var.isfinite()]
        seen.append(norm.running_mean[:3])
    return seen


@program
def anomalies_are_traced(act: Any) -> Any:
    data, norm, grad = made()
    with torch.autograd.detect_anomaly(check_nan=True):
        (act(norm(data)) * grad).sum().backward()
    return grads(data, norm.weight)


@program
def elsewhere_by_default(act: Any) -> Any:
    data, norm, grad = made()
    with torch.device("meta"):
        (act(norm(data)) * grad).sum().backward()
    return grads(data, norm.weight)


@program
def copies(act: Any) -> Any:
    data, norm, grad = made()
    act(norm(data))
    model = copy.deepcopy(nn.Sequential(norm, nn.ReLU()))
    (model(data) * grad).sum().backward()
    return grads(data, *model.parameters())


def outcome(function: Callable[[], Any]) -> Any:
    """What a program returns, or the error that it raises."""
    try:
        return [one.detach() if isinstance(one, Tensor) else one for one in function() or []]
    except Exception as error:
        return [type(error).__name__, str(error).partition("is at version")[0].partition("[")[0]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_do_not_notice(name: str) -> None:
    expected = outcome(PROGRAMS[name])
    with kernels():
        results = outcome(PROGRAMS[name])
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        if not isinstance(wanted, Tensor):
            assert result == wanted
        elif wanted.is_floating_point():
            largest = wanted.abs().max().item() if wanted.numel() else 0.0
            torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5 * largest + 1e-3)
        else:
            assert torch.equal(result, wanted)


def test_an_output_is_printed_as_torchs() -> None:
    data, weight, bias, *_ = inputs_of((2, 3, 8, 8), torch.contiguous_format, 0)
    names = [repr(F.batch_norm(data, None, None, weight, bias, True)).rpartition("grad_fn")[2]]
    with kernels():
        output = F.batch_norm(data, None, None, weight, bias, True)
        names.append(repr(output).rpartition("grad_fn")[2])
    assert names == ["=<NativeBatchNormBackward0>)"] * 2
