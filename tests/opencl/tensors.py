"""Tensors on an OpenCL device: values, forms, and what is kept of them in files."""

from __future__ import annotations

import copy
import io
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cputrain.opencl
from cputrain.opencl import reset_fallbacks
from cputrain.opencl.device import rounded_block_size
from cputrain.opencl.elementwise import collapse_dims

LAST = torch.channels_last

TYPES = [
    torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool,
    torch.float16, torch.bfloat16, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_values_go_there_and_come_back(kind):
    value = (torch.randn(3, 4) * 5).to(kind)
    there = value.to("ocl")
    assert there.device == torch.device("ocl:0")
    assert there.dtype == kind
    assert torch.equal(there.cpu(), value)
    assert torch.equal(there.clone().t().cpu(), value.t())
    assert there.to("ocl") is there


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x.permute(1, 0)[2],
        lambda x: x.view(-1)[5:],
        lambda x: x.unsqueeze(1).expand(4, 3, 6),
        lambda x: x.diagonal(),
        lambda x: x.unfold(1, 2, 2),
        lambda x: x.as_strided((2, 3), (1, 6), 2),
        lambda x: x.chunk(3, 1)[2],
        lambda x: x.reshape(2, -1),
    ],
)
def test_views_are_of_the_same_memory(view):
    value = torch.randn(4, 6)
    there = value.to("ocl")
    assert torch.equal(view(there).cpu(), view(value))
    if not view(value)._is_view() or 0 in view(value).stride():
        return
    for one in (value, there):
        view(one).mul_(3).add_(1)
    assert torch.equal(there.cpu(), value)


def test_another_type_of_the_same_bits():
    value = torch.randn(2, 4)
    for kind in (torch.int32, torch.uint8, torch.int64):
        assert torch.equal(value.to("ocl").view(kind).cpu(), value.view(kind))
    numbers = torch.randn(3, dtype=torch.complex64)
    assert torch.equal(torch.view_as_real(numbers.to("ocl")).cpu(), torch.view_as_real(numbers))
    assert torch.equal((numbers.to("ocl").conj() * 2).cpu(), numbers.conj() * 2)


def test_makers_of_tensors():
    for make in (
        lambda where: torch.zeros(2, 3, device=where),
        lambda where: torch.full((2,), 7, device=where),
        lambda where: torch.arange(5, device=where),
        lambda where: torch.linspace(0, 1, 4, device=where),
        lambda where: torch.eye(3, device=where),
        lambda where: torch.tensor([[1, 2], [3, 4]], device=where),
        lambda where: torch.ones(2, 2, device=where).new_full((3,), 2.5),
        lambda where: torch.ones(2, 3, 4, 5, device=where).contiguous(memory_format=LAST) * 2,
        lambda where: torch.full_like(torch.ones(3, 2, device=where).t(), 4),
    ):  # fmt: skip
        expected, found = make("cpu"), make("ocl")
        assert torch.equal(found.cpu(), expected)
        assert found.stride() == expected.stride()


