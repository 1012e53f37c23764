"""Backend for Intel's extension for PyTorch, which is retired: its last release is for torch 2.8.

It is never chosen automatically. Its kernels replace the model's layers and the optimizer's update,
so the layers' packed weights are updated, too.
"""

from __future__ import annotations

from cputrain.backends.backend import Available, Unavailable, major_minor, model_call
from cputrain.backends.installed import installed_version, library_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.backends.backend import Host, ModelCall

PACKAGE = "intel-extension-for-pytorch"


class Ipex:
    """Backend that calls ipex.optimize on the model and its optimizer; training only."""

    name = "ipex"
    title = "Intel's extension (legacy)"
    purpose = "training and inference, on Intel; retired"
    torch = "2.8"
    legacy = True
    trains = True
    evaluates = False
    """False: weights packed for evaluation are not updated when the model's weights change."""
    in_place = True

    def probe(self, host: Host) -> Available | Unavailable:
        """Check operating system, AVX2, installed version and libraries."""
        if host.system != "Linux":
            return Unavailable(reason=f"it needs Linux; this is {host.system}")
        if "avx2" not in host.isa:
            return Unavailable(reason="it needs AVX2, which this CPU lacks")
        version = installed_version(PACKAGE)
        if not version:
            if major_minor(host.torch) == self.torch:
                return Unavailable(reason="it is not installed", do='pip install "cputrain[ipex]"')
            return Unavailable(
                reason=f"its last release is for torch {self.torch}; "
                + (f"torch is {host.torch}" if host.torch else "torch is not installed"),
                do="Use the default: torch contains the extension's training kernels now.",
            )
        if major_minor(version) != major_minor(host.torch):
            return Unavailable(
                reason=f"{PACKAGE} {version} is for torch {major_minor(version)}; "
                f"torch is {host.torch}",
                do=f"pip uninstall {PACKAGE}, or use an environment with torch {self.torch}",
            )
        problem = library_error("intel_extension_for_pytorch")
        return (
            Unavailable(reason=problem) if problem else Available(version=version, notes="legacy")
        )

    def load(self) -> None:
        """Import the extension."""
        import intel_extension_for_pytorch  # noqa: F401

    def environment(self) -> dict[str, str]:
        """Return no environment variables: the extension needs none."""
        return {}

    def activate(self, model: Any, optimizer: Any, *, training: bool) -> ModelCall:
        """Optimize model and optimizer in place; return the model's own call."""
        import intel_extension_for_pytorch as ipex

        assert training, "ipex supports training only"
        ipex.optimize(model.train(), optimizer=optimizer, inplace=True)
        return model_call(model)
