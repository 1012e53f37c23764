"""Operations of operators, counted by hand: sums of ones are the number of products."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from cputrain.runtime.flops import COUNTED, FORMULAS, bind, count_flops
from cputrain.runtime.operators import OperatorTrace


def traced(run, *args):
    """The operators that a function calls."""
    return traced_steps([run], *args)["operators"]


def traced_steps(runs, *args):
    """What is told of functions that are called one after the other, each a step."""
    trace = OperatorTrace(torch)
    trace.begin()
    try:
        for run in runs:
            trace.new_step()
            run(*args)
    finally:
        trace.stop()
    return trace.document()


def flops_by_name(run, *args):
    """The operations of each operator that has any."""
    flops = {}
    for operator in traced(run, *args):
        if operator["flops"]:
            total = operator["flops"] * operator["calls"]
            flops[operator["name"]] = flops.get(operator["name"], 0) + total
    return flops


sizes = st.integers(1, 5)

CONVOLUTIONS = {
    False: (functional.conv1d, functional.conv2d, functional.conv3d),
    True: (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d),
}


@st.composite
def convolutions(draw):
    """Any convolution that torch takes, of ones: images, weight, and what else it is given."""
    num_dims = draw(st.integers(1, 3))
    transposed, groups = draw(st.booleans()), draw(st.integers(1, 4))

    def each(low, high):
        return [draw(st.integers(low, high)) for _ in range(num_dims)]

    kernel, dilation, stride, padding = each(1, 3), each(1, 3), each(1, 3), each(0, 3)
    image = each(1, 7)
    inputs, outputs = draw(st.integers(1, 3)) * groups, draw(st.integers(1, 3)) * groups
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if transposed:
        lengths = [(n - 1) * s - 2 * p + r
                   for n, s, p, r in zip(image, stride, padding, reach, strict=True)]  # fmt: skip
        options["padding"] = [p if length > 0 else 0
                              for p, length in zip(padding, lengths, strict=True)]  # fmt: skip
        options["output_padding"] = [
            draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)
        ]
        weight = (inputs, outputs // groups, *kernel)
    else:
        image = [max(n, r - 2 * p) for n, r, p in zip(image, reach, padding, strict=True)]
        weight = (outputs, inputs // groups, *kernel)
    batch = draw(st.integers(1, 3))
    return (CONVOLUTIONS[transposed][num_dims - 1], torch.ones(batch, inputs, *image),
            torch.ones(weight), options)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(convolutions(), st.sampled_from([(True, True), (True, False), (False, True)]))
def test_a_convolution_and_its_gradients(case, needs):
    convolve, images, weight, options = case
    products = convolve(images.double(), weight.double(), **options).sum().item()
    images.requires_grad_(needs[0])
    weight.requires_grad_(needs[1])
    flops = flops_by_name(lambda: convolve(images, weight, **options).sum().backward())
    assert flops == {
        name: count for name, count in {
            "convolution": 2 * products, "convolution_backward": 2 * products * sum(needs),
        }.items() if count
    }  # fmt: skip


def test_the_gradient_of_a_grouped_weight_is_not_counted_for_each_group():
    """Whether torch's own formula does so or not."""
    images = torch.ones(2, 8, 6, 6)
    weight = torch.ones(8, 1, 3, 3, requires_grad=True)
    flops = flops_by_name(lambda: functional.conv2d(images, weight, groups=8).sum().backward())
    assert flops["convolution_backward"] == flops["convolution"] == 2 * 2 * 8 * 16 * 9


@settings(deadline=None)
@given(st.tuples(sizes, sizes, sizes, sizes))
def test_products_of_matrices(shape):
    batch, rows, inner, columns = shape
    left, right = torch.ones(rows, inner), torch.ones(inner, columns)
    lefts, rights = torch.ones(batch, rows, inner), torch.ones(batch, inner, columns)
    added = torch.ones(columns)
    products = 2 * int((left @ right).sum())
    for run, flops in {
        (lambda: torch.mm(left, right)): {"mm": products},
        (lambda: torch.addmm(added, left, right)): {"addmm": products},
        (lambda: torch._addmm_activation(added, left, right)): {"_addmm_activation": products},
        (lambda: torch.bmm(lefts, rights)): {"bmm": batch * products},
        (lambda: torch.baddbmm(added, lefts, rights)): {"baddbmm": batch * products},
        (lambda: torch.addbmm(added, lefts, rights)): {"addbmm": batch * products},
        (lambda: torch.mv(left, torch.ones(inner))): {"mv": 2 * rows * inner},
        (lambda: torch.addmv(torch.ones(rows), left, torch.ones(inner))): {
            "addmv": 2 * rows * inner
        },
        (lambda: torch.dot(torch.ones(inner), torch.ones(inner))): {"dot": 2 * inner},
        (lambda: torch.mm(left.cfloat(), right.cfloat())): {"mm": 4 * products},
    }.items():
        assert flops_by_name(run) == flops
    # where torch does not take composed operators apart, they are taken apart all the same
    with torch.inference_mode():
        assert flops_by_name(lambda: functional.linear(lefts, right.T)) == {"mm": batch * products}


