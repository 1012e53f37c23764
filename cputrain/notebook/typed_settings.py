"""Types of the keyword arguments of `cputrain.setup`, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypedDict

Switch = Literal["auto", "on", "off"] | bool | None
"""Value of a setting that is on or off."""


class Settings(TypedDict, total=False):
    """Settings of `cputrain launch`, with underscores; None leaves one unset."""

    threads: int | Literal["auto"] | None
    interop_threads: int | Literal["auto"] | None
    placement: Literal["auto", "none", "cores"] | str | Iterable[int] | None
    memory_policy: Literal["auto", "local", "interleave"] | None
    loader: Switch
    loader_cores: int | Literal["auto", "shared"] | None
    allocator: Literal["auto", "tuned", "default"] | str | None
    memory_limit: Literal["auto"] | str | None
    huge_pages: Switch
    short_waits: Switch
    start_method: Literal["auto", "fork", "spawn", "forkserver"] | None
    flush_denormals: Switch
    fused_optimizer: Switch
    c_kernels: Switch
    channels_last: Switch
    precision: Literal["auto", "float32", "kernels", "bf16"] | None
    optimizer_states: Literal["auto", "full", "8bit"] | None
    replicas: int | Literal["auto"] | None
    reproducible: int | Literal["off"] | None
    isa: Literal["auto", "portable", "avx2", "avx512"] | None
    gradient_exchange: Literal["auto", "shared", "torch"] | None
    attention: Literal["auto", "math", "float32"] | None
    compile: Switch
    record_step: Switch
    backend: Literal["auto"] | str | None
    learn: Switch
