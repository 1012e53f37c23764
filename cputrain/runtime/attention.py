"""Has scaled_dot_product_attention use another kernel, or float32 within autocast."""

from __future__ import annotations

from cputrain.runtime.patching import Patch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

POLICY = "attention"


class ByMatmuls:
    """torch's composite of matmuls and a softmax."""

    def __init__(self, torch: ModuleType) -> None:
        self._switch = torch.backends.cuda  # these switches are the CPU's, too
        self._before = self._switch.flash_sdp_enabled()
        self._switch.enable_flash_sdp(False)

    def describe(self) -> str:
        return "attention by plain matmuls"

    def undo(self) -> None:
        self._switch.enable_flash_sdp(self._before)


class InFloat32:
    """The fused kernel, given float32 where autocast would give it bf16."""

    def __init__(self, torch: ModuleType) -> None:
        from functools import wraps

        place: Any = torch.nn.functional
        own = place.scaled_dot_product_attention
        self._used = False

        @wraps(own)
        def attend(
            query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **options: Any
        ) -> Any:
            if query.dtype is not torch.bfloat16 or not query.is_cpu:
                return own(query, key, value, attn_mask, *args, **options)
            self._used = True
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = attn_mask.float()
            with torch.autocast("cpu", enabled=False):
                wide = (query.float(), key.float(), value.float())
                made = own(*wide, attn_mask, *args, **options)
            return made.to(query.dtype)

        self._exchanged = Patch(place, "scaled_dot_product_attention", attend)

    def describe(self) -> str:
        return "attention in float32" if self._used else ""

    def undo(self) -> None:
        self._exchanged.undo()


def apply(torch: ModuleType, value: object) -> ByMatmuls | InFloat32 | None:
    """Exchange the kernel."""
    if value == "math":
        return ByMatmuls(torch)
    return InFloat32(torch) if value == "float32" else None
