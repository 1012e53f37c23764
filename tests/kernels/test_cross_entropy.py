"""Cross entropy by kernels of cputrain has the effects of torch's operators."""

from __future__ import annotations

import concurrent.futures
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cputrain.kernels import build
from cputrain.runtime import cross_entropy as runtime
from cputrain.runtime.cross_entropy import CrossEntropies

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="there is no C compiler")

SHAPES = [(1, 1), (1, 2), (3, 15), (5, 16), (4, 17), (7, 33), (9, 1000), (2, 4095), (2, 4097),
          (3, 9001), (1, 50257), (301, 5)]  # fmt: skip
"""Rows and classes, which do and do not fill vectors and blocks."""


@contextmanager
def kernels() -> Iterator[CrossEntropies]:
    """Patch torch, and have kernels compute inputs of any size."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(runtime, "MIN_ELEMENTS", 1)
        monkeypatch.setattr(runtime, "MIN_CLASSES", 1)
        patch = CrossEntropies()
        assert patch.load() is not None
        try:
            yield patch
        finally:
            patch.undo()


def inputs_of(shape: tuple[int, int], seed: int = 0, spread: float = 3.0) -> tuple[Tensor, Tensor]:
    """Logits and targets, of which a few are ignored."""
    draws = torch.Generator().manual_seed(seed)
    data = torch.randn(shape, generator=draws) * spread
    targets = torch.randint(shape[1], shape[:1], generator=draws)
    targets[1::4] = -100
    return data.requires_grad_(), targets


def gradient(data: Tensor, targets: Tensor, **options: Any) -> list[Tensor]:
    """The loss and the gradient of the logits."""
    loss = F.cross_entropy(data, targets, **options)
    (grad,) = torch.autograd.grad(loss, data)
    return [loss.detach(), grad]


def are_near(results: Any, expected: Any) -> bool:
    return all(
        torch.allclose(result.double(), wanted.double(), 1e-5, 1e-6, equal_nan=True)
        for result, wanted in zip(results, expected, strict=True)
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_results_are_those_of_float64(shape: tuple[int, int], threads: int, reduction: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for spread in (0.1, 3.0, 40.0):
            data, targets = inputs_of(shape, spread=spread)
            exact = data.detach().double().requires_grad_()
            expected = gradient(exact, targets, reduction=reduction)
            with kernels() as patch:
                found = gradient(data, targets, reduction=reduction)
                assert patch.num_computed == 1
            assert torch.allclose(found[0].double(), expected[0], 1e-5)
            largest = expected[1].abs().max()
            assert (found[1] - expected[1]).abs().max() <= 1e-6 * largest
    finally:
        torch.set_num_threads(before)


def _special(*values: float) -> Tensor:
    data = torch.linspace(-2, 2, 3 * 40).reshape(3, 40).clone()
    for number, value in enumerate(values):
        data[1, 7 * number] = value
    return data.requires_grad_()


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("target", [0, 7, 9])
@pytest.mark.parametrize(
    "values",
    [(-INF,), (-INF, -INF), (INF,), (INF, INF), (INF, -INF), (NAN,), (NAN, INF), (1e38,), (-1e38,),
     (3e38, -3e38), (88.0,), (-104.0,), (200.0, -200.0)],
)  # fmt: skip
def test_numbers_that_are_not_ordinary_give_what_torch_gives(
    values: tuple[float, ...], target: int
) -> None:
    targets = torch.tensor([1, target, 39])
    expected = gradient(_special(*values), targets)
    with kernels() as patch:
        found = gradient(_special(*values), targets)
        assert patch.num_computed
    assert are_near(found, expected)


def test_rows_of_minus_infinity_and_of_ignored_targets_only() -> None:
    for data, targets in (
        (torch.full((2, 20), -INF), torch.tensor([3, 4])),
        (torch.randn(3, 20), torch.full((3,), -100)),
        (torch.randn(3, 20), torch.full((3,), 7)),
    ):
        data.requires_grad_()
        for ignored in (-100, 7):
            for reduction in ("mean", "sum"):
                options = {"ignore_index": ignored, "reduction": reduction}
                if ignored == 7 and bool((targets == -100).any()):
                    continue  # no class
                expected = gradient(data, targets, **options)
                with kernels():
                    assert are_near(gradient(data, targets, **options), expected)


def twice(data: Tensor, targets: Tensor) -> list[Tensor]:
    loss = F.cross_entropy(data, targets)
    first = torch.autograd.grad(loss, data, retain_graph=True)[0].clone()
    second = torch.autograd.grad(loss, data, torch.tensor(3.0), retain_graph=True)[0]
    return [first, second.mul_(2).clone(), torch.autograd.grad(loss, data)[0]]


def without_a_graph_left(data: Tensor, targets: Tensor) -> list[Tensor]:
    loss = F.cross_entropy(data, targets)
    loss.backward()
    loss.backward()
    return [loss]


def penalty(data: Tensor, targets: Tensor) -> list[Tensor]:
    loss = F.cross_entropy(data * 2, targets)
    (grad,) = torch.autograd.grad(loss, data, create_graph=True)
    (loss + grad.square().sum()).backward()
    assert data.grad is not None
    return [data.grad]


def changed_between(data: Tensor, targets: Tensor) -> list[Tensor]:
    logits = data * 2
    loss = F.cross_entropy(logits, targets)
    logits[:, 0] = 7
    loss.backward()
    assert data.grad is not None
    return [data.grad, logits]


def targets_changed_between(data: Tensor, targets: Tensor) -> list[Tensor]:
    loss = F.cross_entropy(data, targets)
    targets[:] = 0
    loss.backward()
    return [loss]


def both_changed_between(data: Tensor, targets: Tensor) -> list[Tensor]:
    logits = data * 2
    loss = F.cross_entropy(logits, targets)
    targets[:] = 0
    logits[:] = 0
    loss.backward()
    return [loss]


def scaled(data: Tensor, targets: Tensor) -> list[Tensor]:
    for part in (4, 8, 1):
        (F.cross_entropy(data, targets) / part).backward()
    assert data.grad is not None
    return [data.grad]


def by_factors_that_are_no_numbers(data: Tensor, targets: Tensor) -> list[Tensor]:
    logits = data.clone()
    logits[:, 3] = -200  # has a probability of 0
    return [
        torch.autograd.grad(F.cross_entropy(logits, targets), data, torch.tensor(factor))[0]
        for factor in (INF, -INF, NAN, 0.0, -0.0, 1e30)
    ]


def batched(data: Tensor, targets: Tensor) -> list[Tensor]:
    loss = F.cross_entropy(data, targets)
    factors = torch.tensor([1.0, 2.0, -3.0])
    return list(torch.autograd.grad(loss, data, factors, is_grads_batched=True))


def derivatives(data: Tensor, targets: Tensor) -> list[Tensor]:
    found = []
    for vectorize in (False, True):
        found.append(
            torch.autograd.functional.jacobian(
                lambda x: F.cross_entropy(x, targets) * torch.ones(2), data, vectorize=vectorize
            )
        )
        found.append(
            torch.autograd.functional.hessian(
                lambda x: F.cross_entropy(x, targets[:2]), data.detach()[:2], vectorize=vectorize
            )
        )
    return found


def in_threads(data: Tensor, targets: Tensor) -> list[Tensor]:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(gradient, *inputs_of((40, 50), seed)) for seed in range(40)]
        return [tensor for future in futures for tensor in future.result()]


def hooked(data: Tensor, targets: Tensor) -> list[Tensor]:
    seen: list[Tensor] = []
    logits = data * 2
    logits.register_hook(lambda grad: seen.append(grad.clone()))
    logits.retain_grad()
    loss = F.cross_entropy(logits, targets)
    loss.register_hook(lambda grad: grad * 3)
    loss.backward()
    assert logits.grad is not None
    return [*seen, logits.grad]


def two_losses(data: Tensor, targets: Tensor) -> list[Tensor]:
    logits = data * 2
    (F.cross_entropy(logits, targets) + 0.5 * F.cross_entropy(logits, targets.flip(0))).backward()
    assert data.grad is not None
    return [data.grad]


def by_module(data: Tensor, targets: Tensor) -> list[Tensor]:
    loss = nn.CrossEntropyLoss(ignore_index=0)(data, targets.clamp(min=0))
    loss.backward()
    assert data.grad is not None
    return [loss, data.grad]


def checkpointed(data: Tensor, targets: Tensor) -> list[Tensor]:
    loss = checkpoint(F.cross_entropy, data * 2, targets, use_reentrant=False)
    loss.backward()
    assert data.grad is not None
    return [loss, data.grad]


def saved_elsewhere(data: Tensor, targets: Tensor) -> list[Tensor]:
    with torch.autograd.graph.save_on_cpu():
        return gradient(data, targets)


def without_gradients(data: Tensor, targets: Tensor) -> list[Tensor]:
    with torch.no_grad():
        first = F.cross_entropy(data, targets)
    with torch.inference_mode():
        second = F.cross_entropy(data, targets).clone()
    assert not first.requires_grad
    assert not second.requires_grad
    return [first, second, F.cross_entropy(data.detach(), targets)]


def of_functions(data: Tensor, targets: Tensor) -> list[Tensor]:
    return [
        torch.func.grad(F.cross_entropy)(data, targets),
        torch.func.jvp(lambda x: F.cross_entropy(x, targets), (data,), (data,))[1],
        torch.vmap(lambda x, t: F.cross_entropy(x[None], t[None], reduction="sum"))(data, targets),
    ]


def other_calls(data: Tensor, targets: Tensor) -> list[Tensor]:
    num_classes = data.size(1)
    classes = targets.clamp(min=0)
    found = [
        *gradient(data, targets, label_smoothing=0.1),
        *gradient(data, classes, weight=torch.linspace(0.5, 2, num_classes)),
        *gradient(data, F.one_hot(classes, num_classes).float()),
        F.cross_entropy(data, targets, reduction="none"),
        F.cross_entropy(data[0], classes[0]),
        F.cross_entropy(data.T.contiguous().T, classes),
        F.cross_entropy(data[::2], targets[::2]),
        F.cross_entropy(data.T[None], targets[None]),
        F.cross_entropy(data.double(), targets),
        F.cross_entropy(data.bfloat16(), targets).float(),
    ]
    return [one.detach() for one in found]


def other_ways(data: Tensor, targets: Tensor) -> list[Tensor]:
    traced = torch.jit.trace(lambda x: F.cross_entropy(x, targets), data)
    compiled = torch.compile(lambda x, y: F.cross_entropy(2 * x, y), backend="eager")
    with torch.autocast("cpu", torch.bfloat16):
        cast = F.cross_entropy(data, targets)
    return [traced(data), compiled(data, targets), cast]


def out_of_bounds(data: Tensor, targets: Tensor) -> list[Tensor]:
    targets[0] = data.size(1)
    return [F.cross_entropy(data, targets)]


def below_bounds(data: Tensor, targets: Tensor) -> list[Tensor]:
    targets[0] = -1
    return [F.cross_entropy(data, targets)]


def wrong_shapes(data: Tensor, targets: Tensor) -> list[Tensor]:
    return [F.cross_entropy(data, targets[1:])]


def wrong_types(data: Tensor, targets: Tensor) -> list[Tensor]:
    return [F.cross_entropy(data, targets.int())]


def empty(data: Tensor, targets: Tensor) -> list[Tensor]:
    return gradient(data[:0].detach().requires_grad_(), targets[:0])


BY_KERNELS = (twice, without_a_graph_left, penalty, changed_between,
              targets_changed_between, both_changed_between, scaled, hooked, two_losses,
              by_factors_that_are_no_numbers, batched, derivatives, in_threads, by_module,
              without_gradients, other_ways)  # fmt: skip

BY_TORCH = (checkpointed, saved_elsewhere, of_functions, other_calls, out_of_bounds,
            below_bounds, wrong_shapes, wrong_types, empty)  # fmt: skip


def outcome(function: Callable[..., list[Tensor]]) -> tuple[str, list[Tensor]]:
    """What a function returns, or its error."""
    torch.manual_seed(0)
    try:
        return "", function(*inputs_of((6, 50)))
    except (RuntimeError, IndexError, ValueError) as error:
        return f"{type(error).__name__}: {error}", []


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("function", BY_KERNELS + BY_TORCH)
def test_a_script_cannot_tell(function: Callable[..., list[Tensor]]) -> None:
    error, expected = outcome(function)
    with kernels() as patch:
        found = outcome(function)
        assert bool(patch.num_computed) == (function in BY_KERNELS)
    assert found[0] == error
    assert are_near(found[1], expected)


def test_a_loss_is_printed_as_torchs() -> None:
    data, targets = inputs_of((6, 50))
    expected = repr(F.cross_entropy(data, targets))
    with kernels():
        assert repr(F.cross_entropy(data, targets)) == expected


def test_subclasses_and_modes_see_the_call() -> None:
    class Loud(torch.Tensor):
        pass

    data, targets = inputs_of((6, 50))
    with kernels() as patch:
        assert type(F.cross_entropy(data.detach().as_subclass(Loud), targets)) is Loud
        with _Mode() as mode:
            F.cross_entropy(data, targets)
        assert mode.names
        assert patch.num_computed == 0


class _Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_no_memory_is_lost_or_kept() -> None:
    """The gradient goes with the graph; after backward nothing of it is kept."""
    data, targets = inputs_of((6, 50))
    with kernels():
        loss = F.cross_entropy(data * 1, targets)
        kept = weakref.ref(loss.grad_fn.data_grad)
        loss.backward()
        assert kept() is None
        loss = F.cross_entropy(data * 1, targets)
        kept = weakref.ref(loss.grad_fn.data_grad)
        del loss
        gc.collect()
        assert kept() is None


def test_what_was_there_before_comes_back() -> None:
    before = torch._C._nn.cross_entropy_loss
    with kernels():
        assert torch._C._nn.cross_entropy_loss is not before
    assert torch._C._nn.cross_entropy_loss is before


@pytest.mark.parametrize("shape", [(6, 50), (512, 1000), (9000, 65)])
def test_small_inputs_are_left_to_torch(shape: tuple[int, int]) -> None:
    patch = CrossEntropies()
    try:
        data, targets = inputs_of(shape)
        F.cross_entropy(data, targets).backward()
        assert patch.num_computed == 0
        assert patch.kernels is None
    finally:
        patch.undo()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_number_of_threads_changes_no_bit(shape: tuple[int, int]) -> None:
    data, targets = inputs_of(shape)
    before = torch.get_num_threads()
    results = []
    try:
        with kernels():
            for num_threads in (1, 2, 3, 7):
                torch.set_num_threads(num_threads)
                results.append(gradient(data, targets))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))
