"""Torch's own database of operators: in every type and layout they give what the CPU gives.

A run takes some cases of each operator, by CASES_SEED, which a failure prints; CASES says how many.
CPUTRAIN_TEST_ALL=1 takes all: each type, layout, sample and variant, in hours; CASES_PART=2/8 the
second of eight parts of the operators. OPERATORS_TABLE=FILE writes who computed what.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.utils import _pytree as tree

from cputrain.opencl import fallbacks, reset_fallbacks
from cputrain.opencl.device import Device, devices
from cputrain.opencl.table import KERNELS

SEED = int(os.environ.get("CASES_SEED") or random.randrange(1 << 32))

CASES = int(os.environ.get("CASES") or 2)
"""Of each operator, in a run that takes a part."""

TAKES_ALL = bool(os.environ.get("CPUTRAIN_TEST_ALL"))

PART, PARTS = map(int, (os.environ.get("CASES_PART") or "1/1").split("/"))

SAMPLES = 40
"""Of an operator and type, at the most: some have hundreds that are alike."""

UNDEFINED = {"empty", "empty_like", "empty_permuted", "new_empty", "new_empty_strided",
             "empty_strided"}  # fmt: skip
"""Values are whatever is in memory."""

DRAWN = {"normal", "uniform", "randn", "randn_like", "randint", "randint_like", "rand_like",
         "bernoulli", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
         "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
         "nn.functional.rrelu", "nn.functional.fractional_max_pool2d",
         "nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward",
         "nn.functional.scaled_dot_product_attention", "multinomial", "cauchy", "exponential",
         "geometric", "log_normal", "svd_lowrank", "pca_lowrank"}  # fmt: skip
"""Random numbers are the device's own: these have the shape and type of the CPU's. See drawn.py."""

GROWN = {"resize_", "resize_as_"}
"""Where they grow, the new elements are whatever is in memory: shapes are compared."""

NEEDS = {
    "to": "is asked for the CPU",
    "tensor_split": "wants its indices on the CPU, as it does on any device",
    "to_sparse": "gives what is on the CPU only", "sparse.sampled_addmm": "the same",
    "sparse.mm": "the same",
}  # fmt: skip
"""Why an operator is not compared."""

TYPES = {
    torch.float32: 1e-4,
    torch.float64: 1e-7,
    torch.int64: 0,
    torch.bool: 0,
    torch.float16: 2e-2,
    torch.bfloat16: 8e-2,
}
"""Types of numbers, and how far results of each may be apart."""

OPERATORS = [
    one for one in op_db
    if one.dtypes & TYPES.keys() and not one.name.startswith("jiterator")  # CUDA's own
    and one.name not in UNDEFINED | NEEDS.keys()
    and one.variant_test_name != "partial_views"  # looks beyond its tensor
][PART - 1 :: PARTS]  # fmt: skip

AMBIGUOUS = re.compile(
    "svd|pca|linalg|lu|qr|eig|inv|det|solve|chol|lstsq|pinv|rank|ormqr|geqrf|median|mode|sort|topk"
    "|kthvalue|max|min|unique|quantile|norm|dist"
)
"""Operators that have more than one right result, or gradient, where elements are equal."""

RESULTS: dict[tuple[str, torch.dtype], set[str]] = {}
"""By operator and type: "kernel", "CPU", or "refused" where only the CPU takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A call of an operator."""

    dtype: torch.dtype
    layout: str
    is_in_place: bool
    sample: int

    def describe(self, operator):
        kind = str(self.dtype).removeprefix("torch.")
        variant = "in place, " if self.is_in_place else ""
        return f"{operator.full_name}: {kind}, {self.layout}, {variant}sample {self.sample}"


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")
    for place in (common_utils, core):  # looks for a unittest on the stack, for a third of a second
        monkeypatch.setattr(place, "extract_test_fn", lambda: None)


@pytest.fixture(scope="module", autouse=True)
def _memory():
    """NaN in what is free; in every other run as if the device had memory of its own, as a GPU."""
    Device.should_poison = True
    if random.Random(SEED).random() < 0.5:
        for one in devices():
            one.shares_memory = False


def sent(value, where):
    def moved(one):
        there = one.detach().to(where)
        own = there.clone() if there.data_ptr() == one.data_ptr() else there
        return own.requires_grad_(one.requires_grad)

    found = tree.tree_map_only(torch.Tensor, moved, value)
    if isinstance(found, dict) and str(found.get("device", "")) == "cpu":
        found["device"] = where
    return found


def contiguous(one):
    return one.contiguous()


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


LAYOUTS = {one.__name__: one for one in (contiguous, transposed, gapped, moved_on, expanded)}
"""How the elements of an input lie in memory."""


def laid_out(value, layout):
    """The same with tensors in another layout; where it is expanded, with fewer values."""

    def lie(one):
        if not one.dim() or not one.numel() or one.layout is not torch.strided:
            return one
        return LAYOUTS[layout](one.detach()).requires_grad_(one.requires_grad)

    return tree.tree_map_only(torch.Tensor, lie, value)


def leaves(value):
    return [one for one in tree.tree_leaves(value) if isinstance(one, torch.Tensor)]


def done(operator, sample, case, where):
    """Outputs, gradients of their sum, and what the inputs are afterwards."""
    torch.manual_seed(0)
    given = laid_out(sent((sample.input, sample.args), where), case.layout)
    options = laid_out(sent(dict(sample.kwargs), where), case.layout)
    first = given[0]
    if case.is_in_place:
        with torch.no_grad():
            out = leaves(operator.get_inplace()(first, *given[1], **options))
        return out, [], leaves((given, options))
    out = leaves(operator(first, *given[1], **options))
    learns = [one for one in leaves((given, options)) if one.requires_grad]
    ends = [one for one in out if one.requires_grad]
    if not ends or not learns:
        return out, [], leaves((given, options))
    total = [one.abs().sum() if one.is_complex() else one.sum() for one in ends]
    gradients = torch.autograd.grad(total, learns, allow_unused=True)
    return out, gradients, leaves((given, options))


def again(operator, sample, case):
    """What the fourth call gives, which is by what is known of it: the others are all there, so
    nothing is where theirs was."""
    calls = [done(operator, sample, case, "ocl") for _ in range(4)]
    for one in leaves(calls):
        if one.device.type == "ocl":
            meta = one.metadata
            assert (meta.size, meta.stride) == (tuple(one.size()), tuple(one.stride()))
            assert (meta.offset, meta.dtype) == (one.storage_offset(), one.dtype)
    return calls[-1]


def samples_of(operator, dtype):
    learns = operator.supports_autograd and dtype.is_floating_point
    samples = operator.sample_inputs("cpu", dtype, requires_grad=learns)
    return list(itertools.islice(samples, SAMPLES))


def may_be_in_place(operator, sample):
    return (
        operator.inplace_variant is not None
        and isinstance(sample.input, torch.Tensor)
        and not sample.broadcasts_input
    )


def may_lie(operator, dtype, layout):
    """Whether equal elements leave one right result."""
    return layout != "expanded" or not AMBIGUOUS.search(operator.full_name)


def cases_of(operator):
    """Each with its sample: all, or as many as a run takes, another few in each."""
    types = [one for one in TYPES if one in operator.dtypes]
    if TAKES_ALL:
        for dtype in types:
            samples = samples_of(operator, dtype)
            for (number, sample), layout, in_place in itertools.product(
                enumerate(samples), LAYOUTS, (False, True)
            ):
                if may_lie(operator, dtype, layout) and (
                    not in_place or may_be_in_place(operator, sample)
                ):
                    yield (
                        sample,
                        Case(dtype=dtype, layout=layout, is_in_place=in_place, sample=number),
                    )
        return
    draws = random.Random(f"{SEED} {operator.full_name}")
    for taken in range(CASES):
        dtype = draws.choice(types) if taken else types[0]
        samples = samples_of(operator, dtype)
        if not samples:
            continue
        number = draws.randrange(len(samples))
        layout = draws.choice([one for one in LAYOUTS if may_lie(operator, dtype, one)])
        in_place = may_be_in_place(operator, samples[number]) and draws.random() < 0.3
        yield samples[number], Case(
            dtype=dtype, layout=layout if taken else "contiguous", is_in_place=in_place,
            sample=number,
        )  # fmt: skip


def finite_in_both(found, expected):
    """Zero elements that are infinite in one of them."""
    is_finite = found.isfinite() & expected.isfinite()
    return torch.where(is_finite, found, 0), torch.where(is_finite, expected, 0)


def close(found, expected, tolerance):
    torch.testing.assert_close(
        found.detach().cpu(), expected.detach(), rtol=tolerance, atol=tolerance, equal_nan=True,
        check_stride=False,
    )  # fmt: skip


def assert_as_on_cpu(operator, sample, case):
    """Fails where the device gives something else, or takes what the CPU refuses."""
    tolerance = TYPES[case.dtype]
    result = RESULTS.setdefault((operator.full_name, case.dtype), set())
    try:
        expected, gradients, inputs = done(operator, sample, case, "cpu")
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if operator.full_name not in TAKEN:
            with pytest.raises(type(error)):
                done(operator, sample, case, "ocl")
        return
    reset_fallbacks()
    try:
        found, others, after = again(operator, sample, case)
    except NotImplementedError:
        result.add("refused")
        if operator.full_name not in REFUSED:
            raise
        return
    result.add("CPU" if fallbacks() else "kernel")
    assert len(found) == len(expected)
    drawn = operator.name in DRAWN | GROWN
    where = "ocl" if inputs or "device" in sample.kwargs else "cpu"  # (a factory without one)
    for one, other in zip(found, expected, strict=True):
        assert one.device.type == where
        assert (one.size(), one.dtype) == (other.size(), other.dtype)
        if not drawn:
            close(one, other, max(tolerance, TYPES.get(other.dtype, tolerance)))
    for one, other in zip(others, gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None and not drawn:
            if case.dtype is torch.float16 and "prod" in operator.name:
                # a product of two others may overflow, in whichever order it is made
                one, other = finite_in_both(one.cpu(), other)
            close(one, other, 10 * tolerance)
    for one, other in zip(after, inputs, strict=True):
        if not drawn:
            close(one, other, tolerance)


REFUSED: dict[str, str] = {}
"""Operators that the device refuses and the CPU does not, and why."""

TAKEN: dict[str, str] = {
    "as_strided_scatter": "an assertion of torch's own fails on the CPU, for layouts of inputs",
    "nn.functional.nll_loss": "its backward wants a contiguous gradient on the CPU",
}
"""Operators that the device takes where the CPU raises, and why."""


ALWAYS = {"addmm", "bmm", "cat", "mm", "nn.functional.conv2d", "nn.functional.max_pool2d", "sum"}
"""Operators of every network, beside which one in 24 of all is tried where time is short."""

COSTLY = {"grid_sampler_3d"}
"""Operators with so many programs to compile that they are never tried where time is short."""


@pytest.mark.parametrize(
    "operator",
    [
        pytest.param(
            operator,
            marks=[pytest.mark.long]
            * (operator.name in COSTLY or (number % 24 > 0 and operator.name not in ALWAYS)),
        )
        for number, operator in enumerate(OPERATORS)
    ],
    ids=lambda one: one.full_name,
)
def test_it_gives_what_the_cpu_gives(operator):
    warnings.simplefilter("ignore")
    for sample, case in cases_of(operator):
        try:
            assert_as_on_cpu(operator, sample, case)
        except BaseException:
            print(f"CASES_SEED={SEED} CASES={CASES}:", case.describe(operator))
            raise


@pytest.mark.long
def test_how_many_have_kernels():
    with_kernels = {name for (name, _), how in RESULTS.items() if "kernel" in how}
    print(f"{len(with_kernels)} of {len(OPERATORS)} operators ran a sample without the CPU; "
          f"{len(KERNELS)} overloads have kernels")  # fmt: skip
    assert len(KERNELS) > 200
    if PARTS == 1:
        assert {"nn.functional.conv2d", "mm", "nn.functional.max_pool2d"} <= with_kernels
    if path := os.environ.get("OPERATORS_TABLE"):
        Path(path).write_text(table(), encoding="utf-8")


def table():
    """Who computed what, in Markdown."""
    types = [str(one).removeprefix("torch.") for one in TYPES]
    lines = [f"| operator | {' | '.join(types)} |", f"|---|{'---|' * len(types)}"]
    for name in sorted({name for name, _ in RESULTS}):
        cells = [" and ".join(sorted(RESULTS.get((name, one)) or "–")) for one in TYPES]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
