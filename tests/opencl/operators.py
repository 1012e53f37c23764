"""Torch's own database of operators: with a kernel or without, they give what the CPU gives."""

from __future__ import annotations

import itertools
import os
import random
import re
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as tree

from cputrain.opencl import fallbacks, reset_fallbacks
from cputrain.opencl.table import KERNELS

SEED = int(os.environ.get("CASES_SEED") or random.randrange(1 << 32))

SAMPLES = 2
"""Of each operator. (All of them take minutes.)"""

UNDEFINED = {"empty", "empty_like", "empty_permuted", "new_empty", "new_empty_strided",
             "empty_strided"}  # fmt: skip
"""Values are whatever is in memory."""

DRAWN = {"normal", "uniform", "randn", "randn_like", "randint", "randint_like", "rand_like",
         "bernoulli", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
         "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
         "nn.functional.rrelu", "nn.functional.fractional_max_pool2d",
         "nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward",
         "nn.functional.scaled_dot_product_attention"}  # fmt: skip
"""Random numbers are the device's own: these have the form of the CPU's. See drawn.py."""

NEEDS = {
    "to": "is asked for the CPU",
    "tensor_split": "wants its indices on the CPU, as it does on any device",
    "to_sparse": "gives what is on the CPU only", "sparse.sampled_addmm": "the same",
    "sparse.mm": "the same",
}  # fmt: skip
"""Why an operator is not compared."""

OPERATORS = [
    one for one in op_db
    if torch.float32 in one.dtypes and not one.name.startswith("jiterator")  # CUDA's own
    and one.name not in UNDEFINED | NEEDS.keys()
    and one.variant_test_name != "partial_views"  # looks beyond its tensor
]  # fmt: skip


TYPES = {
    torch.float32: 1e-4,
    torch.float64: 1e-7,
    torch.float16: 2e-2,
    torch.int64: 0,
    torch.bool: 0,
}
"""Types of numbers, and how far results of each may be apart."""

AMBIGUOUS = re.compile(
    "svd|pca|linalg|lu|qr|eig|inv|det|solve|chol|lstsq|pinv|rank|ormqr|geqrf|median|mode|sort|topk"
    "|kthvalue|max|min|unique|quantile|norm|dist"
)
"""Operators that have more than one right result, or gradient, where elements are equal."""

WITH_KERNELS: set[str] = set()
"""Operators that the CPU did nothing of."""


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")


def sent(value, where):
    def moved(one):
        there = one.detach().to(where)
        own = there.clone() if there.data_ptr() == one.data_ptr() else there
        return own.requires_grad_(one.requires_grad)

    found = tree.tree_map_only(torch.Tensor, moved, value)
    if isinstance(found, dict) and str(found.get("device", "")) == "cpu":
        found["device"] = where
    return found


def transposed(one):
    return one.transpose(0, -1).contiguous().transpose(0, -1)


def gapped(one):
    wide = torch.full((*one.shape[:-1], 2 * one.shape[-1] + 1), 7, device=one.device).to(one.dtype)
    wide[..., 1::2] = one
    return wide[..., 1::2]


def moved_on(one):
    """Begins in the middle of its memory."""
    flat = torch.full((one.numel() + 5,), 7, device=one.device).to(one.dtype)
    found = flat[3:-2].view(one.shape)
    found.copy_(one)
    return found


def expanded(one):
    return one[..., :1].clone().expand(one.shape)


LAYOUTS = {one.__name__: one for one in (transposed, gapped, moved_on, expanded)}
"""How the elements of an input may lie in memory, beside one behind the other."""


def laid_out(value, layout):
    """The same with tensors in another layout; where it is expanded, with fewer values."""

    def lie(one):
        if not one.dim() or not one.numel() or one.layout is not torch.strided:
            return one
        return LAYOUTS[layout](one.detach()).requires_grad_(one.requires_grad)

    return tree.tree_map_only(torch.Tensor, lie, value)


def leaves(value):
    return [one for one in tree.tree_leaves(value) if isinstance(one, torch.Tensor)]


