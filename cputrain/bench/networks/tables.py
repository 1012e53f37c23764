"""Table of a network comparison."""

from __future__ import annotations

from statistics import median

from cputrain.bench.markdown import digits, duration
from cputrain.bench.tables import markdown_page, without_empty_columns
from cputrain.counting import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.networks.comparison import NetworkComparison, NetworkResult
    from cputrain.bench.tables import Table


def case_table(comparison: NetworkComparison) -> Table:
    """Return the header and rows of the table."""
    *compared_devices, reference = comparison.devices
    head = [
        "network, batch",
        *comparison.devices,
        *(column for device in compared_devices for column in (
            f"{device} against {reference}", f"host time, {device}", "loss difference"
        )),
    ]  # fmt: skip
    return without_empty_columns(tuple(head), [_row(result) for result in comparison.results])


def as_markdown(comparison: NetworkComparison, *, machine_line: str) -> str:
    """Render the machine, the table, and a footnote on the columns."""
    tables = [(case.title, case_table(case), case_note(case)) for case in comparison.cases]
    return markdown_page(machine_line, comparison.versions, tables, footnote(comparison))


def case_note(_: NetworkComparison) -> str:
    """Return an empty note: no network is left out."""
    return ""


def footnote(comparison: NetworkComparison) -> str:
    """Return the footnote that explains the columns."""
    rounds = counted(comparison.rounds, "round", "rounds, interleaved")
    *compared_devices, reference = comparison.devices
    means = ", ".join(f"{device} {comparison.mean(device):.2f}" for device in compared_devices)
    device_names = ", ".join(f"{device} is {name}" for device, name in comparison.names.items())
    return (
        f"{rounds}; training steps (forward, backward, SGD with momentum) on images of "
        f"{comparison.side} x {comparison.side}, float32 without TF32, or autocast to the dtype "
        f"after +; {device_names}. Speed-up "
        f"over {reference} in geometric mean: {means}. Host time is the time in which Python "
        "enqueues a step."
    )


def _row(result: NetworkResult) -> tuple[str, ...]:
    *compared_sides, _ = result.sides
    cells = [f"{result.name}, {result.batch}"]
    cells += [duration(median(side.seconds)) for side in result.sides]
    for side in compared_sides:
        ratio_range = ""
        if len(side.seconds) > 1:
            ratio_range = f" ({digits(side.speedup.lowest)} to {digits(side.speedup.highest)})"
        cells += [
            f"{digits(side.speedup.median)}×{ratio_range}", duration(side.asked),
            f"{side.loss_difference:.1e}",
        ]  # fmt: skip
    return tuple(cells)
