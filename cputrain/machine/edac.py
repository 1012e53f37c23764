"""Memory modules and channels from sysfs files of the kernel's EDAC (error detection) drivers.

Unlike SMBIOS, EDAC is readable without root and names channels; but it exists only for memory with
error correction, on kernels with a driver for the memory controller.

https://docs.kernel.org/admin-guide/RAS/main.html describes the layout: a folder mcN for each memory
controller with a dimmN for each module, or a rankN for each rank if the driver knows no modules.
"""

from __future__ import annotations

from cputrain.machine.source import number, text
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.source import Source

EDAC_FOLDER = "/sys/devices/system/edac/mc"
# igen6_edac counts the 16- and 32-bit halves of client memory as separate channels.
CLIENT_DRIVER = "Intel_client_SoC"


class EdacModule(Record):
    """A memory module; if the driver knows no modules, all ranks of one channel."""

    label: str
    """Name of the slot, or its location if the driver has no name."""

    channel: str
    """Name of the channel: "mc0 channel 1"."""

    size_bytes: int
    """Size in bytes."""

    ranks: int | None
    """Number of ranks; None if the driver lists modules without ranks."""

    kind: str | None
    """Memory type: "Registered-DDR4"; None if unknown."""


class Edac(Record):
    """Modules listed by EDAC, or the reason why their channels are unknown."""

    modules: tuple[EdacModule, ...] = ()
    """Modules of all memory controllers."""

    why_unknown: str | None = None
    """Reason why EDAC does not give the channels; None if it does."""


def read_edac(source: Source) -> Edac:
    """Return the modules with their channels, or the reason why they are unknown."""
    controllers = [name for name in source.names(EDAC_FOLDER) if _is_numbered(name, "mc")]
    if not controllers:
        return Edac(why_unknown="no EDAC driver is loaded (it needs memory with error correction)")
    modules: list[EdacModule] = []
    for controller in controllers:
        folder = f"{EDAC_FOLDER}/{controller}"
        if (text(source, f"{folder}/mc_name") or "").startswith(CLIENT_DRIVER):
            return Edac(why_unknown=f"the EDAC driver {CLIENT_DRIVER} counts parts of channels")
        names = source.names(folder)
        dimms = [name for name in names if _is_numbered(name, "dimm")]
        ranks = [name for name in names if _is_numbered(name, "rank")]
        if not dimms and not ranks and any(_is_numbered(name, "csrow") for name in names):
            return Edac(why_unknown=f"EDAC's {controller} lists rows (csrow) but no channels")
        controller_modules: list[EdacModule] = []
        for name in dimms or ranks:
            module = _module(source, controller, name)
            if isinstance(module, str):
                return Edac(why_unknown=module)
            if module is not None:
                controller_modules.append(module)
        modules += controller_modules if dimms else _merge_ranks(controller_modules)
    if not modules:
        return Edac(why_unknown="EDAC lists no memory")
    return Edac(modules=tuple(modules))


def _module(source: Source, controller: str, name: str) -> EdacModule | str | None:
    """Return a module; None for an empty slot or on-package memory; an error message as str."""
    folder = f"{EDAC_FOLDER}/{controller}/{name}"
    size = number(source, f"{folder}/size")
    kind = text(source, f"{folder}/dimm_mem_type")
    if not size or size < 0 or (kind or "").upper().startswith("HBM"):
        return None
    location = text(source, f"{folder}/dimm_location") or ""
    words = location.split()
    # "channel 0 slot 1", "csrow 0 channel 1", "branch 0 channel 1 slot 0"
    layers = dict(zip(words[::2], words[1::2], strict=False))
    if "channel" not in layers:
        return f"EDAC's {controller}/{name} gives its location as {location!r}, without a channel"
    parents = [f"{layer} {layers[layer]}" for layer in ("branch", "memory") if layer in layers]
    return EdacModule(
        label=text(source, f"{folder}/dimm_label") or location,
        channel=" ".join([controller, *parents, f"channel {layers['channel']}"]),
        size_bytes=size << 20,
        ranks=1 if name.startswith("rank") else None,
        kind=kind or None,
    )


def _merge_ranks(ranks: list[EdacModule]) -> list[EdacModule]:
    """Merge the ranks of each channel into one entry; which module a rank is on is unknown."""
    channels: dict[str, EdacModule] = {}
    for rank in ranks:
        merged = channels.get(rank.channel)
        channels[rank.channel] = (
            rank
            if merged is None
            else merged.replace(
                size_bytes=merged.size_bytes + rank.size_bytes, ranks=(merged.ranks or 0) + 1
            )
        )
    return list(channels.values())


def _is_numbered(name: str, stem: str) -> bool:
    return name.startswith(stem) and name[len(stem) :].isdigit()