def again(operator, sample, layout=None):
    """What the fourth call gives, which is by what is known of it: the others are all there, so
    nothing is where theirs was."""
    calls = [done(operator, sample, "ocl", layout) for _ in range(4)]
    for one in leaves(calls):
        form = one.form
        assert (form.size, form.stride) == (tuple(one.size()), tuple(one.stride()))
        assert (form.offset, form.dtype) == (one.storage_offset(), one.dtype)
    return calls[-1]


def done(operator, sample, where, layout=None):
    """Outputs, and gradients of their sum."""
    torch.manual_seed(0)
    given = sent((sample.input, sample.args), where)
    options = sent(dict(sample.kwargs), where)
    if layout is not None:
        given, options = laid_out(given, layout), laid_out(options, layout)
    out = leaves(operator(given[0], *given[1], **options))
    learns = [one for one in leaves((given, options)) if one.requires_grad]
    ends = [one for one in out if one.requires_grad]
    if not ends or not learns:
        return out, []
    total = [one.abs().sum() if one.is_complex() else one.sum() for one in ends]
    return out, torch.autograd.grad(total, learns, allow_unused=True)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda one: one.full_name)
def test_it_gives_what_the_cpu_gives(operator):
    warnings.simplefilter("ignore")
    samples = operator.sample_inputs("cpu", torch.float32, requires_grad=operator.supports_autograd)
    for sample in itertools.islice(samples, SAMPLES):
        if assert_as_on_cpu(operator, sample, 1e-4) and not fallbacks():
            WITH_KERNELS.add(operator.full_name)


def assert_as_on_cpu(operator, sample, tolerance, layout=None):
    """Fails where the device gives something else; False where the CPU gives nothing."""
    try:
        expected, gradients = done(operator, sample, "cpu", layout)
    except RuntimeError:
        return False  # it is not defined there
    reset_fallbacks()
    found, others = again(operator, sample, layout)
    assert len(found) == len(expected)
    drawn = operator.name in DRAWN
    for one, other in zip(found, expected, strict=True):
        assert one.device.type == "ocl"
        if drawn:
            assert (one.size(), one.dtype) == (other.size(), other.dtype)
            continue
        close = max(tolerance, TYPES.get(other.dtype, 0))
        torch.testing.assert_close(
            one.detach().cpu(), other.detach(), rtol=close, atol=close, equal_nan=True
        )
    for one, other in zip(others, gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None and not drawn:
            torch.testing.assert_close(
                one.cpu(), other, rtol=10 * tolerance, atol=10 * tolerance, equal_nan=True,
                check_stride=False,
            )  # fmt: skip
    return True


@pytest.mark.parametrize(
    "operator",
    [one for one in OPERATORS if one.name not in ("svd_lowrank", "pca_lowrank")],  # by chance
    ids=lambda one: one.full_name,
)
def test_it_does_in_other_types_and_layouts(operator):
    """Of each a part, another one in each run."""
    warnings.simplefilter("ignore")
    draws = random.Random(f"{SEED} {operator.full_name}")
    dtype = draws.choice([one for one in TYPES if one in operator.dtypes])
    layout = draws.choice([None, *LAYOUTS])
    if layout == "expanded" and AMBIGUOUS.search(operator.full_name):
        layout = "gapped"
    learns = operator.supports_autograd and dtype.is_floating_point
    samples = list(itertools.islice(operator.sample_inputs("cpu", dtype, requires_grad=learns), 20))
    print(f"CASES_SEED={SEED}", dtype, layout)
    assert_as_on_cpu(operator, draws.choice(samples), TYPES[dtype], layout)


def test_how_many_have_kernels():
    print(f"{len(WITH_KERNELS)} of {len(OPERATORS)} operators ran a sample without the CPU; "
          f"{len(KERNELS)} overloads have kernels")  # fmt: skip
    assert len(KERNELS) > 200
    assert {"nn.functional.conv2d", "mm", "nn.functional.max_pool2d"} <= WITH_KERNELS
