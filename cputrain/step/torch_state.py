"""The state of torch that a compiled function depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from typing import Any


def torch_state() -> tuple[Any, ...] | None:
    """Return the state of torch that a compiled step depends on; None if no step is compiled."""
    c = torch._C
    if (
        not torch.is_grad_enabled()
        or torch.is_inference_mode_enabled()
        or c._len_torch_dispatch_stack()
        or c._len_torch_function_stack()
        or c._functorch.peek_interpreter_stack() is not None
        or torch.is_anomaly_enabled()
        or c._autograd._top_saved_tensors_default_hooks(True) is not None
    ):
        return None
    is_autocast = torch.is_autocast_enabled("cpu")
    return (
        torch.get_num_threads(), is_autocast and torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
    )  # fmt: skip
