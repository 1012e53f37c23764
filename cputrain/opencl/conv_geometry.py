"""Geometry of a convolution or pooling: sizes, stride, padding and dilation."""

from __future__ import annotations

from functools import lru_cache

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class ConvGeometry(Record):
    """Sizes of a convolution: input (n, c, h, w), output (n, k, p, q), kernel size (r, s).

    `conv_geometry_of` interns the objects, so equality and hash are those of the object, which is
    fast.
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
    stride_h: int
    stride_w: int
    pad_h: int
    pad_w: int
    dilation_h: int
    dilation_w: int
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
    def group_in_channels(self) -> int:
        """Number of input channels of a group."""
        return self.c // self.groups

    @property
    def group_out_channels(self) -> int:
        """Number of output channels of a group."""
        return self.k // self.groups

    @property
    def reduction_size(self) -> int:
        """Number of products that are summed for each output element."""
        return self.group_in_channels * self.r * self.s

    @property
    def is_depthwise(self) -> bool:
        """Whether each input channel is a group of its own."""
        return self.groups == self.c and self.groups > 1

    @property
    def is_padded(self) -> bool:
        """Whether any position of the kernel reaches beyond the image."""
        ends = (
            (self.p - 1) * self.stride_h - self.pad_h + (self.r - 1) * self.dilation_h >= self.h,
            (self.q - 1) * self.stride_w - self.pad_w + (self.s - 1) * self.dilation_w >= self.w,
        )
        return self.pad_h > 0 or self.pad_w > 0 or any(ends)


@lru_cache(maxsize=1 << 12)
def conv_geometry_of(
    size: tuple[int, ...], weight: tuple[int, ...], stride: tuple[int, ...],
    padding: tuple[int, ...], dilation: tuple[int, ...], groups: int,
    output_padding: tuple[int, ...] | None,
) -> ConvGeometry | None:  # fmt: skip
    """Return the geometry of a convolution, or None if the sizes do not match.

    Args:
        size: Shape of the input, 4-D.
        weight: Shape of the weight, 4-D.
        stride: Stride, either a single value or one for each spatial dimension.
        padding: Padding, as `stride`.
        dilation: Dilation, as `stride`.
        groups: Number of groups.
        output_padding: Output padding of a transposed convolution, which gets the geometry of the
            convolution whose input gradient it is; None for an ordinary convolution.
    """
    if len(weight) != 4 or len(size) != 4:
        return None
    strides, paddings, dilations = (_pair(value) for value in (stride, padding, dilation))
    if min(*strides, *dilations, groups) < 1:
        return None
    if output_padding is None:
        (n, c, h, w), (k, group_channels, r, s) = size, weight
        p, q = (
            (length + 2 * side_padding - side_dilation * (kernel_length - 1) - 1) // side_stride + 1
            for length, side_padding, side_dilation, kernel_length, side_stride in zip(
                (h, w), paddings, dilations, (r, s), strides, strict=True
            )
        )
        fits = group_channels * groups == c and p > 0 and q > 0
    else:
        (n, k, p, q), (weight_rows, group_channels, r, s) = size, weight
        h, w = (
            (length - 1) * side_stride
            - 2 * side_padding
            + side_dilation * (kernel_length - 1)
            + extra
            + 1
            for length, side_stride, side_padding, side_dilation, kernel_length, extra in zip(
                (p, q), strides, paddings, dilations, (r, s), _pair(output_padding), strict=True
            )
        )
        c = group_channels * groups
        fits = (
            weight_rows == k
            and h > 0
            and w > 0
            and all(
                extra < max(side_stride, side_dilation)
                for extra, side_stride, side_dilation in zip(
                    _pair(output_padding), strides, dilations, strict=True
                )
            )
        )
    if not fits or k % groups or min(paddings) < 0:
        return None
    return ConvGeometry(
        n=n, c=c, h=h, w=w, k=k, p=p, q=q, r=r, s=s, stride_h=strides[0], stride_w=strides[1],
        pad_h=paddings[0], pad_w=paddings[1], dilation_h=dilations[0], dilation_w=dilations[1],
        groups=groups,
    )  # fmt: skip


def _pair(value: Sequence[int]) -> tuple[int, int]:
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])
