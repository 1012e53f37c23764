"""Registry of backends: built-in backends, and entry points of other packages."""

from __future__ import annotations

from importlib.metadata import entry_points

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.backends.backend import Backend

ENTRY_POINT_GROUP = "cputrain.backends"
"""Entry point group; each entry point names a `Backend` instance or a class of it."""

BUILT_IN = ("default", "zendnn", "ipex")


def backend_names() -> list[str]:
    """Return the names of all backends, built-in ones first, without loading any."""
    return [
        *BUILT_IN,
        *sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)} - set(BUILT_IN)),
    ]


def load_backend(name: str) -> Backend:
    """Return the backend with a name.

    Raises:
        KeyError: No backend has this name.
        Exception: Its module or class raised it.
    """
    if name in BUILT_IN:
        from cputrain.backends.default import Default
        from cputrain.backends.ipex import Ipex
        from cputrain.backends.zendnn import ZenDNN

        built_in: dict[str, Backend] = {
            backend.name: backend for backend in (Default(), ZenDNN(), Ipex())
        }
        return built_in[name]
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        registered = entry_point.load()
        backend: Backend = registered() if isinstance(registered, type) else registered
        return backend
    raise KeyError(name)
