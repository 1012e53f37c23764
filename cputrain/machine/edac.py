"""The memory channels as the kernel's error-detection drivers (EDAC) see them.

Unlike SMBIOS it is read without root, and it names channels; but it is there only for memory with
error correction, on kernels with a driver for the memory controller.

https://docs.kernel.org/admin-guide/RAS/main.html tells the layout: one folder mcN a controller,
and in it dimmN (one a module) or rankN (one a rank, where the controller knows no modules).
"""

from __future__ import annotations

from cputrain.machine.source import number, text
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.source import Source

ROOT = "/sys/devices/system/edac/mc"
# igen6_edac counts the 16- and 32-bit halves of client memory as channels of their own
CLIENT_DRIVER = "Intel_client_SoC"


class EdacModule(Record):
    """A module; or all ranks on one channel, where the driver knows no modules."""

    label: str
    channel: str
    size_bytes: int
    ranks: int | None
    kind: str | None


class Edac(Record):
    """What EDAC says."""

    modules: tuple[EdacModule, ...] = ()
    why_unknown: str | None = None
    """Why the channels cannot be told from it; None when they can."""


def read_edac(source: Source) -> Edac:
    """The modules with their channels, or the reason why they are not known."""
    controllers = [name for name in source.names(ROOT) if _numbered(name, "mc")]
    if not controllers:
        return Edac(why_unknown="no EDAC driver is loaded (it needs memory with error correction)")
    modules: list[EdacModule] = []
    for controller in controllers:
        folder = f"{ROOT}/{controller}"
        if (text(source, f"{folder}/mc_name") or "").startswith(CLIENT_DRIVER):
            return Edac(why_unknown=f"EDAC's driver {CLIENT_DRIVER} counts parts of channels")
        names = source.names(folder)
        dimms = [name for name in names if _numbered(name, "dimm")]
        ranks = [name for name in names if _numbered(name, "rank")]
        if not dimms and not ranks and any(_numbered(name, "csrow") for name in names):
            return Edac(why_unknown=f"EDAC's {controller} has rows (csrow) only, and no channels")
        found: list[EdacModule] = []
        for name in dimms or ranks:
            module = _module(source, controller, name)
            if isinstance(module, str):
                return Edac(why_unknown=module)
            if module is not None:
                found.append(module)
        modules += found if dimms else _joined(found)
    if not modules:
        return Edac(why_unknown="EDAC lists no memory")
    return Edac(modules=tuple(modules))


def _module(source: Source, controller: str, name: str) -> EdacModule | str | None:
    """The module; None for an empty slot or on-package memory; a text for the fault found."""
    folder = f"{ROOT}/{controller}/{name}"
    size = number(source, f"{folder}/size")
    kind = text(source, f"{folder}/dimm_mem_type")
    if not size or size < 0 or (kind or "").upper().startswith("HBM"):
        return None
    location = text(source, f"{folder}/dimm_location") or ""
    words = location.split()
    # "channel 0 slot 1", "csrow 0 channel 1", "branch 0 channel 1 slot 0"
    places = dict(zip(words[::2], words[1::2], strict=False))
    if "channel" not in places:
        return f"EDAC's {controller}/{name} gives its location as {location!r}, without a channel"
    above = [f"{layer} {places[layer]}" for layer in ("branch", "memory") if layer in places]
    return EdacModule(
        label=text(source, f"{folder}/dimm_label") or location,
        channel=" ".join([controller, *above, f"channel {places['channel']}"]),
        size_bytes=size << 20,
        ranks=1 if name.startswith("rank") else None,
        kind=kind or None,
    )


def _joined(ranks: list[EdacModule]) -> list[EdacModule]:
    """One entry a channel: without modules, only the sums over a channel mean something."""
    joined: dict[str, EdacModule] = {}
    for rank in ranks:
        before = joined.get(rank.channel)
        joined[rank.channel] = (
            rank
            if before is None
            else before.replace(
                size_bytes=before.size_bytes + rank.size_bytes, ranks=(before.ranks or 0) + 1
            )
        )
    return list(joined.values())


def _numbered(name: str, stem: str) -> bool:
    return name.startswith(stem) and name[len(stem) :].isdigit()
