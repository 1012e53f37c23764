"""What a convolution, or a pool, does with an image: sizes, steps, edges and gaps."""

from __future__ import annotations

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.opencl.tensor import OclTensor


class Window(Record):
    """Of n images with c channels of h x w, k channels of p x q are made by windows of r x s."""

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

    @staticmethod
    def of_input(
        one: OclTensor, weight: OclTensor, step: Sequence[int], pad: Sequence[int],
        gap: Sequence[int], groups: int,
    ) -> Window | None:  # fmt: skip
        """Of a convolution of these; None where they do not go together."""
        if weight.dim() != 4 or one.dim() != 4:
            return None
        (n, c, h, w), (k, each, r, s) = one.size(), weight.size()
        steps, pads, gaps = (_both(value) for value in (step, pad, gap))
        p, q = (
            (size + 2 * edge - apart * (reach - 1) - 1) // by + 1
            for size, edge, apart, reach, by in zip((h, w), pads, gaps, (r, s), steps, strict=True)
        )
        if each * groups != c or k % groups or p < 1 or q < 1 or min(pads) < 0:
            return None
        return _made(n, c, h, w, k, p, q, r, s, steps, pads, gaps, groups)

    @staticmethod
    def of_output(
        one: OclTensor, weight: OclTensor, step: Sequence[int], pad: Sequence[int],
        gap: Sequence[int], groups: int, more: Sequence[int],
    ) -> Window | None:  # fmt: skip
        """The one whose gradient a transposed convolution of these is."""
        if weight.dim() != 4 or one.dim() != 4:
            return None
        (n, k, p, q), (every, each, r, s) = one.size(), weight.size()
        steps, pads, gaps, adds = (_both(value) for value in (step, pad, gap, more))
        h, w = (
            (size - 1) * by - 2 * edge + apart * (reach - 1) + add + 1
            for size, by, edge, apart, reach, add in zip(
                (p, q), steps, pads, gaps, (r, s), adds, strict=True
            )
        )
        if every != k or k % groups or h < 1 or w < 1 or min(pads) < 0:
            return None
        return _made(n, each * groups, h, w, k, p, q, r, s, steps, pads, gaps, groups)

    @property
    def input_size(self) -> tuple[int, ...]:
        """Of what is read."""
        return self.n, self.c, self.h, self.w

    @property
    def output_size(self) -> tuple[int, ...]:
        """Of what is written."""
        return self.n, self.k, self.p, self.q

    @property
    def each_in(self) -> int:
        """Channels that a group reads."""
        return self.c // self.groups

    @property
    def each_out(self) -> int:
        """Channels that a group writes."""
        return self.k // self.groups

    @property
    def reach(self) -> int:
        """What is added up for an element that is written."""
        return self.each_in * self.r * self.s

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is on its own."""
        return self.groups == self.c and self.groups > 1

    @property
    def is_padded(self) -> bool:
        """Whether a window reaches beyond the image."""
        ends = (
            (self.p - 1) * self.step_h - self.pad_h + (self.r - 1) * self.gap_h >= self.h,
            (self.q - 1) * self.step_w - self.pad_w + (self.s - 1) * self.gap_w >= self.w,
        )
        return self.pad_h > 0 or self.pad_w > 0 or any(ends)


def _both(value: Sequence[int]) -> tuple[int, int]:
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])


def _made(
    n: int, c: int, h: int, w: int, k: int, p: int, q: int, r: int, s: int,
    steps: tuple[int, int], pads: tuple[int, int], gaps: tuple[int, int], groups: int,
) -> Window:  # fmt: skip
    return Window(
        n=n, c=c, h=h, w=w, k=k, p=p, q=q, r=r, s=s, step_h=steps[0], step_w=steps[1],
        pad_h=pads[0], pad_w=pads[1], gap_h=gaps[0], gap_w=gaps[1], groups=groups,
    )  # fmt: skip
