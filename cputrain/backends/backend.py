"""The protocol of a backend: alternative kernels for torch's operations."""

from __future__ import annotations

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    Run = Callable[..., Any]
    """Given a model and its arguments: what the model's call returns."""

    class Backend(Protocol):
        """One that is installed is named by an entry point in the group `cputrain.backends`."""

        name: str
        """ "zendnn": what the user calls it."""

        title: str
        """What it is, in a few words."""

        purpose: str
        """What its makers made it for: "inference"."""

        torch: str
        """The versions of torch that it works with: "2.8"."""

        legacy: bool
        """Whether it gets no fixes any more: such a one is never chosen by itself."""

        trains: bool
        """Whether it claims to run a training's forward and backward."""

        evaluates: bool
        """Whether it claims to run a model under no_grad whose weights change in between."""

        in_place: bool
        """Whether it changes a model that it is activated for: that must be before its first call,
        as a graph of before knows the parameters as they were."""

        def probe(self, host: Host) -> Available | Unavailable:
            """Whether it can be had, without importing torch: in well under a second."""

        def load(self) -> None:
            """Import it. Raises what is wrong with it."""

        def environment(self) -> Mapping[str, str]:
            """Variables that must be set before torch is loaded."""

        def activate(self, model: Any, optimizer: Any, *, training: bool) -> Run:
            """What runs the model instead. For evaluation there is no optimizer."""


class Host(Record):
    """The machine and the torch version that a backend must support."""

    system: str
    """ "Linux"."""

    isa: frozenset[str]
    """Instruction sets, as Linux calls them: "avx512f"."""

    torch: str
    """The version; empty where there is none."""


class Available(Record):
    """Probe result: the backend can be used."""

    version: str
    """Its own."""

    notes: str = ""
    """What it does on this machine."""


class Unavailable(Record):
    """Probe result: the backend cannot be used."""

    reason: str
    """Why, as half a sentence: "it is not installed"."""

    do: str = ""
    """What would help."""


def minor(version: str) -> str:
    """Return major and minor of a version: 2.13 for 2.13.0+cpu."""
    return ".".join(version.split("+")[0].split(".")[:2])


def call_of(model: Any) -> Run:
    """Return the model's own call, without a backend."""
    call: Run = type(model).__call__
    return call
