"""The first thing of ours in the user's interpreter: it waits for torch, and steps aside.

Must run on any Python and cost next to nothing: a program that never imports torch pays for this
file alone. The module that would have been `sitecustomize` without us is run in its turn, and its
absence looks as it would have looked.
"""

import os
import sys


class _Finder:
    """Finds modules as the other finders do, and has ours told when those it waits for load."""

    def __init__(self, plan):
        self.waits_for = {"torch", "torch._dynamo"}
        if '"script":"' in plan:  # a start method for the script, which few plans have
            self.waits_for.add("multiprocessing")
        if '"channels_last":true' in plan:
            self.waits_for.add("safetensors.torch")
        # taken out at once: programs that this one starts were not planned for, and keep silent
        report = os.environ.pop("CPUTRAIN_REPORT", None)
        self.planned = None if report is None else os.getpid()
        self.reporter = os.getpid() if report == "1" else None

    def find_spec(self, name, path=None, target=None):
        if name not in self.waits_for:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._wrap(spec.loader)
                    return spec
        return None

    def _wrap(self, loader):
        own = getattr(loader, "__dict__", {})
        if isinstance(loader, type) or "exec_module" in own or not hasattr(loader, "exec_module"):
            return  # wrapped before, or no loader that can be
        load = loader.exec_module

        def exec_module(module):
            if module.__name__ not in self.waits_for:  # a zip archive loads all of its modules
                load(module)
                return
            own.pop("exec_module", None)  # the instance's; the class's own stays
            hook = _hook()
            if hook is not None:
                hook.before(module.__name__)
            load(module)
            if hook is not None:
                process = os.getpid()
                hook.after(
                    module.__name__, module, self.reporter == process, self.planned == process
                )

        # tracebacks and warnings leave out frames of the import system, and this is one: a torch
        # that fails to load fails with the traceback that plain python shows
        exec_module.__code__ = exec_module.__code__.replace(
            co_filename="<frozen importlib._bootstrap_external>"
        )
        own["exec_module"] = exec_module


def _hook():
    """cputrain.runtime.hook, also for an interpreter in which cputrain is not installed."""
    try:
        try:
            from cputrain.runtime import hook
        except ModuleNotFoundError as error:
            if error.name != "cputrain":
                raise
            from importlib.util import module_from_spec, spec_from_file_location

            package = os.path.dirname(os.path.dirname(_HERE))
            spec = spec_from_file_location(
                "cputrain",
                os.path.join(package, "__init__.py"),
                submodule_search_locations=[package],
            )
            sys.modules["cputrain"] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules["cputrain"])
            from cputrain.runtime import hook
    except Exception as error:  # a cputrain.py of the script's own, say
        if sys.stderr is not None:
            sys.stderr.write(
                "cputrain: its own modules cannot be imported ("
                + " ".join(str(error).split())
                + "). The script runs as under python.\n"
            )
        return None
    return hook


_HERE = os.path.dirname(__file__)

# the library is loaded by now, and is for this process alone
if "CPUTRAIN_LD_PRELOAD" in os.environ:
    os.environ["LD_PRELOAD"] = os.environ.pop("CPUTRAIN_LD_PRELOAD")
    if not os.environ["LD_PRELOAD"]:
        del os.environ["LD_PRELOAD"]

if sys.version_info >= (3, 11) and "CPUTRAIN_PLAN" in os.environ:
    sys.meta_path.insert(0, _Finder(os.environ["CPUTRAIN_PLAN"]))

sys.path[:] = [_entry for _entry in sys.path if _entry != _HERE]
del sys.modules["sitecustomize"]
import sitecustomize  # noqa: E402, F401  (the one behind us; without one, the error is python's own)
