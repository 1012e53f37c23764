"""The protocol of a backend: alternative kernels for torch's operations."""

from __future__ import annotations

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    ModelCall = Callable[..., Any]
    """Function that calls a model: takes the model and its arguments, returns its output."""

    class Backend(Protocol):
        """Alternative kernels; packages register them in the entry point group "cputrain.backends".

        An entry point names an instance or a class of it.
        """

        name: str
        """Name on the command line: "zendnn"."""

        title: str
        """Short description."""

        purpose: str
        """Intended use according to its authors: "inference"."""

        torch: str
        """Supported versions of torch: "2.8"."""

        legacy: bool
        """Whether it is no longer maintained; legacy backends are never chosen automatically."""

        trains: bool
        """Whether it claims to support forward and backward in training."""

        evaluates: bool
        """Whether it claims to support models under no_grad whose weights change between calls."""

        in_place: bool
        """Whether `activate` modifies the model in place.

        It must then be called before the model's first call, since an earlier autograd graph holds
        the unmodified parameters."""

        def probe(self, host: Host) -> Available | Unavailable:
            """Return whether the backend is available, without importing torch, in under 1 s."""

        def load(self) -> None:
            """Import the backend; raise any exception if it does not work."""

        def environment(self) -> Mapping[str, str]:
            """Return environment variables that must be set before torch is loaded."""

        def activate(self, model: Any, optimizer: Any, *, training: bool) -> ModelCall:
            """Return a function that calls the model with the backend's kernels.

            Args:
                model: The model.
                optimizer: Its optimizer; None for evaluation.
                training: Whether the model is trained.
            """


class Host(Record):
    """The machine and the torch version that a backend must support."""

    system: str
    """Operating system, from platform.system(): "Linux"."""

    isa: frozenset[str]
    """Instruction sets by Linux's names: "avx512f"."""

    torch: str
    """Version of torch; empty if it is not installed."""


class Available(Record):
    """Probe result: the backend can be used."""

    version: str
    """Version of the backend."""

    notes: str = ""
    """What the backend uses on this machine: "bf16 by AMX"."""


class Unavailable(Record):
    """Probe result: the backend cannot be used."""

    reason: str
    """Reason, without capital and period: "it is not installed"."""

    do: str = ""
    """What the user can do, such as a command; empty if nothing."""


def major_minor(version: str) -> str:
    """Return major and minor of a version: 2.13 for 2.13.0+cpu."""
    return ".".join(version.split("+")[0].split(".")[:2])


def model_call(model: Any) -> ModelCall:
    """Return the model's own call, without a backend."""
    call: ModelCall = type(model).__call__
    return call
