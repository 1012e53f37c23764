"""What torch has by itself: oneDNN, MKL or OpenBLAS, and its own vectorised kernels."""

from __future__ import annotations

from cputrain.backends.backend import Available, Unavailable, call_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.backends.backend import Host, Run

FLOATS = {
    "amx_bf16": "bf16 by AMX",
    "avx512_bf16": "bf16 by AVX-512",
}
"""Instructions that multiply in fewer bits, the fastest first."""

VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON", "sve": "SVE", "vsx": "VSX"}
"""Those that torch's kernels are made for."""


class Default:
    """Always there, and what all others are measured against."""

    name = "default"
    title = "oneDNN, as torch has it"
    purpose = "training and inference"
    torch = "2.8 and later"
    legacy = False
    trains = evaluates = True
    in_place = False

    def probe(self, host: Host) -> Available | Unavailable:
        if not host.torch:
            return Unavailable(reason="torch is not installed", do="pip install torch")
        has = [name for flag, name in VECTORS.items() if flag in host.isa][:1]
        has += [name for flag, name in FLOATS.items() if flag in host.isa][:1]
        return Available(version=host.torch, notes=", ".join(has) or "no vectors that it knows")

    def load(self) -> None:
        import torch  # noqa: F401

    def environment(self) -> dict[str, str]:
        return {}

    def activate(self, model: Any, optimizer: Any, *, training: bool) -> Run:  # noqa: ARG002
        return call_of(model)
