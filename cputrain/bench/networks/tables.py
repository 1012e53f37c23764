"""Table of a network comparison."""

from __future__ import annotations

from cputrain.bench.markdown import digits, duration
from cputrain.bench.tables import markdown_page, without_empty_columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.networks.comparison import NetworkComparison, NetworkResult
    from cputrain.bench.tables import Table


def case_table(comparison: NetworkComparison) -> Table:
    """Return the header and rows of the table."""
    *others, last = comparison.devices
    head = [
        "network, batch",
        *comparison.devices,
        *(column for one in others for column in (
            f"{one} of {last}'s speed", f"asked for, {one}", "loss difference"
        )),
    ]  # fmt: skip
    return without_empty_columns(tuple(head), [_row(result) for result in comparison.results])


def as_markdown(comparison: NetworkComparison, *, machine_line: str) -> str:
    """Render the machine, the table, and a note on the columns."""
    tables = [(one.title, case_table(one), case_note(one)) for one in comparison.cases]
    return markdown_page(machine_line, comparison.versions, tables, footnote(comparison))


def case_note(_: NetworkComparison) -> str:
    """Return an empty note: no network is left out."""
    return ""


def footnote(comparison: NetworkComparison) -> str:
    """Return the note that explains the columns."""
    rounds = "1 round" if comparison.rounds == 1 else f"{comparison.rounds} rounds, interleaved"
    *others, last = comparison.devices
    means = ", ".join(f"{one} {comparison.mean(one):.2f}" for one in others)
    called = ", ".join(f"{device} is {name}" for device, name in comparison.names.items())
    return (
        f"{rounds}; a step of training (forward, backward, SGD with momentum) on images of "
        f"{comparison.side} x {comparison.side}, float32 without TF32; {called}. Of {last}'s speed "
        f"in geometric mean: {means}. What is asked for is what Python takes for a step."
    )


def _row(result: NetworkResult) -> tuple[str, ...]:
    *others, _ = result.sides
    cells = [f"{result.name}, {result.batch}"]
    cells += [duration(sorted(one.seconds)[len(one.seconds) // 2]) for one in result.sides]
    for one in others:
        ends = ""
        if len(one.seconds) > 1:
            ends = f" ({digits(one.speedup.lowest)} to {digits(one.speedup.highest)})"
        cells += [
            f"{digits(one.speedup.median)}×{ends}", duration(one.asked),
            f"{one.loss_difference:.1e}",
        ]  # fmt: skip
    return tuple(cells)
