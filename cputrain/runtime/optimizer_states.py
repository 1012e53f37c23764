"""Keep the moments of Adam and AdamW in 8 bits.

What an optimizer keeps for a large parameter is a tensor with 8 bits for each element, which every
operator reads as the tensor of torch. Where torch would update such tensors, a kernel does so. What
leaves the process, a state dictionary or a pickle, has torch's tensors.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from functools import wraps
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer
from torch.utils._pytree import tree_map_only

from cputrain.counting import counted
from cputrain.kernels.eight_bit_adam import (
    BLOCK_SIZE,
    AdamOptions,
    AdamRow,
    EightBitAdamKernels,
    EightBitMoments,
    update_by_torch,
)
from cputrain.kernels.proof import is_eight_bit_adam_right
from cputrain.runtime.kernel_patches import KernelPatches
from cputrain.runtime.patching import Patch
from cputrain.runtime.plain_tensors import PlainTensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MIN_ELEMENTS = 4096
"""Smallest parameters whose moments have 8 bits; those of norms and biases take little memory."""

DTYPES = frozenset({torch.float32, torch.bfloat16})

MOMENTS = {"exp_avg": True, "exp_avg_sq": False}
"""Names of the moments, and whether they have signs."""

UNSUPPORTED = ("amsgrad", "capturable", "differentiable")
"""Options of a parameter group for which torch keeps the moments."""


class EightBitTensor(Tensor):
    """Moments that operators read as torch's tensor; what they write is encoded at the next step.

    Args:
        moments: Codes and scales.
        like: A tensor of the same shape, strides and dtype, perhaps without memory.
    """

    moments: EightBitMoments
    plain: Tensor | None
    """The tensor of torch while something may write to it, or to a view of it."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: Any, moments: EightBitMoments, like: Tensor) -> Any:
        """Make a tensor without memory of its own."""
        tensor = cls._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device="cpu"
        )
        tensor.moments, tensor.plain = moments, None
        return tensor

    def __init__(self, moments: EightBitMoments, like: Tensor) -> None:
        """Do nothing more."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operator with tensors of torch, and keep those that it writes to or views."""
        schema = func._schema
        is_kept = any(each.alias_info is not None for each in (*schema.arguments, *schema.returns))
        decode = EightBitTensor.keep_plain if is_kept else EightBitTensor.decode
        args, kwargs = tree_map_only(EightBitTensor, decode, (args, kwargs or {}))
        return func(*args, **kwargs)

    def decode(self) -> Tensor:
        """Return the moments as a tensor of torch."""
        if self.plain is not None:
            return self.plain
        numbers = self.moments.decode(self.numel()).to(self.dtype)
        return numbers.as_strided(self.shape, self.stride())

    def keep_plain(self) -> Tensor:
        """Return the tensor of torch that holds the moments until `encode`."""
        self.plain = self.decode()
        return self.plain

    def encode(self) -> EightBitMoments:
        """Return codes and scales, with what was written to the tensor of torch."""
        if self.plain is not None:
            self.moments.encode(_in_order(self.plain, self.stride()).float())
            self.plain = None
        return self.moments

    def numpy(self, *, force: bool = False) -> Any:
        """Return an array of its own memory."""
        return self.decode().clone().numpy(force=force)

    def tolist(self) -> Any:
        """Return nested lists of numbers."""
        return self.decode().tolist()

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """Bytes of codes and scales."""
        return sum(each.nbytes for each in self.moments)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Return what the tensor of torch has."""
        plain: Any = self.decode()
        return str(plain.__repr__(tensor_contents=tensor_contents))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return moments of 8 bits, too."""
        if id(self) not in memo:
            moments = EightBitMoments(*(each.clone() for each in self.encode()))
            memo[id(self)] = EightBitTensor(moments, self)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Have pickles hold the tensor of torch."""
        plain: Any = self.decode()
        return plain.__reduce_ex__(protocol)


def _in_order(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return the elements in the order that dense strides have, without a copy where possible."""
    if tensor.stride() != strides:
        ordered = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="cpu")
        tensor = ordered.copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


