"""AMD's ZenDNN, by zentorch: a compiler backend that puts its own kernels into Inductor's graphs.

Made for inference. Its kernels keep weights in their own order, by their address: what an optimizer
writes there is not seen. So its caches are off, whatever that costs.
"""

from __future__ import annotations

from cputrain.backends.backend import Available, Unavailable, call_of, minor
from cputrain.backends.installed import libraries_load, version_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.backends.backend import Host, Run

PACKAGES = ("zentorch", "zentorch-weekly")
"""Releases, and weekly builds: both at once do not work."""


class ZenDNN:
    """torch.compile(backend="zentorch")."""

    name = "zendnn"
    title = "ZenDNN, by zentorch"
    purpose = "inference, on AMD EPYC"
    torch = "that of its own number"
    legacy = False
    trains = evaluates = True
    in_place = False

    def probe(self, host: Host) -> Available | Unavailable:
        if host.system != "Linux":
            return Unavailable(reason=f"it is for Linux; this is {host.system}")
        if "avx512f" not in host.isa:
            return Unavailable(reason="it needs AVX-512, which this CPU does not have")
        found = {name: version for name in PACKAGES if (version := version_of(name))}
        if not found:
            return Unavailable(reason="it is not installed", do='pip install "cputrain[zendnn]"')
        if len(found) > 1:
            return Unavailable(
                reason="zentorch and zentorch-weekly are both installed",
                do="pip uninstall zentorch-weekly",
            )
        (version,) = found.values()
        if minor(version) != minor(host.torch):
            return Unavailable(
                reason=f"zentorch {version} is for torch {minor(version)}; "
                + (f"torch is {host.torch}" if host.torch else "torch is not installed"),
                do=f'pip install "zentorch=={minor(host.torch)}.*"' if host.torch else "",
            )
        fault = libraries_load("zentorch")
        return Unavailable(reason=fault, do=REINSTALL) if fault else Available(version=version)

    def load(self) -> None:
        import zentorch  # noqa: F401

    def environment(self) -> dict[str, str]:
        return {
            "ZENDNNL_MATMUL_WEIGHT_CACHE": "0",
            "ZENDNNL_ZP_COMP_CACHE": "0",
            "ZENDNNL_ENABLE_POSTOP_CACHE": "0",
        }

    def activate(self, model: Any, optimizer: Any, *, training: bool) -> Run:  # noqa: ARG002
        import torch

        self.load()
        call = call_of(model)

        def run(model: Any, /, *args: Any, **options: Any) -> Any:
            return call(model, *args, **options)

        run.__code__ = run.__code__.replace()  # torch keeps what it compiles with the code
        return torch.compile(run, backend="zentorch", dynamic=False)


REINSTALL = "pip install --force-reinstall zentorch"