def test_products_of_whole_numbers():
    left = torch.ones((32, 64), dtype=torch.int8)
    right = torch.ones((64, 16), dtype=torch.int8)
    assert flops_by_name(lambda: torch._int_mm(left, right)) == {"_int_mm": 2 * 32 * 64 * 16}


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4), st.integers(0, 9))
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_products_with_a_sparse_matrix(rows, inner, columns, stored):
    """Elements that are not stored are not multiplied."""
    dense = torch.zeros(rows * inner)
    dense[:stored] = 1
    dense, other = dense.view(rows, inner), torch.ones(inner, columns)
    products = 2 * int((dense @ other).sum())
    for sparse in (dense.to_sparse(), dense.to_sparse_csr()):
        func, arguments = torch.ops.aten.mm.default, (sparse, other)
        assert count_flops(torch, func, arguments, {}, torch.mm(*arguments)) == products
    assert (
        count_flops(
            torch, torch.ops.aten.mm.default, (dense.to_sparse(), other.to_sparse()), {}, None
        )
        == 0
    )


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 2), st.sampled_from([(1, 1), (2, 2), (4, 2), (4, 1)]), st.integers(1, 40),
    st.integers(1, 40), st.integers(1, 9), st.sampled_from(["", "causal", "mask"]),
)  # fmt: skip
def test_attention_and_its_gradients(batch, heads, num_queries, num_keys, width, kind):
    query = torch.ones(batch, heads[0], num_queries, width, requires_grad=True)
    key, value = (
        torch.ones(batch, heads[1], num_keys, width, requires_grad=True) for _ in range(2)
    )
    pairs = torch.ones(num_queries, num_keys)
    pairs = pairs.tril() if kind == "causal" else pairs
    scores = int(pairs.sum()) * batch * heads[0]

    def run():
        functional.scaled_dot_product_attention(
            query, key, value, is_causal=kind == "causal", enable_gqa=heads[0] != heads[1],
            attn_mask=torch.zeros(num_queries, num_keys) if kind == "mask" else None,
        ).sum().backward()  # fmt: skip

    name = "_scaled_dot_product_flash_attention_for_cpu"
    flops = flops_by_name(run)
    if name in flops:  # two products with scores; in the backward pass five
        assert flops == {name: 4 * scores * width, f"{name}_backward": 10 * scores * width}
    else:  # composed of other operators, which know nothing of a mask
        assert sum(flops.values()) >= 12 * scores * width


@pytest.mark.filterwarnings("ignore:TF32:UserWarning")
@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True])
def test_recurrent_layers(layer, layers, both):
    """As many with oneDNN's kernel as without it, in single products."""
    model = layer(5, 6, layers, bidirectional=both)
    batch = torch.ones(4, 3, 5, requires_grad=True)
    num_states = layers * (1 + both)
    state = torch.ones(num_states, 3, 6, requires_grad=True)
    cell = torch.ones(num_states, 3, 6, requires_grad=True)
    states = (state, cell) if layer is torch.nn.LSTM else state

    def run():
        model(batch, states)[0].sum().backward()

    with torch.backends.mkldnn.flags(enabled=False):
        single = flops_by_name(run)
    assert set(single) <= {"mm", "addmm"}
    assert sum(flops_by_name(run).values()) == sum(single.values())


def test_every_formula_is_of_an_operator():
    for name in FORMULAS:
        namespace, _, short = name.partition("::")
        assert hasattr(getattr(torch.ops, namespace), short), name
    assert "mm" in COUNTED


@settings(deadline=None)
@given(st.lists(sizes, min_size=3, max_size=3))
def test_arguments_are_named_by_the_schema(shape):
    func = torch.ops.aten.addmm.default
    assert bind(func, shape, {"beta": 2}) == {
        "self": shape[0], "mat1": shape[1], "mat2": shape[2], "beta": 2, "alpha": 1,
    }  # fmt: skip


def test_an_operator_of_the_users_is_counted_as_the_user_says():
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    @torch.library.custom_op("cputrain_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    packet = torch.ops.cputrain_test.twice
    register_flop_formula(packet)(lambda shape, *_, **__: prod(shape))
    try:
        assert flops_by_name(lambda: twice(torch.ones(3, 4))) == {"twice": 12}
        del flop_registry[packet]
        register_flop_formula(packet)(lambda *_, **__: 1 // 0)
        assert flops_by_name(lambda: twice(torch.ones(3, 4))) == {}  # and the script goes on
    finally:
        flop_registry.pop(packet, None)
