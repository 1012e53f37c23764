"""Dropout by kernels of cputrain draws the numbers that torch draws."""

from __future__ import annotations

import concurrent.futures
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cputrain.kernels import build, dropout
from cputrain.kernels.dropout import DropoutKernels
from cputrain.runtime import dropout as runtime
from cputrain.runtime.dropout import Dropouts

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="there is no C compiler")

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@contextmanager
def kernels() -> Iterator[Dropouts]:
    """Patch torch, and have kernels compute inputs of any size."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(runtime, "MIN_ELEMENTS", 1)
        monkeypatch.setattr(dropout, "NUMBERS_OF_THREAD", 1)
        patch = Dropouts()
        assert patch.load() is not None
        try:
            yield patch
        finally:
            patch.undo()


def outcome(function: Callable[[], Any], seed: int = 0) -> tuple[str, list[Tensor]]:
    """What a function raises, its results, and the state of the generator after it."""
    torch.manual_seed(seed)
    try:
        error, results = "", list(function())
    except (RuntimeError, ValueError, TypeError) as raised:
        error, results = f"{type(raised).__name__}: {raised}", []
    return error, [*results, torch.get_rng_state()]


def are_same(found: tuple[str, list[Tensor]], expected: tuple[str, list[Tensor]]) -> bool:
    return found[0] == expected[0] and all(
        one.dtype is other.dtype
        and one.stride() == other.stride()
        and torch.equal(one.nan_to_num(), other.nan_to_num())
        for one, other in zip(found[1], expected[1], strict=True)
    )


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 5000),
    st.sampled_from([0, 1, 2, 311, 622, 623, 624, 625, 1247, 1248, 1249]) | st.integers(0, 3000),
    st.sampled_from([0.1, 0.2, 0.5, 1e-300, 1e-16, 1 - 1e-16]) | st.floats(1e-9, 1 - 1e-9),
    st.sampled_from(DTYPES),
    st.integers(1, 5),
)
def test_numbers_and_state_are_torchs(
    count: int, drawn_before: int, probability: float, dtype: torch.dtype, threads: int
) -> None:
    before = torch.get_num_threads()
    data = torch.linspace(-3, 3, count).to(dtype)
    results = []
    try:
        for is_ours in (False, True):
            torch.set_num_threads(threads)
            torch.manual_seed(count)
            torch.empty(drawn_before, dtype=torch.int32).random_()
            if is_ours:
                with kernels() as patch:
                    output = F.dropout(data, probability)
                    assert patch.num_computed == 1
            else:
                output = F.dropout(data, probability)
            results.append((output, torch.get_rng_state(), torch.rand(700), torch.randn(20)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*each) for each in zip(*results, strict=True))


def values(*shape: int) -> Tensor:
    return torch.linspace(-2, 2, torch.Size(shape).numel()).reshape(shape).requires_grad_()


def module() -> list[Tensor]:
    data = values(40, 30)
    output = nn.Dropout(0.3)(data)
    output.sin().sum().backward()
    assert data.grad is not None
    return [output, data.grad]


def in_place() -> list[Tensor]:
    data = values(40, 30)
    middle = data * 2
    output = F.dropout(middle, 0.3, inplace=True)
    assert output is middle
    output.square().sum().backward()
    assert data.grad is not None
    return [output, data.grad]


def in_place_of_a_leaf() -> list[Tensor]:
    return [F.dropout(values(40, 30), 0.3, inplace=True)]


def of_infinity() -> list[Tensor]:
    return [F.dropout(torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0] * 99), 0.3)]


def channels_last() -> list[Tensor]:
    data = values(2, 3, 5, 7).to(memory_format=torch.channels_last)
    return [F.dropout(data, 0.3)]


def second_derivative() -> list[Tensor]:
    data = values(40, 30)
    (grad,) = torch.autograd.grad(F.dropout(data.square(), 0.3).sum(), data, create_graph=True)
    return [grad, *torch.autograd.grad(grad.square().sum(), data)]


def with_hooks_on_saved_tensors() -> list[Tensor]:
    data = values(40, 30)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x / 2):
        output = F.dropout(data, 0.3)
    output.sum().backward()
    assert data.grad is not None
    return [output, data.grad]


def checkpointed() -> list[Tensor]:
    data = values(40, 30)
    checkpoint(lambda x: F.dropout(x.sin(), 0.3), data, use_reentrant=False).sum().backward()
    assert data.grad is not None
    return [data.grad]


def of_torch() -> list[Tensor]:
    return [torch.dropout(values(40, 30), 0.3, True)]


def encoder() -> list[Tensor]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, "gelu", batch_first=True)
    output = layer(values(3, 5, 16))
    output.sin().sum().backward()
    return [output, *(weight.grad for weight in layer.parameters() if weight.grad is not None)]


def under_autocast() -> list[Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        return [F.dropout(F.linear(values(40, 30), torch.ones(5, 30)), 0.3)]


BY_KERNELS = [module, in_place, in_place_of_a_leaf, of_infinity, channels_last, second_derivative,
              with_hooks_on_saved_tensors, checkpointed, of_torch, encoder,
              under_autocast]  # fmt: skip


def transposed() -> list[Tensor]:
    return [F.dropout(values(40, 30).t(), 0.3)]


def expanded() -> list[Tensor]:
    return [F.dropout(values(40, 1).expand(40, 30), 0.3)]


def evaluated() -> list[Tensor]:
    return [F.dropout(values(40, 30), 0.3, training=False)]


def none_or_all() -> list[Tensor]:
    return [F.dropout(values(40, 30), 0.0), F.dropout(values(40, 30), 1.0)]


def beyond() -> list[Tensor]:
    return [torch.dropout(values(40, 30), 1.5, True)]


def of_integers() -> list[Tensor]:
    return [F.dropout(torch.arange(1000), 0.3)]


def in_inference() -> list[Tensor]:
    with torch.inference_mode():
        return [F.dropout(torch.ones(1000), 0.3).clone()]


def mapped() -> list[Tensor]:
    return [torch.vmap(lambda x: F.dropout(x, 0.3), randomness="different")(values(40, 30))]


def of_the_gradient_of_a_function() -> list[Tensor]:
    return [torch.func.grad(lambda x: F.dropout(x, 0.3).square().sum())(values(40, 30).detach())]


def compiled() -> list[Tensor]:
    return [torch.compile(lambda x: F.dropout(x, 0.3), backend="aot_eager", fullgraph=True)(
        values(40, 30)
    )]  # fmt: skip


def scripted() -> list[Tensor]:
    return [torch.jit.script(nn.Sequential(nn.Dropout(0.3)))(values(40, 30))]


BY_TORCH = [transposed, expanded, evaluated, none_or_all, beyond, of_integers, in_inference, mapped,
            of_the_gradient_of_a_function, compiled, scripted]  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("function", BY_KERNELS + BY_TORCH)
def test_a_script_cannot_tell(function: Callable[[], list[Tensor]]) -> None:
    expected = outcome(function)
    with kernels() as patch:
        found = outcome(function)
        assert bool(patch.num_computed) == (function in BY_KERNELS)
    assert are_same(found, expected)


ATTENTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "causal": {"is_causal": True}, "negative scale": {"scale": -0.5},
    "scale": {"scale": 2.0}, "mask of bool": {"attn_mask": torch.arange(35).reshape(5, 7) % 3 > 0},
    "mask of float": {"attn_mask": torch.linspace(-1, 1, 35).reshape(5, 7)},
    "rows without a key": {"attn_mask": torch.zeros(5, 7, dtype=torch.bool)},
}  # fmt: skip

OTHER_ATTENTIONS: dict[str, dict[str, Any]] = {
    "no dropout": {"dropout_p": 0.0}, "beyond": {"dropout_p": 1.5},
    "mask and causal": {"is_causal": True, "attn_mask": torch.zeros(5, 7)},
    "another mask": {"attn_mask": torch.zeros(5, 6)}, "unknown word": {"unknown": 1},
}  # fmt: skip


def attention(shape: tuple[int, ...], options: dict[str, Any]) -> Callable[[], list[Tensor]]:
    def compute() -> list[Tensor]:
        query, key, value = values(*shape, 5, 8), values(*shape, 7, 8), values(*shape, 7, 3)
        output = F.scaled_dot_product_attention(
            query, key, value, **{"dropout_p": 0.3, **options}
        )  # fmt: skip
        grads = torch.autograd.grad(output.sin().sum(), (query, key, value))
        return [output.detach(), *grads]

    return compute


@pytest.mark.parametrize("shape", [(2, 3), (4,), (1, 2, 2)])
@pytest.mark.parametrize("name", [*ATTENTIONS, *OTHER_ATTENTIONS])
def test_attention_with_dropout_is_torchs(name: str, shape: tuple[int, ...]) -> None:
    function = attention(shape, (ATTENTIONS | OTHER_ATTENTIONS)[name])
    expected = outcome(function)
    with kernels() as patch:
        found = outcome(function)
        assert bool(patch.num_computed) == (name in ATTENTIONS)
    assert are_same(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_attention_in_other_dtypes_is_left_to_torch(dtype: torch.dtype) -> None:
    with kernels() as patch:
        tensors = [values(2, 3, 5, 8).to(dtype) for _ in range(3)]
        F.scaled_dot_product_attention(*tensors, dropout_p=0.3)
        with torch.autocast("cpu", torch.bfloat16):
            tensors = [values(2, 3, 5, 8) for _ in range(3)]
            F.scaled_dot_product_attention(*tensors, dropout_p=0.3)
        assert patch.num_computed == 0


def test_the_graph_is_torchs() -> None:
    names = []
    for _ in range(2):
        node = F.dropout(values(40, 30), 0.3).grad_fn
        names.append(type(node).__name__)
        with kernels():
            names.append(type(F.dropout(values(40, 30), 0.3).grad_fn).__name__)
    assert names == ["MulBackward0"] * 4


def test_subclasses_and_modes_see_the_call() -> None:
    class Loud(torch.Tensor):
        pass

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        names: list[str] = []  # noqa: RUF012

        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    with kernels() as patch:
        assert type(F.dropout(torch.ones(1000).as_subclass(Loud), 0.3)) is Loud
        with Mode():
            F.dropout(torch.ones(1000), 0.3)
        assert "aten.bernoulli_.float" in Mode.names
        assert patch.num_computed == 0


def test_numbers_that_another_thread_drew_meanwhile_are_not_drawn_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with kernels() as patch:
        loaded = patch.kernels
        assert isinstance(loaded, DropoutKernels)
        draw = loaded._draw

        def interrupted(arguments: Any) -> None:
            draw(arguments)
            torch.rand(3)

        monkeypatch.setattr(loaded, "_draw", interrupted)
        torch.manual_seed(0)
        found = F.dropout(torch.ones(1000), 0.3)
        assert patch.num_computed == 0
    torch.manual_seed(0)
    torch.rand(3)
    assert torch.equal(found, F.dropout(torch.ones(1000), 0.3))


def test_threads_may_draw_at_the_same_time() -> None:
    """What they draw is from one sequence, in any order."""
    with kernels(), concurrent.futures.ThreadPoolExecutor(4) as pool:
        torch.manual_seed(0)
        list(pool.map(lambda _: F.dropout(torch.ones(2000), 0.5), range(40)))
        after = torch.get_rng_state()
    torch.manual_seed(0)
    for _ in range(40):
        F.dropout(torch.ones(2000), 0.5)
    assert torch.equal(after, torch.get_rng_state())


def test_kernels_that_draw_anything_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = DropoutKernels.noise
    monkeypatch.setattr(DropoutKernels, "noise", lambda *args: noise(*args).roll(1))
    patch = Dropouts()
    try:
        assert patch.load() is None
        assert patch.problem == "the compiled kernels are wrong"
    finally:
        patch.undo()


def test_a_forked_child_draws_as_python_does() -> None:
    """OpenMP's threads are not forked along; torch does without them where numbers are few."""
    patch = Dropouts()
    assert patch.load() is not None
    try:
        F.dropout(torch.ones(1 << 20), 0.5)  # the threads run
        pid = os.fork()
        if not pid:
            signal.alarm(30)
            F.dropout(torch.ones((1 << 15) - 1), 0.5)
            os._exit(patch.num_computed)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    finally:
        patch.undo()


def test_a_child_that_is_forked_while_a_thread_draws_can_draw() -> None:
    patch = Dropouts()
    assert patch.load() is not None
    try:
        with patch._lock:
            pid = os.fork()
            if not pid:
                signal.alarm(30)
                F.dropout(torch.ones(1 << 14), 0.5)
                os._exit(patch.num_computed)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    finally:
        patch.undo()


def test_what_was_there_before_comes_back() -> None:
    places = (torch, torch._VF, torch.nn.functional, torch._C._nn)
    names = ("dropout", "dropout_", "scaled_dot_product_attention")
    before = [getattr(place, name, None) for place in places for name in names]
    with kernels():
        assert torch.dropout is not before[0]
    assert [getattr(place, name, None) for place in places for name in names] == before


def test_small_inputs_are_left_to_torch() -> None:
    patch = Dropouts()
    try:
        F.dropout(torch.ones(runtime.MIN_ELEMENTS - 1), 0.3)
        F.scaled_dot_product_attention(*[values(2, 3, 5, 8)] * 3, dropout_p=0.3)
        assert patch.num_computed == 0
        assert patch.kernels is None
    finally:
        patch.undo()
