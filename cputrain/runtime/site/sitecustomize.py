"""Entry point of cputrain in the user's interpreter: call the hook when torch is imported.

It must run on any Python and cost almost nothing: a program that never imports torch pays for this
file alone. At its end it imports the `sitecustomize` that the interpreter would have found without
cputrain; if there is none, the import fails as it would have.
"""

import os
import sys


class _Finder:
    """Meta path finder that calls the hook before and after the watched modules are loaded."""

    def __init__(self, plan):
        # the plan is JSON that starts with other modules to watch, mostly none; importing json to
        # read it would cost a program that never imports torch milliseconds
        modules = plan.partition('"modules":"')[2].partition('"')[0]
        self.watched_names = {"torch", "torch._dynamo"}
        self.watched_names.update(modules.split(","))
        # removed at once: child programs are not part of the plan, and must not report
        report = os.environ.pop("CPUTRAIN_REPORT", None)
        self.planned = None if report is None else os.getpid()
        self.reporter = os.getpid() if report == "1" else None

    def find_spec(self, name, path=None, target=None):
        if name not in self.watched_names:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._wrap(spec.loader)
                    return spec
        return None

    def _wrap(self, loader):
        instance_dict = getattr(loader, "__dict__", {})
        if (
            isinstance(loader, type)
            or "exec_module" in instance_dict
            or not hasattr(loader, "exec_module")
        ):
            return  # wrapped already, or cannot be wrapped
        load = loader.exec_module

        def exec_module(module):
            if module.__name__ not in self.watched_names:  # a zip archive loads all of its modules
                load(module)
                return
            instance_dict.pop(
                "exec_module", None
            )  # of the instance only; the class keeps its method
            hook = _hook()
            import gc  # not before: a script that imports no torch finds no module of ours

            if hook is not None:
                hook.before(module.__name__)
            # hundreds of thousands of objects are made, and almost none of them is garbage
            is_collecting = gc.isenabled()
            gc.disable()
            try:
                load(module)
            finally:
                if is_collecting:
                    gc.enable()
            if hook is not None:
                process = os.getpid()
                hook.after(
                    module.__name__, module, self.reporter == process, self.planned == process
                )

        # tracebacks and warnings omit frames of the import system, by file name: if torch fails to
        # load, its traceback is that of plain Python
        exec_module.__code__ = exec_module.__code__.replace(
            co_filename="<frozen importlib._bootstrap_external>"
        )
        instance_dict["exec_module"] = exec_module


def _hook():
    """Return cputrain.runtime.hook, also if cputrain is not installed; None if the import fails."""
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
    except Exception as error:  # for example, the script has a module named cputrain
        if sys.stderr is not None:
            sys.stderr.write(
                "cputrain: its own modules cannot be imported ("
                + " ".join(str(error).split())
                + "). The script runs as under python.\n"
            )
        return None
    return hook


_HERE = os.path.dirname(__file__)

# the preloaded library is loaded already; restore the variable, so that children do not load it
if "CPUTRAIN_LD_PRELOAD" in os.environ:
    os.environ["LD_PRELOAD"] = os.environ.pop("CPUTRAIN_LD_PRELOAD")
    if not os.environ["LD_PRELOAD"]:
        del os.environ["LD_PRELOAD"]

if sys.version_info >= (3, 11) and "CPUTRAIN_PLAN" in os.environ:
    sys.meta_path.insert(0, _Finder(os.environ["CPUTRAIN_PLAN"]))

sys.path[:] = [_entry for _entry in sys.path if _entry != _HERE]
del sys.modules["sitecustomize"]
import sitecustomize  # noqa: E402, F401  (the next one in sys.path; without one, Python's own error)