def test_sizes_change_in_place():
    x = torch.arange(6.0, device="ocl")
    x.resize_(2, 2)
    assert torch.equal(x.cpu(), torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    x.resize_(3, 3)
    assert torch.equal(x.cpu().flatten()[:4], torch.arange(4.0))
    x.copy_(torch.arange(9.0).view(3, 3))  # what was added holds any bits, NaN among them
    x.unsqueeze_(0).squeeze_()
    assert x.shape == (3, 3)
    out = torch.empty(0, device="ocl")
    torch.add(x, 1, out=out)
    assert torch.equal(out.cpu(), x.cpu() + 1)
    torch.exp(out, out=out)
    assert torch.allclose(out.cpu(), (x.cpu() + 1).exp())


def test_it_is_printed_like_any_other():
    x = torch.ones(2, device="ocl", requires_grad=True)
    assert repr(x) == "tensor([1., 1.], device='ocl:0', requires_grad=True)"


def test_files_are_read_anywhere():
    x = torch.nn.Parameter(torch.randn(3, device="ocl"))
    held = io.BytesIO()
    torch.save({"x": x, "same": x, "y": x.detach() + 1}, held)
    for where, kind in ((None, "ocl"), ("cpu", "cpu"), ("ocl", "ocl")):
        held.seek(0)
        found = torch.load(held, map_location=where)
        assert {one.device.type for one in found.values()} == {kind}
        assert torch.equal(found["x"].cpu(), x.detach().cpu())
        assert found["x"].requires_grad
        assert isinstance(found["x"], torch.nn.Parameter)
        assert found["x"] is found["same"]


def test_copies_have_memory_of_their_own():
    x = torch.nn.Parameter(torch.ones(3, device="ocl"))
    x.tag = ["mine"]
    x.sum().backward()
    other = copy.deepcopy(x)
    assert isinstance(other, torch.nn.Parameter)
    assert torch.equal(other.grad.cpu(), torch.ones(3))
    assert other.tag == ["mine"]
    assert other.tag is not x.tag
    with torch.no_grad():
        other.add_(1)
    assert torch.equal(x.detach().cpu(), torch.ones(3))
    pair = copy.deepcopy([x, x])
    assert pair[0] is pair[1]
    with pytest.raises(RuntimeError, match="leaves"):
        copy.deepcopy(x * 2)


def test_data_brings_its_memory():
    x = torch.nn.Parameter(torch.tensor([3.0, -3.0], device="ocl"))
    x.data = x.data.clamp(-1, 1)
    assert x.tolist() == [1.0, -1.0]
    x.data = torch.ones(1 << 20, device="ocl")
    with torch.no_grad():
        x.add_(1)
    assert x.sum().item() == 2 << 20
    for kind in (torch.float64, torch.bfloat16, torch.float32):
        model = torch.nn.Linear(2, 2)
        expected = model.weight.detach().to(kind)
        model.to("ocl").to(kind)
        assert torch.equal(model.weight.detach().cpu(), expected)
    torch.nn.utils.vector_to_parameters(torch.arange(6.0, device="ocl"), model.parameters())
    assert model.bias.tolist() == [4.0, 5.0]


def test_one_takes_the_place_of_another():
    x, y = torch.zeros(3).to("ocl"), torch.ones(3).to("ocl")
    x.set_(y)
    y.mul_(2)
    assert x.tolist() == [2.0, 2.0, 2.0]
    x.set_(torch.ones(2, 2).to("ocl"))
    assert x.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_a_form_that_cannot_be_is_refused_as_everywhere():
    with pytest.raises(RuntimeError, match=r"t\(\) expects a tensor with <= 2 dimensions"):
        torch.ones(2, 2, 2).to("ocl").t_()
    with pytest.raises(IndexError):
        torch.ones(2).to("ocl").unsqueeze_(5)


def test_several_views_of_one_memory_are_written_to():
    x = torch.zeros(6, device="ocl")
    torch._foreach_add_([x[:3], x[3:]], 1.0)
    assert x.tolist() == [1.0] * 6
    x[:3].cumsum_(0)
    assert x.tolist() == [1.0, 2.0, 3.0, 1.0, 1.0, 1.0]


def test_numbers_are_shown_as_numbers():
    x = torch.tensor([1.25, 2.0], device="ocl", requires_grad=True)
    assert f"{x[0]:.3f}" == "1.250"
    assert x.tolist() == [1.25, 2.0]
    assert int(x[1]) == 2
    for ask in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(TypeError, match=r"\.cpu\(\)"):
            ask()


def test_it_goes_where_it_is_asked_to():
    x = torch.ones(3, device="ocl")
    assert x.to("meta").device.type == "meta"
    for make in (torch.zeros_like, torch.empty_like, torch.rand_like):
        assert make(x, device="meta").device.type == "meta"
        assert make(x, device="cpu").device.type == "cpu"
    assert x.new_zeros(2, device="cpu").device.type == "cpu"
    for ask in (lambda: torch.empty(1, device="ocl:7"), lambda: x.to("ocl:7")):
        with pytest.raises(RuntimeError, match="there is no device ocl:7: there are"):
            ask()


def test_types_are_those_of_the_moment():
    x = torch.ones(3, dtype=torch.int64, device="ocl")
    assert (x * 1.5).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert (x * 1.5).dtype == torch.float64
        assert x.sqrt().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_values_that_do_not_fit_are_those_of_the_cpu():
    for kind, value in ((torch.bool, 0.5), (torch.uint8, -1), (torch.int32, 2.7)):
        expected = torch.zeros(2, dtype=kind).fill_(value)
        assert torch.equal(torch.zeros(2, dtype=kind, device="ocl").fill_(value).cpu(), expected)
    for wrong in (
        lambda where: torch.zeros(1, device=where).fill_(1e40),
        lambda where: torch.zeros(1, device=where).expand(4).add_(1),
        lambda where: torch.softmax(torch.ones(3, dtype=torch.int64, device=where), 0),
    ):
        for where in ("cpu", "ocl"):
            with pytest.raises(RuntimeError):
                wrong(where)
    nothing = torch.tensor([float("nan")], device="ocl")
    for bent in (torch.nn.functional.hardsigmoid, torch.nn.functional.hardswish, torch.relu):
        assert bent(nothing).isnan().item()


@pytest.mark.filterwarnings("ignore:The argument 'device':DeprecationWarning")
def test_loaders_may_pin_memory():
    batches = list(torch.utils.data.DataLoader(torch.ones(4, 2), 2, pin_memory=True))
    assert len(batches) == 2


def test_memory_at_work_is_not_freed():
    """While one thread works, another says that nothing is to be kept."""
    end = threading.Event()

    def empties():
        while not end.is_set():
            torch.ocl.empty_cache()

    thread = threading.Thread(target=empties)
    thread.start()
    try:
        for _ in range(200):
            x = torch.ones(1 << 16, device="ocl")
            x.mul_(2)
            del x
    finally:
        end.set()
        thread.join()
    torch.ocl.empty_cache()
    stats = torch.ocl.memory_stats()
    assert stats["reserved"] == stats["allocated"]


def test_memory_is_used_again():
    torch.ocl.empty_cache()
    before = torch.ocl.memory_stats()["allocated"]
    for _ in range(10):
        x = torch.zeros(1 << 20, device="ocl")
    assert torch.ocl.memory_stats()["allocated"] - before == 4 << 20
    assert torch.ocl.memory_stats()["reserved"] - before <= 8 << 20
    del x
    assert torch.ocl.memory_stats()["allocated"] == before
    torch.ocl.empty_cache()
    assert torch.ocl.memory_stats()["reserved"] == before


@given(st.integers(0, 1 << 40))
def test_a_block_is_little_larger_than_what_is_in_it(size):
    room = rounded_block_size(size)
    assert room >= size
    assert room <= max(512, size + size / 8 + 512)
    assert rounded_block_size(room) == room


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), max_size=5), st.data())
def test_folded_dimensions_are_the_same_places(size, data):
    order = data.draw(st.permutations(range(len(size))))
    twin = torch.arange(torch.Size(size).numel()).reshape([size[dim] for dim in order])
    twin = twin.permute([order.index(dim) for dim in range(len(size))])
    sizes, (steps, flat) = collapse_dims(
        twin.shape, [list(twin.stride()), list(torch.empty(size).stride())]
    )
    places, others = [0], [0]
    for n, step, plain in zip(sizes, steps, flat, strict=True):
        places = [place + step * at for at in range(n) for place in places]
        others = [place + plain * at for at in range(n) for place in others]
    assert others == list(range(twin.numel()))
    assert [
        twin.as_strided((1,), (1,), place).item() for place in places
    ] == twin.flatten().tolist()
    assert len(sizes) <= max(1, len(size))