class EightBitStates(KernelPatches[EightBitAdamKernels]):
    """Patches of torch.optim, and the number of parameters whose moments have 8 bits."""

    def __init__(self) -> None:
        super().__init__("optimizer_states", EightBitAdamKernels, is_eight_bit_adam_right)
        self._tensors = PlainTensors(torch)
        self._step = inspect.unwrap(Adam.step)
        self._counts: dict[tuple[str, int], int] = {}
        self._refusals: dict[str, None] = {}
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        base_class: Any = Optimizer
        module = sys.modules[Adam.__module__]
        # (torch._dynamo, once loaded, gives each class a function of its own)
        classes: list[Any] = [each for each in (Adam, AdamW) if "_init_group" in vars(each)]
        self._patches += [
            *(
                Patch(each, "_init_group", self._init_group(vars(each)["_init_group"]))
                for each in classes
            ),
            Patch(module, "adam", self._adam(vars(module)["adam"])),
            Patch(base_class, "state_dict", _state_dict(base_class.state_dict)),
        ]

    def _init_group(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `Adam._init_group` that makes moments of 8 bits first."""

        @wraps(original)
        def init_group(optimizer: Any, group: Any, *lists: Any, **kwargs: Any) -> Any:
            if self.is_on and not torch.compiler.is_compiling():
                self._prepare(optimizer, group)
            return original(optimizer, group, *lists, **kwargs)

        return init_group

    def _prepare(self, optimizer: Any, group: dict[str, Any]) -> None:
        """Encode the moments of large parameters; decode those that torch is going to update."""
        params = [param for param in group["params"] if self._has_large_gradient(param)]
        if not params:
            return
        name = type(optimizer).__name__
        self._optimizers.add(optimizer)
        reason = self._refusal(optimizer, group)
        reasons = [reason or self._refusal_of(param) for param in params]
        for each in sorted({*reasons} - {""}):
            self._refusals[f"states of {name} as torch keeps them: {each}"] = None
        num_encoded = 0
        for param, refusal in zip(params, reasons, strict=True):
            state = optimizer.state[param]
            if refusal:
                _decode(state)
            else:
                num_encoded += self._encode(state, param, is_fused=group["fused"])
        self._counts[name, id(params[0])] = num_encoded

    def num_bytes(self, optimizer: Any, group: dict[str, Any], param: Tensor) -> int | None:
        """Return the bytes that moments of a parameter are going to take; None if torch's."""
        if self._refusal(optimizer, group) or param.numel() < MIN_ELEMENTS:
            return None
        if not isinstance(optimizer, Adam) or not param.is_cpu or param.dtype not in DTYPES:
            return None
        num_blocks = -(-param.numel() // BLOCK_SIZE)
        return len(MOMENTS) * num_blocks * (BLOCK_SIZE + 4)

    def _has_large_gradient(self, param: Any) -> bool:
        grad = param.grad
        return grad is not None and not grad.is_sparse and param.numel() >= MIN_ELEMENTS

    def _refusal(self, optimizer: Any, group: dict[str, Any]) -> str:
        """Return why torch keeps the moments of a group; "" if it does not."""
        if inspect.unwrap(type(optimizer).step) is not self._step:
            return "it has a step of its own"
        return next((f"{name} is set" for name in UNSUPPORTED if group.get(name)), "")

    def _refusal_of(self, param: Tensor) -> str:
        """Return why torch keeps the moments of a parameter; "" if it does not."""
        if not param.is_cpu:
            return f"parameters are on {param.device.type}"
        if param.dtype not in DTYPES:
            return f"parameters are {param.dtype}"
        grad = param.grad
        if (
            grad is None
            or not self._tensors.have_plain_keys([param, grad])
            or (grad.dtype not in DTYPES)
        ):
            return "parameters or gradients are no plain tensors"
        return ""

    def _encode(self, state: dict[str, Any], param: Tensor, *, is_fused: bool | None) -> bool:
        """Give a parameter moments of 8 bits; return whether it has them."""
        like = torch.empty_like(param, device="meta")
        if not state:
            dtype = sys.modules[Adam.__module__]._get_scalar_dtype(is_fused=is_fused)
            state["step"] = torch.zeros((), dtype=dtype, device="cpu")
            for name, is_signed in MOMENTS.items():
                moments = EightBitMoments.zeros(param.numel(), is_signed=is_signed)
                state[name] = EightBitTensor(moments, like)
        for name, is_signed in MOMENTS.items():
            value = state.get(name)
            if isinstance(value, EightBitTensor):
                continue
            if (
                not isinstance(value, Tensor)
                or not self._tensors.have_plain_keys([value])
                or value.shape != param.shape
                or value.dtype not in DTYPES
            ):
                return False
            moments = EightBitMoments.zeros(param.numel(), is_signed=is_signed)
            moments.encode(_in_order(value, like.stride()).float())
            state[name] = EightBitTensor(moments, like)
        return True

    def _adam(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `torch.optim.adam.adam` that updates parameters whose moments have 8 bits."""

        @wraps(original)
        def adam(params: Any, grads: Any, *lists: Any, **options: Any) -> None:
            if (
                torch.compiler.is_compiling()
                or len(lists) != 4
                or not any(isinstance(each, EightBitTensor) for each in lists[0])
                or not self._tensors.is_plain_context()
            ):
                original(params, grads, *lists, **options)
                return
            rows = list(zip(params, grads, lists[0], lists[1], lists[3], strict=True))
            eight_bit = [row for row in rows if _is_eight_bit(row)]
            rest = [row for row in rows if not _is_eight_bit(row)]
            if rest:
                columns = [list(column) for column in zip(*rest, strict=True)]
                original(*columns[:4], [], columns[4], **options)
            self._update(eight_bit, options)

        return adam

    def _update(self, rows: list[tuple[Any, ...]], options: dict[str, Any]) -> None:
        """Take the step of parameters whose moments have 8 bits."""
        found_inf, grad_scale = options.get("found_inf"), options.get("grad_scale")
        if found_inf is not None and found_inf.item():
            return
        if grad_scale is not None:  # as torch's fused kernel, which leaves gradients unscaled
            torch._foreach_div_([row[1] for row in rows], grad_scale.item())
        torch._foreach_add_([row[4] for row in rows], 1.0)
        lr, beta1, beta2, eps, decay = (
            float(options[name]) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")
        )
        adam_options = AdamOptions(
            lr, beta1, beta2, eps, decay, options["decoupled_weight_decay"], options["maximize"]
        )
        adam_rows = []
        for param, grad, average, square, step in rows:
            params, grads = (_in_order(each.detach(), average.stride()) for each in (param, grad))
            moments = average.encode(), square.encode()
            adam_rows.append(AdamRow(params, grads, *moments, step.item()))
        kernels = self.load()
        (update_by_torch if kernels is None else kernels.update)(adam_rows, adam_options)
        for (param, _, average, *_), row in zip(rows, adam_rows, strict=True):
            if param.stride() != average.stride():
                param.copy_(row.param.as_strided(param.shape, average.stride()))
        torch._C._increment_version([row[0] for row in rows])

    def undo(self) -> None:
        """Restore torch's functions, and give optimizers the tensors that these know."""
        super().undo()
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                _decode(state)

    def describe(self) -> str:
        """Return the parameters with moments of 8 bits, and why others have none."""
        totals: dict[str, int] = {}
        for (name, _), count in self._counts.items():
            totals[name] = totals.get(name, 0) + count
        parts = [
            f"states of {name} in 8 bits ({counted(count, 'parameter')})"
            for name, count in totals.items()
            if count
        ]
        if parts and self.problem:
            parts.append(f"updated by torch's operators ({self.problem})")
        parts += self._refusals
        return ", ".join(parts) or (
            "no states in 8 bits: only Adam and AdamW have them, for parameters of "
            f"{MIN_ELEMENTS:,} elements and more"
        )


def _decode(state: dict[str, Any]) -> None:
    """Give a state torch's tensors."""
    for name in MOMENTS:
        if isinstance(state.get(name), EightBitTensor):
            state[name] = state[name].decode()


def _is_eight_bit(row: tuple[Any, ...]) -> bool:
    return isinstance(row[2], EightBitTensor) and isinstance(row[3], EightBitTensor)


def _state_dict(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `Optimizer.state_dict` that has tensors of torch, and copies where 8 bits are kept."""

    @wraps(original)
    def state_dict(optimizer: Any) -> Any:
        result = original(optimizer)
        for key, values in result.get("state", {}).items():
            if isinstance(values, dict) and any(
                isinstance(value, EightBitTensor) for value in values.values()
            ):
                result["state"][key] = {
                    name: value.clone() if isinstance(value, Tensor) else value
                    for name, value in values.items()
                }
        return result

    return state_dict
