"""Units: the CPU has some for matrices, or for fewer bits, that are not used."""

from __future__ import annotations

from cputrain.diagnose.finding import Sure, found

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import Case, Finding

WORTH = 1.3
"""How much faster bfloat16 must be on this CPU to be talked of."""

CONVOLUTIONS = frozenset({"convolution", "convolution_backward"})


def find(case: Case) -> Iterator[Finding]:
    """Fewer bits; and images in the order that units want."""
    yield from _bits(case)
    yield from _order(case)


def _bits(case: Case) -> Iterator[Finding]:
    seen, roof = case.seen, case.roof
    full = roof.flops("float32", seen.threads)
    times = roof.flops("bfloat16", seen.threads) / full
    heavy = [one for one in seen.operators if one.flops and one.dtype == "float32"]
    if times < WORTH or not heavy:
        return
    # of each, only what is bound by computing is faster
    lost = sum(
        one.seconds * min(1.0, one.flops / one.seconds / full) * (1 - 1 / times) for one in heavy
    )
    seconds, flops = sum(one.seconds for one in heavy), sum(one.flops for one in heavy)
    yield found(
        case, lost,
        cause="units",
        title=f"bfloat16 is {times:.1f} times as fast on this CPU, and not used",
        evidence=(
            f"products and convolutions in float32 take {seconds / seen.step:.0%} of a step",
            f"they reach {flops / seconds / 1e9:.3g} GFLOP/s of {full / 1e9:.3g}",
            f"in bfloat16 there are {full * times / 1e9:.3g}",
        ),
        remedy="cputrain launch --precision bf16 (fewer bits: compare the losses)",
        settings={"precision": "bf16"},
        exact=False,
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
    lost = moved / case.roof.bandwidth(seen.threads)
    yield found(
        case, lost,
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
