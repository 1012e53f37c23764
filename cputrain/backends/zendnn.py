"""Backend for AMD's ZenDNN: zentorch, a torch.compile backend with ZenDNN's kernels.

zentorch is made for inference. Its kernels cache reordered weights by their address and do not
notice when an optimizer changes them, so the caches are disabled in spite of the cost.
"""

from __future__ import annotations

from cputrain.backends.backend import Available, Unavailable, major_minor, model_call
from cputrain.backends.installed import installed_version, library_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.backends.backend import Host, ModelCall

PACKAGES = ("zentorch", "zentorch-weekly")
"""Packages of releases and of weekly builds; they cannot be installed together."""


class ZenDNN:
    """Backend that compiles models with torch.compile(backend="zentorch")."""

    name = "zendnn"
    title = "ZenDNN, by zentorch"
    purpose = "inference, on AMD EPYC"
    torch = "of the same version"
    legacy = False
    trains = evaluates = True
    in_place = False

    def probe(self, host: Host) -> Available | Unavailable:
        """Check operating system, AVX-512, installed version and libraries."""
        if host.system != "Linux":
            return Unavailable(reason=f"it needs Linux; this is {host.system}")
        if "avx512f" not in host.isa:
            return Unavailable(reason="it needs AVX-512, which this CPU lacks")
        versions = {name: version for name in PACKAGES if (version := installed_version(name))}
        if not versions:
            return Unavailable(reason="it is not installed", do='pip install "cputrain[zendnn]"')
        if len(versions) > 1:
            return Unavailable(
                reason="zentorch and zentorch-weekly are both installed",
                do="pip uninstall zentorch-weekly",
            )
        (version,) = versions.values()
        if major_minor(version) != major_minor(host.torch):
            return Unavailable(
                reason=f"zentorch {version} is for torch {major_minor(version)}; "
                + (f"torch is {host.torch}" if host.torch else "torch is not installed"),
                do=f'pip install "zentorch=={major_minor(host.torch)}.*"' if host.torch else "",
            )
        problem = library_error("zentorch")
        return (
            Unavailable(reason=problem, do=REINSTALL_COMMAND)
            if problem
            else Available(version=version)
        )

    def load(self) -> None:
        """Import zentorch, which registers its torch.compile backend."""
        import zentorch  # noqa: F401

    def environment(self) -> dict[str, str]:
        """Return the variables that disable caches of weights, which training would make stale."""
        return {
            "ZENDNNL_MATMUL_WEIGHT_CACHE": "0",
            "ZENDNNL_ZP_COMP_CACHE": "0",
            "ZENDNNL_ENABLE_POSTOP_CACHE": "0",
        }

    def activate(self, model: Any, optimizer: Any, *, training: bool) -> ModelCall:  # noqa: ARG002
        """Return the model's call compiled by zentorch."""
        import torch

        self.load()
        call = model_call(model)

        def run(model: Any, /, *args: Any, **options: Any) -> Any:
            return call(model, *args, **options)

        # torch caches compilations by code object, so each model gets its own.
        run.__code__ = run.__code__.replace()
        return torch.compile(run, backend="zentorch", dynamic=False)


REINSTALL_COMMAND = "pip install --force-reinstall zentorch"
