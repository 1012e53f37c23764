"""Select the kernel of scaled_dot_product_attention, or compute it in float32 under autocast."""

from __future__ import annotations

from cputrain.runtime.patching import Patch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


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
        from functools import wraps

        functional: Any = torch.nn.functional
        original = functional.scaled_dot_product_attention
        self._is_used, self._is_on = False, True

        @wraps(original)
        def attend(
            query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            if query.dtype is not torch.bfloat16 or not query.is_cpu or not self._is_on:
                return original(query, key, value, attn_mask, *args, **kwargs)
            self._is_used = True
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = attn_mask.float()
            with torch.autocast("cpu", enabled=False):
                inputs = (query.float(), key.float(), value.float())
                output = original(*inputs, attn_mask, *args, **kwargs)
            return output.to(query.dtype)

        self._patch = Patch(functional, "scaled_dot_product_attention", attend)

    def describe(self) -> str:
        return "attention in float32" if self._is_used else ""

    def undo(self) -> None:
        self._is_on = False  # where another patch is above this one, it stays
        self._patch.undo()
