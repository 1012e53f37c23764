"""Intel's extension for PyTorch. Retired: its last release is for torch 2.8, and gets no fixes.

Never chosen by itself. Its kernels take the place of a model's layers, and of the optimizer's
update, so that an update is seen.
"""

from __future__ import annotations

from cputrain.backends.backend import Available, Unavailable, call_of, minor
from cputrain.backends.installed import libraries_load, version_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.backends.backend import Host, Run

PACKAGE = "intel-extension-for-pytorch"


class Ipex:
    """ipex.optimize, in training mode."""

    name = "ipex"
    title = "Intel's extension (legacy)"
    purpose = "training and inference, on Intel; retired"
    torch = "2.8"
    legacy = True
    trains = True
    evaluates = False
    """What it has packed for evaluation does not follow the weights."""
    in_place = True

    def probe(self, host: Host) -> Available | Unavailable:
        if host.system != "Linux":
            return Unavailable(reason=f"it was for Linux; this is {host.system}")
        if "avx2" not in host.isa:
            return Unavailable(reason="it needs AVX2, which this CPU does not have")
        version = version_of(PACKAGE)
        if not version:
            if minor(host.torch) == self.torch:
                return Unavailable(reason="it is not installed", do='pip install "cputrain[ipex]"')
            return Unavailable(
                reason=f"it ended with torch {self.torch}; "
                + (f"torch is {host.torch}" if host.torch else "torch is not installed"),
                do="Stay with the default: what it had for training is in torch by now.",
            )
        if minor(version) != minor(host.torch):
            return Unavailable(
                reason=f"{PACKAGE} {version} is for torch {minor(version)}; torch is {host.torch}",
                do=f"pip uninstall {PACKAGE}, or an environment of its own with torch {self.torch}",
            )
        fault = libraries_load("intel_extension_for_pytorch")
        return Unavailable(reason=fault) if fault else Available(version=version, notes="legacy")

    def load(self) -> None:
        import intel_extension_for_pytorch  # noqa: F401

    def environment(self) -> dict[str, str]:
        return {}

    def activate(self, model: Any, optimizer: Any, *, training: bool) -> Run:
        import intel_extension_for_pytorch as ipex

        assert training, "it does not evaluate"
        ipex.optimize(model.train(), optimizer=optimizer, inplace=True)
        return call_of(model)
