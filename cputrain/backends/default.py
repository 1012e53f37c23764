"""The default backend: torch's own kernels, with oneDNN and MKL or OpenBLAS."""

from __future__ import annotations

from cputrain.backends.backend import Available, Unavailable, model_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.backends.backend import Host, ModelCall

BF16_INSTRUCTIONS = {
    "amx_bf16": "bf16 by AMX",
    "avx512_bf16": "bf16 by AVX-512",
}
"""Instruction sets with bfloat16 multiplication, fastest first, and their descriptions."""

VECTOR_INSTRUCTIONS = {
    "avx512f": "AVX-512",
    "avx2": "AVX2",
    "asimd": "NEON",
    "sve": "SVE",
    "vsx": "VSX",
}
"""Vector instruction sets that torch's kernels use; a probe reports the first that the CPU has."""


class Default:
    """Torch's own kernels: always available, and the reference for other backends."""

    name = "default"
    title = "oneDNN, as shipped with torch"
    purpose = "training and inference"
    torch = "2.8 and later"
    legacy = False
    trains = evaluates = True
    in_place = False

    def probe(self, host: Host) -> Available | Unavailable:
        """Return the version of torch and the instruction sets it uses here."""
        if not host.torch:
            return Unavailable(reason="torch is not installed", do="pip install torch")
        features = [name for flag, name in VECTOR_INSTRUCTIONS.items() if flag in host.isa][:1]
        features += [name for flag, name in BF16_INSTRUCTIONS.items() if flag in host.isa][:1]
        return Available(
            version=host.torch, notes=", ".join(features) or "no known vector instructions"
        )

    def load(self) -> None:
        """Import torch."""
        import torch  # noqa: F401

    def environment(self) -> dict[str, str]:
        """Return no environment variables: torch needs none."""
        return {}

    def activate(self, model: Any, optimizer: Any, *, training: bool) -> ModelCall:  # noqa: ARG002
        """Return the model's own call."""
        return model_call(model)
