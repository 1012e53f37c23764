"""Draw the noise of dropout by kernels of cputrain: the same numbers as torch's, in less time.

What is done with the noise is left to torch, and so are the graph and the gradient.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from cputrain.kernels.dropout import DropoutKernels
from cputrain.kernels.proof import is_dropout_right
from cputrain.runtime.attention import NAMES as ATTENTION_NAMES
from cputrain.runtime.blocked_attention import (
    BLOCK_ELEMENTS,
    AttentionInputs,
    AttentionNoise,
    BlockedAttention,
    causal_mask,
    compute,
)
from cputrain.runtime.kernel_patches import KernelPatches, is_in_memory_order
from cputrain.runtime.memory_order import NUM_DROPOUT_ARGUMENTS
from cputrain.runtime.saved_tensor_hooks import has_hooks_of_the_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MIN_ELEMENTS = 1 << 14
"""Smallest inputs for which the kernels are faster; measured in docs/benchmarks."""

DROPOUT_POSITION = ATTENTION_NAMES.index("dropout_p")
"""Position of dropout_p among the arguments of scaled_dot_product_attention."""

DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


class _Attention(NamedTuple):
    """The arguments of scaled_dot_product_attention."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


class Dropouts(KernelPatches[DropoutKernels]):
    """Kernels for dropout, and the patches of torch's functions."""

    def __init__(self) -> None:
        super().__init__("dropout", DropoutKernels, is_dropout_right)
        self._renew_lock()
        if hasattr(os, "register_at_fork"):  # a thread may hold it at a fork
            os.register_at_fork(after_in_child=self._renew_lock)
        for name in ("dropout", "dropout_"):
            self.replace((torch._VF, torch), name, partial(self._drop, in_place=name == "dropout_"))
        self.replace(
            (torch._C._nn, torch.nn.functional), "scaled_dot_product_attention", self._attend
        )

    def _drop(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, in_place: bool
    ) -> Tensor | None:
        """Return the output of a dropout; None if it is torch's to compute."""
        if (
            len(args) != NUM_DROPOUT_ARGUMENTS
            or kwargs
            or args[2] is not True
            or not isinstance(args[0], Tensor)
            or not args[0].is_cpu
            or args[0].numel() < MIN_ELEMENTS
        ):
            return None
        noise = self._noise(args[0], args[1])
        if noise is None:
            return None
        return args[0].mul_(noise) if in_place else args[0] * noise

    def _attend(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Return the output of attention with dropout; None if it is torch's to compute.

        With dropout, torch has no fused kernel on the CPU, and calls the operators below.
        """
        if len(args) > len(ATTENTION_NAMES) or (
            len(args) <= DROPOUT_POSITION and "dropout_p" not in kwargs
        ):
            return None
        try:
            call = _Attention(*args, **kwargs)
        except TypeError:  # which torch has words for
            return None
        inputs = [call.query, call.key, call.value]
        masks = [] if call.attn_mask is None else [call.attn_mask]
        if (
            type(call.dropout_p) is not float
            or not 0 < call.dropout_p < 1
            or not self.is_on
            or self.problem
            or not self._tensors.is_eager()
            or not self._tensors.have_plain_keys([*inputs, *masks])
            or any(tensor.dtype is not torch.float32 for tensor in inputs)
            or any(mask.dtype not in {torch.float32, torch.bool} for mask in masks)
            or not _have_products(inputs)
            or _num_products(call) < MIN_ELEMENTS
            or (call.is_causal and masks)
            or call.enable_gqa
            or torch.is_autocast_enabled("cpu")
            or not torch._C._get_math_sdp_enabled()  # (of the CPU's, too)
        ):
            return None
        kernels = self.load()
        if kernels is None:
            return None
        if _num_products(call) > BLOCK_ELEMENTS * torch.get_num_threads():
            output = self._attend_in_blocks(kernels, call)
            if output is not None:
                return output
        probabilities = _attention_probabilities(call)
        noise = self._draw(kernels, probabilities, call.dropout_p)
        if noise is None:
            return torch.dropout(probabilities, call.dropout_p, True) @ call.value
        return (probabilities * noise) @ call.value

    def _attend_in_blocks(self, kernels: DropoutKernels, call: _Attention) -> Tensor | None:
        """Return the output; None if hooks would see what is saved, or another thread has drawn."""
        mask = call.attn_mask
        needs_grad = torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in (call.query, call.key, call.value)
        )
        if (mask is not None and mask.requires_grad) or (needs_grad and has_hooks_of_the_script()):
            return None
        inputs = _flattened(call)
        if inputs is None:
            return None
        with self._lock:
            before = torch.default_generator.get_state()
            noise = AttentionNoise(kernels.noise, call.dropout_p, call.is_causal, before)
            with torch.no_grad():
                output, after = compute(inputs, noise)
            if not torch.equal(torch.default_generator.get_state(), before):
                return None
            torch.default_generator.set_state(after)
        self.num_computed += 1
        output = output.view(*call.query.shape[:-1], output.shape[-1])
        if not needs_grad:
            return output
        apply: Callable[..., Tensor] = BlockedAttention.apply
        return apply((output,), noise, *inputs)

    def _renew_lock(self) -> None:
        self._lock = Lock()

    def _noise(self, data: Tensor, probability: Any) -> Tensor | None:
        """Return the noise; None if the kernels might not have the effects of torch's operator."""
        if (
            not self.is_on
            or self.problem
            or not self._tensors.is_eager()
            or not self._tensors.have_plain_keys([data])
            or data.dtype not in DTYPES
            or type(probability) is not float
            or not 0 < probability < 1
            or not is_in_memory_order(data)
        ):
            return None
        kernels = self.load()
        return None if kernels is None else self._draw(kernels, data, probability)

    def _draw(self, kernels: DropoutKernels, data: Tensor, probability: float) -> Tensor | None:
        """Return the noise; None if another thread has drawn from the generator meanwhile."""
        with self._lock:  # threads of a script may draw, too
            noise = kernels.noise(data, probability, torch.default_generator)
        if noise is not None:
            self.num_computed += 1
        return noise


def _have_products(inputs: list[Tensor]) -> bool:
    """Return whether query, key and value are batches of matrices that can be multiplied."""
    query, key, value = (tensor.shape for tensor in inputs)
    return (
        len(query) >= 3
        and query[:-2] == key[:-2] == value[:-2]
        and query[-1] == key[-1] > 0
        and key[-2] == value[-2]
    )


def _num_products(call: _Attention) -> int:
    """Return the number of products of a query and a key."""
    return call.query.numel() // call.query.size(-1) * call.key.size(-2)


def _scaled(call: _Attention) -> tuple[Tensor, Tensor]:
    """Return query and transposed key, each with its half of the scale, as torch computes them."""
    scale = 1 / math.sqrt(call.query.size(-1)) if call.scale is None else call.scale
    factor = math.sqrt(abs(scale))
    query = torch.mul(call.query, -factor if scale < 0 else factor)
    return query, call.key.transpose(-2, -1) * factor


def _added_mask(call: _Attention) -> Tensor | None:
    """Return what is added to the products."""
    mask = call.attn_mask
    if call.is_causal:
        return causal_mask((call.query.size(-2), call.key.size(-2)))
    if mask is not None and mask.dtype is torch.bool:
        zero, low = (torch.tensor(each, device="cpu") for each in (0.0, -math.inf))
        return torch.where(mask, zero, low)
    return mask


def _flattened(call: _Attention) -> AttentionInputs | None:
    """Return the inputs of attention in blocks; None if the mask does not fit."""
    mask = None if call.is_causal else _added_mask(call)
    if mask is not None:
        if mask is call.attn_mask:
            mask = mask.clone()  # backward adds it again, and the script may change its own
        try:
            mask = mask.expand(*call.query.shape[:-1], call.key.size(-2))
        except RuntimeError:  # which torch has words for
            return None
        with suppress(RuntimeError):  # what is expanded in some of the dimensions has no such view
            mask = mask.view(-1, *mask.shape[-2:])
    query, key, value = (
        tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (*_scaled(call), call.value)
    )
    return AttentionInputs(query, key, value, mask)


def _attention_probabilities(call: _Attention) -> Tensor:
    """Return the softmax of the products of query and key, by the operators that torch calls."""
    query, key = _scaled(call)
    products = query @ key
    mask = _added_mask(call)
    if mask is not None:
        products.add_(mask)
    softmax: Tensor = torch._safe_softmax(products, -1)
    return softmax
