"""Do what must be done when torch._dynamo is loaded, in a process without the launcher's finder."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

NAME = "torch._dynamo"


def defer_in_this_process(torch: ModuleType) -> None:
    """Let optimizers run without torch._dynamo until something loads it, if nothing has."""
    from cputrain.runtime.deferred_dynamo import defer_dynamo

    if NAME in sys.modules:
        return
    # under a launch, sitecustomize's finder watches this module, too
    if not any(NAME in getattr(finder, "watched_names", ()) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DynamoFinder())
    defer_dynamo(torch)


class _DynamoFinder:
    """Meta path finder that calls the hook behind the import of torch._dynamo."""

    watched_names = (NAME,)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of torch._dynamo that other finders have; None for other modules."""
        if name != NAME:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _call_hook_behind(spec.loader)
                return spec
        return None


def _call_hook_behind(loader: Loader) -> None:
    """Have a loader call the hook behind the module that it loads."""
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        from cputrain.runtime import hook

        load(module)
        hook.after(NAME, module, reports=False, is_planned=False)

    loader.exec_module = exec_module  # type: ignore[method-assign]
