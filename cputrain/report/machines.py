"""Tables of a machine, for `cputrain info`."""

from __future__ import annotations

from cputrain.counting import counted
from cputrain.machine import format_list
from cputrain.report.terminal import show_pairs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from cputrain.machine import Machine
    from cputrain.machine.bandwidth import Bandwidth
    from cputrain.machine.opencl import OpenCLDevice
    from cputrain.machine.topology import Domain


def show_machine(out: Console, machine: Machine, bandwidth: Bandwidth | None) -> None:
    """Print the machine's facts, limits, budget and warnings."""
    for index, (title, pairs) in enumerate(sections(machine, bandwidth)):
        show_pairs(out, f"\n{title}" if index else title, pairs)
    for warning in _warnings(machine):
        out.print(f"\n[yellow]warning[/yellow] {warning}", soft_wrap=True)


def show_opencl(out: Console, devices: Sequence[OpenCLDevice], problem: str) -> None:
    """Print the OpenCL devices that `import cputrain.opencl` would register."""
    show_pairs(out, "\nOpenCL", _opencl(devices, problem))


def _opencl(devices: Sequence[OpenCLDevice], problem: str) -> Iterator[tuple[str, object]]:
    for index, device in enumerate(devices):
        memory = "shares the host's memory" if device.shares_memory else _gib(device.memory_bytes)
        dtypes = [
            name for name, is_supported in
            (("float64", device.float64), ("float16", device.float16)) if is_supported
        ]  # fmt: skip
        yield (
            f"ocl:{index}",
            f"{device.name}: {device.kind}, {counted(device.units, 'unit')}, {memory}, "
            f"tensors up to {_gib(device.largest_tensor_bytes)}"
            f"{', ' if dtypes else ''}{' and '.join(dtypes)} ({device.platform}, {device.version})",
        )
    if problem:
        yield "unknown", problem
    elif not devices:
        yield (
            "none",
            (
                "no driver has a device. A GPU needs its vendor's OpenCL driver; pip install "
                '"cputrain[opencl]" installs one for the CPU'
            ),
        )


def sections(
    machine: Machine, bandwidth: Bandwidth | None
) -> Iterator[tuple[str, Iterator[tuple[str, object]]]]:
    """Yield headings, each with pairs of name and value; a value of None is omitted."""
    yield machine.model_name or machine.vendor or "unknown CPU", _processor(machine)
    yield "Memory", _memory(machine, bandwidth)
    yield "Accelerators", _accelerators(machine)
    yield "Budget", _budget(machine)


def _processor(machine: Machine) -> Iterator[tuple[str, object]]:
    topology = machine.topology
    threads_per_core = sorted({len(core) for core in topology.cores})
    yield (
        "cores",
        f"{len(topology.cores)} on {counted(len(topology.sockets), 'socket')}, "
        f"{len(topology.online)} logical CPUs "
        f"({' or '.join(map(str, threads_per_core))} per core)",
    )
    if len(machine.kinds) > 1:
        for kind in machine.kinds:
            yield f"  {kind.kind}", f"CPUs {format_list(kind.cpus)}{_up_to(kind.max_frequency_hz)}"
    if topology.offline:
        yield "offline", f"CPUs {format_list(topology.offline)}"
    for name, domains in (
        ("L1 data", topology.l1_domains),
        ("L2", topology.l2_domains),
        ("L3", topology.l3_domains),
    ):
        yield name, _domains(domains)
    if len(machine.nodes) > 1:
        for node in machine.nodes:
            cpus = f"CPUs {format_list(node.cpus)}" if node.cpus else "no CPUs"
            size = _gib(node.memory_bytes) or "memory unknown"
            yield f"node {node.id}", f"{cpus}, {size}"
    yield "instructions", " ".join(machine.isa) or "none that speed up training"
    details = machine.details
    if details is not None:
        clock = details.frequency
        now = f"{clock.current_hz / 1e9:.2f} GHz now" if clock.current_hz else ""
        governor = f"governor {clock.governor}" if clock.governor else ""
        # a virtual machine names the base frequency as the highest one, and runs above it
        is_highest = (clock.max_hz or 0) >= (clock.current_hz or 0)
        most = _up_to(clock.max_hz).lstrip(", ") if is_highest else ""
        known = [part for part in (now, most, governor) if part]
        yield "frequency", ", ".join(known) or None
    yield (
        "virtual",
        "yes: the hypervisor decides which caches, sockets and memory modules are visible"
        if machine.virtual
        else None,
    )


