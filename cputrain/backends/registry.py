"""The backends there are: ours, and those that other packages bring."""

from __future__ import annotations

from importlib.metadata import entry_points

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.backends.backend import Backend

GROUP = "cputrain.backends"
"""Entry points here name a Backend, or a class of it."""

OURS = ("default", "zendnn", "ipex")


def names() -> list[str]:
    """Of all of them, without loading any."""
    return [*OURS, *sorted({one.name for one in entry_points(group=GROUP)} - set(OURS))]


def backend_called(name: str) -> Backend:
    """Raises KeyError where there is none, and what its module raises."""
    if name in OURS:
        from cputrain.backends.default import Default
        from cputrain.backends.ipex import Ipex
        from cputrain.backends.zendnn import ZenDNN

        ours: dict[str, Backend] = {one.name: one for one in (Default(), ZenDNN(), Ipex())}
        return ours[name]
    for one in entry_points(group=GROUP, name=name):
        found = one.load()
        made: Backend = found() if isinstance(found, type) else found
        return made
    raise KeyError(name)
