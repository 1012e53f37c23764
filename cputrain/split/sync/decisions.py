"""Data-dependent control flow on the whole batch, such as `if mask.all()`.

Each replica answers for its shard, and all use the combined answer. A proof holds for the answers
given while it was made; other answers abort a sharded call before it has any effect.
"""

from __future__ import annotations

import sys
from functools import wraps

import torch

from cputrain.split.execution.context import current_replica

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Function = Callable[..., Any]
    Combine = Callable[[Iterable[bool]], bool]

LIBRARIES = {"transformers.masking_utils": "fast_all"}
"""Modules with a function that returns whether all elements of a tensor are true."""


def replacements() -> list[tuple[Any, str, Callable[[Function], Function]]]:
    """Return (owner, attribute name, function that wraps torch's) for each patched function."""
    patches: list[tuple[Any, str, Callable[[Function], Function]]] = []
    for owner in (torch, torch.Tensor):
        patches += [(owner, "all", _all), (owner, "any", _any)]
    patches += [(torch, "_is_all_true", _all), (torch, "_is_any_true", _any)]
    for library, name in LIBRARIES.items():
        module = sys.modules.get(library)
        if module is not None and hasattr(module, name):
            patches.append((module, name, _all))
    return patches


def _all(original: Function) -> Function:
    return _batch_question(original, all)


def _any(original: Function) -> Function:
    return _batch_question(original, any)


def _batch_question(original: Function, combine: Combine) -> Function:
    @wraps(original)
    def question(*args: Any, **kwargs: Any) -> Any:
        context = current_replica()
        if context is None or kwargs or len(args) != 1 or not isinstance(args[0], torch.Tensor):
            return original(*args, **kwargs)
        with context.untraced():
            shard_answer = original(*args)
            answer = context.decide(bool(shard_answer), combine)
            batch_answer = torch.full_like(shard_answer, answer)
        if context.trace is not None:
            context.trace.decision(combine.__name__, args[0], batch_answer)
        return batch_answer

    return question
