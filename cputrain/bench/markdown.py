"""Comparison as a Markdown table, for docs/benchmarks or an issue."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.compare import Comparison, Side

COLUMNS = (
    "",
    "speed-up",
    "median",
    "fastest to slowest (middle half)",
    "samples/s",
    "CPU time, user + system",
    "page faults",
    "peak memory",
    "losses",
)


def as_markdown(comparison: Comparison, *, title: str, machine_line: str) -> str:
    """Render a heading, the machine, one row for each side, and a note on the columns."""
    rows = [_row(side, comparison) for side in comparison.sides]
    lines = [
        f"### {title}",
        "",
        machine_line,
        "",
        line(COLUMNS),
        "| --- |" + " ---: |" * (len(COLUMNS) - 2) + " --- |",
        *(line(row) for row in rows),
        "",
        _reading(comparison),
        "",
    ]
    return "\n".join(lines)


def row(side: Side, comparison: Comparison) -> tuple[str, ...]:
    """Return one side's cells without Markdown, for a terminal."""
    return tuple(cell.replace("**", "").replace("\\|", "|") for cell in _row(side, comparison))


def duration(seconds: float) -> str:
    """Format a time in s, ms or µs with three significant digits."""
    if seconds >= 1:
        return f"{digits(seconds)} s"
    if seconds >= 1e-3:
        return f"{digits(seconds * 1e3)} ms"
    return f"{digits(seconds * 1e6)} µs"


def size(number: float) -> str:
    """Format a number of bytes in a binary unit with three significant digits."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{digits(number)} {unit}"
        number /= 1024
    return f"{digits(number)} GiB"


def _row(side: Side, comparison: Comparison) -> tuple[str, ...]:
    low, high = (duration(seconds) for seconds in side.quartiles)
    ends = f"{duration(side.fastest)} to {duration(side.slowest)} ({low} to {high})"
    return (
        side.name.replace("|", "\\|"),
        _speedup(side, comparison),
        duration(side.median),
        duration(side.median) if comparison.repeats == 1 else ends,
        "–" if side.samples_per_second is None else digits(side.samples_per_second),
        _cpu_time(side),
        _faults(side),
        _memory(side, comparison),
        _losses(side, comparison),
    )


def _speedup(side: Side, comparison: Comparison) -> str:
    if side.name == comparison.against:
        return "1 (reference)"
    found = side.speedup
    if comparison.repeats == 1:
        return f"**{found.median:.2f}×**"
    return f"**{found.median:.2f}×** ({found.lowest:.2f} to {found.highest:.2f})"


def _cpu_time(side: Side) -> str:
    if side.user_seconds is None or side.system_seconds is None:
        return "–"
    return f"{side.user_seconds:.1f} s + {side.system_seconds:.1f} s"


def _faults(side: Side) -> str:
    if side.minor_faults is None:
        return "–"
    from_disk = f" ({side.major_faults:,} from disk)" if side.major_faults else ""
    return f"{side.minor_faults + (side.major_faults or 0):,}{from_disk}"


def _memory(side: Side, comparison: Comparison) -> str:
    """Return peak memory of all processes if sampled, with its ratio to the reference."""
    if side.peak_tree_bytes is None:
        return "–" if side.peak_rss_bytes is None else size(side.peak_rss_bytes)
    reference = comparison.side(comparison.against).peak_tree_bytes
    if side.name == comparison.against or not reference:
        return f"{size(side.peak_tree_bytes)}, all processes"
    return f"{size(side.peak_tree_bytes)} ({side.peak_tree_bytes / reference:.2f}×)"


def _losses(side: Side, comparison: Comparison) -> str:
    if side.loss_difference is None:
        alone = side.name == comparison.against and comparison.repeats == 1
        return "run once" if alone else "not reported"
    if side.loss_difference == 0:
        return f"equal, {side.losses_compared} compared"
    return f"differ by {side.loss_difference:.1e} at most, {side.losses_compared} compared"


def _reading(comparison: Comparison) -> str:
    rounds = "1 round" if comparison.repeats == 1 else f"{comparison.repeats} rounds, interleaved"
    if comparison.clock == "steps":
        clock = "times are of one step, as the script measured them after its warm-up"
    else:
        clock = "times are of the whole process, imports and warm-up included"
    return (
        f"{rounds}; {clock}; CPU time, faults and memory are of the whole process. "
        f"The speed-up is the median of the rounds' ratios. Losses are compared with the first "
        f"run of {comparison.against}, as relative differences; its own row shows how well it "
        "repeats."
    )


def digits(number: float) -> str:
    """Format a number with three significant digits and thousands separators."""
    if number >= 99.95:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"


def line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
