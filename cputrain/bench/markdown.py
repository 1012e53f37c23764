"""Markdown table of a ScriptComparison, and number formats shared by all benchmarks."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.compare import ScriptComparison, Side
    from cputrain.diagnose.step_roof import StepRoof

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

ROOF_COLUMN = "of the roof"
"""Column after the times, if the roof of a step was measured."""


def as_markdown(comparison: ScriptComparison, *, title: str, machine_line: str) -> str:
    """Render a heading, the machine, one row for each side, and a footnote on the columns."""
    rows = [_row(side, comparison) for side in comparison.sides]
    columns = header(comparison)
    lines = [
        f"### {title}",
        "",
        machine_line,
        "",
        table_line(columns),
        "| --- |" + " ---: |" * (len(columns) - 2) + " --- |",
        *(table_line(row) for row in rows),
        "",
        _footnote(comparison),
        "",
    ]
    return "\n".join(lines)


def header(comparison: ScriptComparison) -> tuple[str, ...]:
    """Return the names of the columns."""
    position = COLUMNS.index("samples/s")
    roof = () if comparison.roof is None else (ROOF_COLUMN,)
    return (*COLUMNS[:position], *roof, *COLUMNS[position:])


def row(side: Side, comparison: ScriptComparison) -> tuple[str, ...]:
    """Return the cells of one side's row without Markdown, for a terminal."""
    return tuple(cell.replace("**", "").replace("\\|", "|") for cell in _row(side, comparison))


def duration(seconds: float) -> str:
    """Format a time in s, ms or µs with three significant digits."""
    if seconds >= 1:
        return f"{digits(seconds)} s"
    if seconds >= 1e-3:
        return f"{digits(seconds * 1e3)} ms"
    return f"{digits(seconds * 1e6)} µs"


def size(value: float) -> str:
    """Format a number of bytes in a binary unit with three significant digits."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{digits(value)} {unit}"
        value /= 1024
    return f"{digits(value)} GiB"


def _row(side: Side, comparison: ScriptComparison) -> tuple[str, ...]:
    quartile_1, quartile_3 = (duration(seconds) for seconds in side.quartiles)
    time_range = (
        f"{duration(side.fastest)} to {duration(side.slowest)} ({quartile_1} to {quartile_3})"
    )
    return (
        side.name.replace("|", "\\|"),
        _speedup(side, comparison),
        duration(side.median),
        duration(side.median) if comparison.repeats == 1 else time_range,
        *(() if comparison.roof is None else (_share_of_roof(side, comparison, comparison.roof),)),
        "–" if side.samples_per_second is None else digits(side.samples_per_second),
        _cpu_time(side),
        _faults(side),
        _memory(side, comparison),
        _losses(side, comparison),
    )


def _speedup(side: Side, comparison: ScriptComparison) -> str:
    if side.name == comparison.against:
        return "1 (reference)"
    speedup = side.speedup
    if comparison.repeats == 1:
        return f"**{speedup.median:.2f}×**"
    return f"**{speedup.median:.2f}×** ({speedup.lowest:.2f} to {speedup.highest:.2f})"


def _share_of_roof(side: Side, comparison: ScriptComparison, roof: StepRoof) -> str:
    if comparison.clock != "steps" or "bf16" in side.name:
        return "–"
    return f"{roof.share(side.median):.2f}"


def _cpu_time(side: Side) -> str:
    if side.user_seconds is None or side.system_seconds is None:
        return "–"
    return f"{side.user_seconds:.1f} s + {side.system_seconds:.1f} s"


def _faults(side: Side) -> str:
    if side.minor_faults is None:
        return "–"
    disk_reads = f" ({side.major_faults:,} from disk)" if side.major_faults else ""
    return f"{side.minor_faults + (side.major_faults or 0):,}{disk_reads}"


def _memory(side: Side, comparison: ScriptComparison) -> str:
    """Format peak memory: of all processes and as a ratio to the reference, if sampled."""
    if side.peak_tree_bytes is None:
        return "–" if side.peak_rss_bytes is None else size(side.peak_rss_bytes)
    reference = comparison.side(comparison.against).peak_tree_bytes
    if side.name == comparison.against or not reference:
        return f"{size(side.peak_tree_bytes)}, all processes"
    return f"{size(side.peak_tree_bytes)} ({side.peak_tree_bytes / reference:.2f}×)"


def _losses(side: Side, comparison: ScriptComparison) -> str:
    if side.loss_difference is None:
        is_single_run = side.name == comparison.against and comparison.repeats == 1
        return "run once" if is_single_run else "not reported"
    if side.loss_difference == 0:
        return f"equal, {side.losses_compared} compared"
    return f"differ by {side.loss_difference:.1e} at most, {side.losses_compared} compared"


def _footnote(comparison: ScriptComparison) -> str:
    roof = comparison.roof
    rounds = "1 round" if comparison.repeats == 1 else f"{comparison.repeats} rounds, interleaved"
    if comparison.clock == "steps":
        clock = "times are step times, as measured by the script after its warm-up"
    else:
        clock = "times are of the whole process, including imports and warm-up"
    return (
        f"{rounds}; {clock}; CPU time, faults and memory are of the whole process. "
        f"The speed-up is the median of the ratios within each round. Losses are compared with "
        f"the first run of {comparison.against}, as relative differences; the row of "
        f"{comparison.against} shows its run-to-run difference."
        + (f" {roof_sentence(roof)}" if roof else "")
    )


def roof_sentence(roof: StepRoof) -> str:
    """Return what the roof consists of."""
    text = (
        f"The roof of a step is {duration(roof.seconds)}: {duration(roof.product_seconds)} for its "
        f"products at the highest rate measured, {duration(roof.memory_seconds)} to move each of "
        f"its tensors once"
    )
    text += f"; rough: {' and '.join(roof.rough)}." if roof.rough else "."
    if roof.gaps:
        operators = ", ".join(f"{gap.name} {gap.share:.0%}" for gap in roof.gaps)
        text += (
            f" Of torch's operators, which kernels in C may replace, these lose most against "
            f"their roofs: {operators}."
        )
    return text


def digits(value: float) -> str:
    """Format a number with three significant digits and thousands separators."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def table_line(cells: tuple[str, ...]) -> str:
    """Return the cells as a row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"
