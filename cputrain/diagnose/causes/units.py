"""Unused vector and matrix units: float32, channels-first images, and sides that do not fit."""

from __future__ import annotations

from cputrain.counting import counted
from cputrain.diagnose.finding import FEWER_BITS, Confidence, make_finding
from cputrain.diagnose.rates import of_roof, part_of, rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import DiagnosedCase, Finding
    from cputrain.diagnose.roof import Product
    from cputrain.diagnose.step_profile import StepProfile

MIN_BF16_RATIO = 1.3
"""Ratio of the peak FLOP/s of bfloat16 to those of float32 above which bfloat16 is suggested."""

CAST_BYTES = 1.5
"""Bytes that a cast from float32 to bfloat16 reads and writes, per byte in float32."""

CONVOLUTIONS = frozenset({"convolution", "convolution_backward"})
"""Operators that are faster in the channels-last memory format."""

PRODUCTS = frozenset({"mm", "addmm"})
"""Operators whose sides are looked at."""

TILE = 16
"""Numbers that a unit processes at once; sides of matrices that are a multiple of it fit."""

ROUND_SIDE = 64
"""Suggested sides are a multiple of this."""

MAX_TIMED = 3
"""Largest number of products that are timed with sides that fit and without."""

MIN_TIMED_SHARE = 0.05
"""Fraction of a step above which a product is timed."""


def find(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield findings of float32, of the memory format of images, and of sides of matrices."""
    yield from _float32(case)
    yield from _channels_first(case)
    yield from _misfit_sides(case)


def products_to_time(profile: StepProfile) -> list[Product]:
    """Return the slowest products with sides that do not fit, each followed by one that fits."""
    seconds = _misfits(profile)
    slow = sorted(
        (product for product in seconds if seconds[product] > MIN_TIMED_SHARE * profile.step),
        key=lambda product: -seconds[product],
    )
    return [timed for product in slow[:MAX_TIMED] for timed in (product, _rounded(product))]


def _misfits(profile: StepProfile) -> dict[Product, float]:
    """Return the seconds of a step in products with a side that is not a multiple of `TILE`."""
    seconds: dict[Product, float] = {}
    for operator in profile.operators:
        sides = [shape for shape in operator.shapes if len(shape) == 2][-2:]
        if operator.name in PRODUCTS and len(sides) == 2:
            (rows, inner), (_, columns) = sides
            product = (rows, columns, inner, operator.dtype)
            if product != _rounded(product, TILE) and min(rows, columns, inner) >= TILE:
                seconds[product] = seconds.get(product, 0.0) + operator.seconds
    return seconds


def _rounded(product: Product, multiple: int = ROUND_SIDE) -> Product:
    """Return the product with its sides rounded up."""
    rows, columns, inner = (-(-side // multiple) * multiple for side in product[:3])
    return rows, columns, inner, product[3]


def _misfit_sides(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if products with rounded sides are faster."""
    timed = {
        product: (seconds, case.products[product], case.products[_rounded(product)])
        for product, seconds in _misfits(case.seen).items()
        if product in case.products
    }
    faster = {product: times for product, times in timed.items() if times[2] < times[1]}
    if not faster:
        return
    lost_s = sum(
        seconds * (1 - rounded_s / misfit_s) for seconds, misfit_s, rounded_s in faster.values()
    )
    slowest = max(faster, key=lambda product: faster[product][0])
    misfits = sorted({side for product in faster for side in product[:3] if side % TILE})
    yield make_finding(
        case, lost_s, from_operators=True,
        cause="units",
        title=f"sides of matrices do not fit the CPU's units: {', '.join(map(str, misfits))}",
        evidence=(
            f"a product of {slowest[0]}x{slowest[2]} and {slowest[2]}x{slowest[1]} takes "
            f"{faster[slowest][1] * 1e3:.3g} ms, {faster[slowest][2] * 1e3:.3g} ms with sides that "
            f"are multiples of {ROUND_SIDE}",
        ),
        remedy=", ".join(f"{-(-side // ROUND_SIDE) * ROUND_SIDE} instead of {side}"
                         for side in misfits)
        + ", with the additional rows and columns unused",
        exact=False,
        changes="layers have other sizes",
        sure=Confidence.MEASURED,
    )  # fmt: skip


def _float32(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if products in float32 would be faster in bfloat16."""
    seen, roof = case.seen, case.roof
    float32_flops = roof.flops("float32", seen.threads)
    ratio = roof.flops("bfloat16", seen.threads) / float32_flops
    in_float32 = [
        operator for operator in seen.operators
        if operator.flops and operator.seconds
        and operator.dtype == operator.compute_dtype == "float32"
    ]  # fmt: skip
    if ratio < MIN_BF16_RATIO or not in_float32:
        return
    # only the compute-bound fraction of an operator speeds up, and its tensors are cast first
    lost_s = sum(
        operator.seconds
        * min(1.0, operator.flops / operator.seconds / float32_flops)
        * (1 - 1 / ratio)
        for operator in in_float32
    ) - CAST_BYTES * sum(operator.bytes for operator in in_float32) / roof.streaming(seen.threads)
    seconds = sum(operator.seconds for operator in in_float32)
    flops = sum(operator.flops for operator in in_float32)
    yield make_finding(
        case, lost_s, from_operators=True,
        cause="units",
        title=f"bfloat16 is {ratio:.1f} times as fast on this CPU, and not used",
        evidence=(
            f"products and convolutions in float32 take "
            f"{part_of(seconds, seen.instrumented_step)} of a step",
            f"they reach {of_roof(flops / seconds, float32_flops, 'FLOP/s')}",
            f"in bfloat16 there are {rate(float32_flops * ratio, 'FLOP/s')}",
        ),
        remedy="cputrain launch --precision bf16 (fewer bits: compare the losses)",
        settings={"precision": "bf16"},
        exact=False,
        changes=FEWER_BITS,
        sure=Confidence.CALCULATED,
    )  # fmt: skip


def _channels_first(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if convolutions take images in the channels-first memory format."""
    seen = case.seen
    channels_first = [
        operator for operator in seen.operators
        if operator.name in CONVOLUTIONS and not operator.channels_last and operator.shapes
        and len(operator.shapes[0]) == 4 and operator.shapes[0][1] > 1
    ]  # fmt: skip
    if not channels_first:
        return
    # oneDNN reorders the input of each convolution, and its result back
    moved_bytes = sum(2 * operator.bytes for operator in channels_first)
    lost_s = min(
        moved_bytes / case.roof.streaming(seen.threads),
        sum(operator.seconds for operator in channels_first),
    )
    num_calls = sum(operator.calls for operator in channels_first)
    yield make_finding(
        case, lost_s, from_operators=True,
        cause="units",
        title="images have their channels first, and are reordered for each convolution",
        evidence=(
            f"of a step, {counted(round(num_calls), 'convolution')} had images with their channels "
            f"first: reordering moves {moved_bytes / 2**20:.0f} MiB",
        ),
        remedy="cputrain launch --channels-last on, or model.to(memory_format=torch.channels_last)",
        settings={"channels_last": "on"},
        sure=Confidence.CALCULATED,
    )  # fmt: skip
