"""The state of torch that a compiled function depends on."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


# it is asked for at each call of a recorded loop
_is_inference = torch.is_inference_mode_enabled
_num_dispatch_modes = torch._C._len_torch_dispatch_stack
_num_function_modes = torch._C._len_torch_function_stack
_top_transform = torch._C._functorch.peek_interpreter_stack
_is_anomaly_enabled = torch.is_anomaly_enabled
_saved_tensors_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
_is_autocast = torch.is_autocast_enabled
_num_threads, _default_dtype = torch.get_num_threads, torch.get_default_dtype


def torch_state() -> tuple[Any, ...] | None:
    """Return the state of torch that a compiled step depends on; None if no step is compiled."""
    return torch_modes() if torch.is_grad_enabled() else None


def torch_modes() -> tuple[Any, ...] | None:
    """Return the same, whether gradients are enabled or not."""
    if (
        _is_inference()
        or _num_dispatch_modes()
        or _num_function_modes()
        or _top_transform() is not None
        or _is_anomaly_enabled()
        or _saved_tensors_hooks(True) is not None
    ):
        return None
    is_autocast = _is_autocast("cpu")
    return (
        _num_threads(), is_autocast and torch.get_autocast_dtype("cpu"), _default_dtype()
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
    while (hook := _saved_tensors_hooks(True)) is not None:
        hooks.append(hook)
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
