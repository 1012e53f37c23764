"""Drawing of the machine: a box for each socket and L3 cache, a square for each core."""

from __future__ import annotations

from cputrain.machine import format_list
from cputrain.report.page.marks import element, text, tip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.diagnose.machine_layout import CacheDomain, Core, MachineLayout, Socket


def drawing(layout: MachineLayout, threads: int) -> str:
    """Return the drawing, which marks the cores that may be used, and a line of facts.

    Args:
        layout: Layout of the machine.
        threads: Intra-op threads of the script.
    """
    has_names = len(layout.sockets) > 1
    sockets = [
        _socket(socket, f"socket {index}" if has_names else "")
        for index, socket in enumerate(layout.sockets)
    ]
    cores = [
        core for socket in layout.sockets for domain in socket.domains for core in domain.cores
    ]
    num_allowed = sum(core.allowed for core in cores)
    facts = [f"{num_allowed} of {len(cores)} cores may be used, and the script computes with "
             f"{threads} thread{'s' if threads != 1 else ''}"]  # fmt: skip
    if layout.memory_bytes:
        facts.append(f"{layout.memory_bytes / 2**30:.0f} GiB of memory")
    if layout.channels:
        facts.append(f"{layout.channels} memory channels in use")
    return (
        element("div", *sockets, class_="box")
        + text("p", "; ".join(facts) + ".")
        + "".join(text("p", reason, class_="note") for reason in layout.reasons)
    )


def _socket(socket: Socket, name: str) -> str:
    title = text("h4", name) if name else ""
    return element("div", title, *map(_domain, socket.domains), class_="socket")


def _domain(domain: CacheDomain) -> str:
    size = f"L3 {domain.size_bytes / 2**20:.0f} MiB" if domain.size_bytes else "L3 unknown"
    cores = element("div", *map(_core, domain.cores), class_="cores")
    return element("div", cores, text("small", size), class_="shared")


def _core(core: Core) -> str:
    label = tip(
        f"CPU{'s' if len(core.cpus) > 1 else ''} {format_list(core.cpus)}",
        core.kind,
        "" if core.allowed else "may not be used",
    )
    classes = (
        f"core {'allowed' if core.allowed else ''} "
        f"{'efficient' if core.kind == 'efficiency' else ''}"
    )
    return element(
        "i", class_=" ".join(classes.split()), data_tip=label, tabindex=0, aria_label=label
    )