def test_counting_begins_anew():
    torch.ones(3, device="ocl").cumsum(0)
    assert cputrain.opencl.fallbacks()
    reset_fallbacks()
    assert cputrain.opencl.fallbacks() == []


WRITES = {
    "copy_": lambda x: x[1:].copy_(x[:-1]),
    "add_": lambda x: x[1:].add_(x[:-1]),
    "mul_": lambda x: x[:-1].mul_(x[1:]),
    "to all": lambda x: x[:1].expand(3, 1).copy_(torch.ones(3, 1).to(x.device)),
    "apart": lambda x: x[:3].copy_(x[3:6]),
    "itself": lambda x: x.copy_(x),
    "steps": lambda x: x[::2].add_(x[1::2]),
}


@pytest.mark.parametrize("name", WRITES)
def test_writing_to_what_is_read_is_refused_as_on_the_cpu(name):
    found = []
    for where in ("cpu", "ocl"):
        x = torch.arange(8.0).to(where)
        try:
            WRITES[name](x)
            found.append((None, x.tolist()))
        except RuntimeError as error:
            found.append((str(error), x.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["hardtanh", "relu6", "leaky_relu", "silu", "elu", "softplus"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_functions_of_whole_numbers_are_the_cpus(name, dtype):
    function = getattr(torch.nn.functional, name)
    x = torch.arange(-3, 4).to(dtype)
    try:
        expected = function(x)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            function(x.to("ocl"))
        return
    found = function(x.to("ocl"))
    assert found.dtype is expected.dtype
    assert found.tolist() == expected.tolist()
