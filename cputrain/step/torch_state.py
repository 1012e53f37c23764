"""The state of torch that a compiled function depends on."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def torch_state() -> tuple[Any, ...] | None:
    """Return the state of torch that a compiled step depends on; None if no step is compiled."""
    return torch_modes() if torch.is_grad_enabled() else None


def torch_modes() -> tuple[Any, ...] | None:
    """Return the same, whether gradients are enabled or not."""
    c = torch._C
    if (
        torch.is_inference_mode_enabled()
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


@contextmanager
def in_modes(modes: tuple[Any, ...]) -> Iterator[None]:
    """Compute as in the modes that `torch_modes` has returned, whatever they are now."""
    if torch_modes() == modes:
        yield
        return
    _, autocast_dtype, default_dtype = modes
    dtype_now = torch.get_default_dtype()
    hooks = []
    autograd: Any = torch._C._autograd
    while autograd._top_saved_tensors_default_hooks(True) is not None:
        hooks.append(autograd._top_saved_tensors_default_hooks(True))
        autograd._pop_saved_tensors_default_hooks()
    try:
        torch.set_default_dtype(default_dtype)
        with ExitStack() as stack:
            stack.enter_context(temporarily_clear_interpreter_stack())
            stack.enter_context(_disable_current_modes())
            if torch._C._len_torch_function_stack():
                stack.enter_context(torch._C.DisableTorchFunction())
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(
                torch.autocast(
                    "cpu", autocast_dtype or torch.bfloat16, enabled=autocast_dtype is not False
                )
            )
            yield
    finally:
        torch.set_default_dtype(dtype_now)
        for hook in reversed(hooks):
            autograd._push_saved_tensors_default_hooks(*hook)
