"""Stamps of the tensors in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cputrain.errors import UsageError
from cputrain.reproduce.stamp import stamp_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def stamps_of_file(path: str) -> dict[str, str]:
    """Return the stamp of all tensors in a file, as "", and of each dictionary of tensors in it.

    Raises:
        UsageError: It has no tensors, or cannot be read without running code that it contains.
    """
    content = _read(path)
    tensors = dict(_tensors(content))
    if not tensors:
        raise _unreadable(path, f"{type(content).__name__} without tensors")
    parts = {"": tensors}
    if isinstance(content, dict):
        for key, value in content.items():
            if isinstance(value, dict) and (part := dict(_tensors(value))):
                parts[str(key)] = part
    return {name: stamp_of(part) for name, part in parts.items()}


def _read(path: str) -> Any:
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except Exception as error:  # unpickling fails in any way where a file is no checkpoint
        is_other_class = "Unsupported global" in str(error)
        problem = (
            "objects of other classes" if is_other_class else f"{type(error).__name__}: {error}"
        )
        raise _unreadable(path, problem.partition("\n")[0]) from None


def _unreadable(path: str, problem: str) -> UsageError:
    return UsageError(
        f"the checkpoint {path}",
        "must be a file of torch.save or safetensors with tensors, and no other classes",
        found=problem,
        do="Save the state dictionary: torch.save(model.state_dict(), FILE).",
    )


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors in dictionaries and lists, with the keys that lead to them."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _tensors(item, f"{name}.{key}" if name else str(key))
