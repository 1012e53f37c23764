"""Drawing of the machine: a box for each socket and L3 cache, a square for each core."""

from __future__ import annotations

from cputrain.machine import format_list
from cputrain.report.page.marks import element, text, tip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.diagnose.machine_layout import CacheDomain, Core, MachineLayout, Socket


def drawing(box: MachineLayout, threads: int) -> str:
    """Return the drawing and a list of facts, with the cores that may be used marked."""
    many = len(box.sockets) > 1
    sockets = [_socket(one, f"socket {at}" if many else "") for at, one in enumerate(box.sockets)]
    cores = [one for each in box.sockets for domain in each.domains for one in domain.cores]
    allowed = sum(one.allowed for one in cores)
    facts = [f"{allowed} of {len(cores)} cores may be used, and the script computes with {threads} "
             f"thread{'s' if threads != 1 else ''}"]  # fmt: skip
    if box.memory_bytes:
        facts.append(f"{box.memory_bytes / 2**30:.0f} GiB of memory")
    if box.channels:
        facts.append(f"{box.channels} memory channels in use")
    return (
        element("div", *sockets, class_="box")
        + text("p", "; ".join(facts) + ".")
        + "".join(text("p", one, class_="note") for one in box.reasons)
    )


def _socket(one: Socket, name: str) -> str:
    title = text("h4", name) if name else ""
    return element("div", title, *map(_shared, one.domains), class_="socket")


def _shared(one: CacheDomain) -> str:
    size = f"L3 {one.size_bytes / 2**20:.0f} MiB" if one.size_bytes else "no L3 is told"
    cores = element("div", *map(_core, one.cores), class_="cores")
    return element("div", cores, text("small", size), class_="shared")


def _core(one: Core) -> str:
    said = tip(
        f"CPU{'s' if len(one.cpus) > 1 else ''} {format_list(one.cpus)}",
        one.kind,
        "" if one.allowed else "not to be used",
    )
    kind = (
        f"core {'allowed' if one.allowed else ''} {'efficient' if one.kind == 'efficiency' else ''}"
    )
    return element("i", class_=" ".join(kind.split()), data_tip=said, tabindex=0, aria_label=said)
