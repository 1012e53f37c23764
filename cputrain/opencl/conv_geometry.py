"""Geometry of a convolution or pooling: sizes, stride, padding and dilation."""

from __future__ import annotations

from functools import lru_cache

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class ConvGeometry(Record):
    """Sizes of a convolution: input (n, c, h, w), output (n, k, p, q), kernel size (r, s).

    `step_*` is the stride, `pad_*` the padding, `gap_*` the dilation. `conv_geometry_of` interns
    the objects, so that equality and hash can be those of the object, which is fast.
    """

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    n: int
    c: int
    h: int
    w: int
    k: int
    p: int
    q: int
    r: int
    s: int
    step_h: int
    step_w: int
    pad_h: int
    pad_w: int
    gap_h: int
    gap_w: int
    groups: int

    @property
    def input_size(self) -> tuple[int, ...]:
        """Shape of the input."""
        return self.n, self.c, self.h, self.w

    @property
    def output_size(self) -> tuple[int, ...]:
        """Shape of the output."""
        return self.n, self.k, self.p, self.q

    @property
    def each_in(self) -> int:
        """Input channels of a group."""
        return self.c // self.groups

    @property
    def each_out(self) -> int:
        """Output channels of a group."""
        return self.k // self.groups

    @property
    def reach(self) -> int:
        """Number of products that are summed for one output element."""
        return self.each_in * self.r * self.s

    @property
    def is_depthwise(self) -> bool:
        """Whether each input channel is a group of its own."""
        return self.groups == self.c and self.groups > 1

    @property
    def is_padded(self) -> bool:
        """Whether any position of the kernel reaches beyond the image."""
        ends = (
            (self.p - 1) * self.step_h - self.pad_h + (self.r - 1) * self.gap_h >= self.h,
            (self.q - 1) * self.step_w - self.pad_w + (self.s - 1) * self.gap_w >= self.w,
        )
        return self.pad_h > 0 or self.pad_w > 0 or any(ends)


@lru_cache(maxsize=1 << 12)
def conv_geometry_of(
    size: tuple[int, ...], weight: tuple[int, ...], step: tuple[int, ...], pad: tuple[int, ...],
    gap: tuple[int, ...], groups: int, more: tuple[int, ...] | None,
) -> ConvGeometry | None:  # fmt: skip
    """Return the geometry of a convolution, or None if the sizes do not match.

    Args:
        size: Shape of the input, 4-D.
        weight: Shape of the weight, 4-D.
        step: Stride; one value, or one for each spatial dimension, as for `pad` and `gap`.
        pad: Padding.
        gap: Dilation.
        groups: Number of groups.
        more: Output padding of a transposed convolution, whose geometry is that of the convolution
            whose input gradient it is; None for an ordinary convolution.
    """
    if len(weight) != 4 or len(size) != 4:
        return None
    steps, pads, gaps = (_both(value) for value in (step, pad, gap))
    if min(*steps, *gaps, groups) < 1:
        return None
    if more is None:
        (n, c, h, w), (k, each, r, s) = size, weight
        p, q = (
            (length + 2 * edge - apart * (reach - 1) - 1) // by + 1
            for length, edge, apart, reach, by in zip(
                (h, w), pads, gaps, (r, s), steps, strict=True
            )
        )
        fits = each * groups == c and p > 0 and q > 0
    else:
        (n, k, p, q), (every, each, r, s) = size, weight
        h, w = (
            (length - 1) * by - 2 * edge + apart * (reach - 1) + add + 1
            for length, by, edge, apart, reach, add in zip(
                (p, q), steps, pads, gaps, (r, s), _both(more), strict=True
            )
        )
        c = each * groups
        fits = (
            every == k
            and h > 0
            and w > 0
            and all(
                add < max(by, apart)
                for add, by, apart in zip(_both(more), steps, gaps, strict=True)
            )
        )
    if not fits or k % groups or min(pads) < 0:
        return None
    return ConvGeometry(
        n=n, c=c, h=h, w=w, k=k, p=p, q=q, r=r, s=s, step_h=steps[0], step_w=steps[1],
        pad_h=pads[0], pad_w=pads[1], gap_h=gaps[0], gap_w=gaps[1], groups=groups,
    )  # fmt: skip


def _both(value: Sequence[int]) -> tuple[int, int]:
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])
