"""The first thing of ours in the user's interpreter: it waits for torch, and steps aside.

Must run on any Python and cost next to nothing: a program that never imports torch pays for this
file alone. The module that would have been `sitecustomize` without us is run in its turn, and its
absence looks as it would have looked.
"""

import os
import sys


class _Finder:
    """Finds modules as the other finders do, and has ours told when those it waits for load."""

    waits_for = frozenset(["torch", "multiprocessing"])

    def find_spec(self, name, path=None, target=None):
        if name not in self.waits_for:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        self._wrap(spec.loader)
                    return spec
        return None

    @staticmethod
    def _wrap(loader):
        load = loader.exec_module

        def exec_module(module):
            del loader.exec_module  # the instance's; the class's own stays
            hook = _hook()
            hook.before(module.__name__)
            load(module)
            hook.after(module.__name__, module)

        loader.exec_module = exec_module


def _hook():
    """cputrain.runtime.hook, also for an interpreter in which cputrain is not installed."""
    try:
        from cputrain.runtime import hook
    except ModuleNotFoundError as error:
        if error.name != "cputrain":
            raise
        from importlib.util import module_from_spec, spec_from_file_location

        package = os.path.dirname(os.path.dirname(_HERE))
        spec = spec_from_file_location(
            "cputrain", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        sys.modules["cputrain"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["cputrain"])
        from cputrain.runtime import hook
    return hook


_HERE = os.path.dirname(os.path.abspath(__file__))

if sys.version_info >= (3, 11) and "CPUTRAIN_PLAN" in os.environ:
    sys.meta_path.insert(0, _Finder())

sys.path[:] = [_entry for _entry in sys.path if os.path.abspath(_entry or os.curdir) != _HERE]
del sys.modules["sitecustomize"]
import sitecustomize  # noqa: E402, F401  (the one behind us; without one, the error is python's own)