def _memory(machine: Machine, bandwidth: Bandwidth | None) -> Iterator[tuple[str, object]]:
    memory = machine.memory
    yield "total", _gib(memory.total_bytes)
    yield "available", _gib(memory.available_bytes)
    yield "huge pages", memory.huge_pages
    channels = memory.channels
    if channels is not None:
        is_known = channels.populated is not None or channels.possible is not None
        if is_known:
            populated = "?" if channels.populated is None else channels.populated
            possible = "?" if channels.possible is None else channels.possible
            speed = f", {channels.speed_mt_per_s} MT/s" if channels.speed_mt_per_s else ""
            ranks = f", rank {channels.ranks}" if channels.ranks else ""
            yield "channels", f"{populated} of {possible} in use{speed}{ranks}"
            yield "", channels.how or None
        yield "" if is_known else "channels", channels.why_unknown
    if bandwidth is not None:
        yield (
            "bandwidth",
            f"{bandwidth.bandwidth_bytes_per_s / 1e9:.1f} GB/s on "
            f"{counted(bandwidth.threads, 'core')}, "
            f"{bandwidth.one_core_bytes_per_s / 1e9:.1f} GB/s on one, measured by copying "
            f"(rounds vary by {bandwidth.spread:.0%})",
        )
    elif machine.details is not None:
        yield "bandwidth", "not measured yet: cputrain info --measure"


def _accelerators(machine: Machine) -> Iterator[tuple[str, object]]:
    details = machine.details
    if details is None:
        return
    for device in details.accelerators:
        size = f", {_gib(device.memory_bytes)}" if device.memory_bytes else ""
        name = device.name or f"device {device.device_id or 'unknown'}"
        yield str(device.vendor), f"{name}{size}: {device.usable}"
    for driver in details.opencl_drivers:
        missing = "" if driver.found else " (missing)"
        note = f": {driver.note}" if driver.note else ""
        yield "OpenCL", f"{driver.library}{missing}{note}"
    if not details.accelerators and not details.opencl_drivers:
        yield "none", machine.unknown.get("accelerators", "no GPU and no OpenCL driver found")


def _budget(machine: Machine) -> Iterator[tuple[str, object]]:
    budget = machine.budget
    yield "CPUs", format_list(budget.cpus)
    yield "cores", budget.physical_cores
    yield "memory", _gib(budget.memory_bytes)
    for index, reason in enumerate(budget.reasons):
        yield "because" if index == 0 else "", reason


def _warnings(machine: Machine) -> Sequence[str]:
    channels = machine.memory.channels
    return channels.warnings if channels is not None else ()


def _domains(domains: Sequence[Domain]) -> str | None:
    """Format cache domains, alike ones counted: 48 × 512 KiB, shared by 2 CPUs."""
    if not domains:
        return None
    shapes: dict[tuple[int | None, int], int] = {}
    for domain in domains:
        shape = (domain.size_bytes, len(domain.cpus))
        shapes[shape] = shapes.get(shape, 0) + 1
    return "; ".join(
        f"{count} × {_size(size)}, {'private' if sharers == 1 else f'shared by {sharers} CPUs'}"
        for (size, sharers), count in shapes.items()
    )


def _size(size: int | None) -> str:
    if size is None:
        return "unknown size"
    return f"{size / 2**20:g} MiB" if size >= 1 << 20 else f"{size // 1024} KiB"


def _gib(size: int | None) -> str | None:
    return None if size is None else f"{size / 2**30:.1f} GiB"


def _up_to(hertz: int | None) -> str:
    return f", up to {hertz / 1e9:.2f} GHz" if hertz else ""
