"""Units: the CPU has some for matrices, or for fewer bits, that are not used."""

from __future__ import annotations

from cputrain.diagnose.finding import Sure, found
from cputrain.diagnose.rates import of_roof, part_of, rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import Case, Finding
    from cputrain.diagnose.roof import Product
    from cputrain.diagnose.seen import Seen

WORTH = 1.3
"""How much faster bfloat16 must be on this CPU to be talked of."""

CASTING = 1.5
"""Bytes that are moved for each of a tensor in float32 that becomes one in bfloat16."""

CONVOLUTIONS = frozenset({"convolution", "convolution_backward"})


PRODUCTS = frozenset({"mm", "addmm"})

TILE = 16
"""Numbers that a unit takes at once; sides of matrices that are a multiple of it fit."""

ROUND = 64
"""Sides are tried as a multiple of this instead."""

MOST = 3
"""Products that are timed, with sides that fit and without: the dearest."""

DEAR = 0.05
"""Part of a step from which on a product is worth that."""


def find(case: Case) -> Iterator[Finding]:
    """Fewer bits, images in the order that units want, and sides that fit them."""
    yield from _bits(case)
    yield from _order(case)
    yield from _sides(case)


def products_to_time(seen: Seen) -> list[Product]:
    """Those that are dear and fit the units badly, and the same with sides that fit."""
    taken = _misfits(seen)
    dear = sorted((one for one in taken if taken[one] > DEAR * seen.step), key=lambda p: -taken[p])
    return [each for one in dear[:MOST] for each in (one, _fitting(one))]


def _misfits(seen: Seen) -> dict[Product, float]:
    """Seconds of a step that products take, which have a side that does not fit."""
    found: dict[Product, float] = {}
    for one in seen.operators:
        sides = [shape for shape in one.shapes if len(shape) == 2][-2:]
        if one.name in PRODUCTS and len(sides) == 2:
            (rows, inner), (_, columns) = sides
            product = (rows, columns, inner, one.dtype)
            if product != _fitting(product, TILE) and min(rows, columns, inner) >= TILE:
                found[product] = found.get(product, 0.0) + one.seconds
    return found


def _fitting(product: Product, to: int = ROUND) -> Product:
    rows, columns, inner = (-(-side // to) * to for side in product[:3])
    return rows, columns, inner, product[3]


def _sides(case: Case) -> Iterator[Finding]:
    slow = {
        one: (seconds, case.products[one], case.products[_fitting(one)])
        for one, seconds in _misfits(case.seen).items()
        if one in case.products
    }
    faster = {one: times for one, times in slow.items() if times[2] < times[1]}
    if not faster:
        return
    lost = sum(seconds * (1 - fits / now) for seconds, now, fits in faster.values())
    dearest = max(faster, key=lambda one: faster[one][0])
    odd = sorted({side for one in faster for side in one[:3] if side % TILE})
    yield found(
        case, lost, from_operators=True,
        cause="units",
        title=f"sides of matrices do not fit the CPU's units: {', '.join(map(str, odd))}",
        evidence=(
            f"a product of {dearest[0]}x{dearest[2]} and {dearest[2]}x{dearest[1]} takes "
            f"{faster[dearest][1] * 1e3:.3g} ms, {faster[dearest][2] * 1e3:.3g} ms with sides that "
            f"are multiples of {ROUND}",
        ),
        remedy=", ".join(f"{-(-side // ROUND) * ROUND} instead of {side}" for side in odd)
        + ": what they add is not used",
        exact=False,
        changes="layers have other sizes",
        sure=Sure.MEASURED,
    )  # fmt: skip


def _bits(case: Case) -> Iterator[Finding]:
    seen, roof = case.seen, case.roof
    full = roof.flops("float32", seen.threads)
    times = roof.flops("bfloat16", seen.threads) / full
    heavy = [
        one for one in seen.operators
        if one.flops and one.seconds and one.dtype == one.computes == "float32"
    ]  # fmt: skip
    if times < WORTH or not heavy:
        return
    # of each, only what is bound by computing is faster, and its tensors become others before
    lost = sum(
        one.seconds * min(1.0, one.flops / one.seconds / full) * (1 - 1 / times) for one in heavy
    ) - CASTING * sum(one.bytes for one in heavy) / roof.streaming(seen.threads)
    seconds, flops = sum(one.seconds for one in heavy), sum(one.flops for one in heavy)
    yield found(
        case, lost, from_operators=True,
        cause="units",
        title=f"bfloat16 is {times:.1f} times as fast on this CPU, and not used",
        evidence=(
            f"products and convolutions in float32 take {part_of(seconds, seen.whole)} of a step",
            f"they reach {of_roof(flops / seconds, full, 'FLOP/s')}",
            f"in bfloat16 there are {rate(full * times, 'FLOP/s')}",
        ),
        remedy="cputrain launch --precision bf16 (fewer bits: compare the losses)",
        settings={"precision": "bf16"},
        exact=False,
        changes="fewer bits",
        sure=Sure.CALCULATED,
    )  # fmt: skip


def _order(case: Case) -> Iterator[Finding]:
    seen = case.seen
    turned = [
        one for one in seen.operators
        if one.name in CONVOLUTIONS and not one.channels_last and one.shapes
        and len(one.shapes[0]) == 4 and one.shapes[0][1] > 1
    ]  # fmt: skip
    if not turned:
        return
    # each is put in another order before, and its result back
    moved = sum(2 * one.bytes for one in turned)
    lost = min(moved / case.roof.streaming(seen.threads), sum(one.seconds for one in turned))
    yield found(
        case, lost, from_operators=True,
        cause="units",
        title="images have their channels first, and are turned for each convolution",
        evidence=(
            f"{sum(one.calls for one in turned):.0f} convolutions of a step take images with their "
            f"channels first: {moved / 2**20:.0f} MiB are moved to turn them",
        ),
        remedy="cputrain launch --channels-last on, or model.to(memory_format=torch.channels_last)",
        settings={"channels_last": "on"},
        sure=Sure.CALCULATED,
    )  # fmt: skip
