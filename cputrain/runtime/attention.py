"""Select the kernel of scaled_dot_product_attention, or compute it in float32 under autocast."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""Positional parameters of scaled_dot_product_attention, by their names."""


class MathAttention:
    """Disable the fused kernel, so that torch uses its composite of matmuls and a softmax."""

    def __init__(self, torch: ModuleType) -> None:
        self._switch = torch.backends.cuda  # these switches also select the CPU kernels
        self._before = self._switch.flash_sdp_enabled()
        self._switch.enable_flash_sdp(False)

    def describe(self) -> str:
        return "attention by plain matmuls"

    def undo(self) -> None:
        self._switch.enable_flash_sdp(self._before)


class Float32Attention:
    """Patch of the fused kernel: compute bf16 inputs in float32, and cast the output back."""

    def __init__(self, torch: ModuleType) -> None:
        from cputrain.runtime.replaced_builtin import replace

        self._torch = torch
        self._attend = torch.nn.functional.scaled_dot_product_attention
        self._is_used, self._is_on = False, True
        places = (torch._C._nn, torch.nn.functional)
        self._patches = replace(places, "scaled_dot_product_attention", self._compute)

    def _compute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the output in the dtype of the query; None if that is not bfloat16."""
        torch = self._torch
        query = args[0] if args else kwargs.get("query")
        if (
            not self._is_on
            or not isinstance(query, torch.Tensor)
            or query.dtype is not torch.bfloat16
            or not query.is_cpu
            or len(args) > len(NAMES)
            or not kwargs.keys().isdisjoint(NAMES[: len(args)])
        ):
            return None
        call = dict(zip(NAMES, args, strict=False)) | kwargs
        self._is_used = True
        call |= {
            name: value.float()
            for name, value in call.items()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        }
        with torch.autocast("cpu", enabled=False):
            output = self._attend(**call)
        return output.to(torch.bfloat16)

    def describe(self) -> str:
        return "attention in float32" if self._is_used else ""

    def undo(self) -> None:
        self._is_on = False  # where another patch is above this one, it stays
        for patch in self._patches:
            patch.undo()
