"""Questions about a whole batch that a model asks to decide what to compute: `mask.all()`.

Every replica answers for its part, and decides by the answers of all. A proof holds for the answers
that were given while it was made; others stop a divided call before anything of it is seen.
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

    Own = Callable[..., Any]
    Combine = Callable[[Iterable[bool]], bool]

LIBRARIES = {"transformers.masking_utils": "fast_all"}
"""Modules with a function that says whether all elements of a tensor are true."""


def replacements() -> list[tuple[Any, str, Callable[[Own], Own]]]:
    """Where, which, and what makes ours of torch's."""
    found: list[tuple[Any, str, Callable[[Own], Own]]] = []
    for place in (torch, torch.Tensor):
        found += [(place, "all", _all), (place, "any", _any)]
    found += [(torch, "_is_all_true", _all), (torch, "_is_any_true", _any)]
    for library, name in LIBRARIES.items():
        module = sys.modules.get(library)
        if module is not None and hasattr(module, name):
            found.append((module, name, _all))
    return found


def _all(own: Own) -> Own:
    return _question(own, all)


def _any(own: Own) -> Own:
    return _question(own, any)


def _question(own: Own, combine: Combine) -> Own:
    @wraps(own)
    def question(*args: Any, **options: Any) -> Any:
        part = current_replica()
        if part is None or options or len(args) != 1 or not isinstance(args[0], torch.Tensor):
            return own(*args, **options)
        with part.untraced():
            mine = own(*args)
            answer = part.decide(bool(mine), combine)
            whole = torch.full_like(mine, answer)
        if part.trace is not None:
            part.trace.decision(combine.__name__, args[0], whole)
        return whole

    return question
