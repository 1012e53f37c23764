"""Cases of the device benchmark: models of several kinds and widths; imports no torch.

Several widths, because sharding becomes faster than one device only from some width on.
"""

from __future__ import annotations

from cputrain.errors import NotFound
from cputrain.record import Record

CASES = {
    "mlp": "an MLP of four layers: few operators, time spent on the parameters",
    "conv": "convolutions with batch norm: the devices synchronize in every layer",
    "transformer": "attention and layer norm: many operators",
    "spectral": "matrix logarithms of covariances: eigenvalues of a small matrix per sample",
}
"""Description of each kind of model."""

WIDTHS = {
    "mlp": (64, 256, 1024, 2048),
    "conv": (8, 16, 32, 64),
    "transformer": (64, 128, 256, 512),
    "spectral": (8, 16, 32, 64),
}
"""Widths of each kind of model: features or channels."""

BATCH_SIZES = {"mlp": 1024, "conv": 128, "transformer": 64, "spectral": 256}
"""Batch size of each kind of model."""


class DeviceCase(Record):
    """Model of one kind and width, with its batch size."""

    name: str
    """Kind and width: "mlp-64"."""

    title: str
    """Heading of the case's table."""

    kind: str
    """Key of `CASES`."""

    width: int
    """Features or channels of the layers."""

    batch: int
    """Batch size in samples."""


def cases(kind: str, *, quick: bool = False) -> list[DeviceCase]:
    """Return the cases of a kind; with `quick`, one small case."""
    return [
        DeviceCase(
            name=f"{kind}-{width}",
            title=f"{kind}, {width} wide",
            kind=kind,
            width=width,
            batch=16 if quick else BATCH_SIZES[kind],
        )
        for width in ((8,) if quick else WIDTHS[kind])
    ]


def select_cases(name: str, *, quick: bool = False) -> list[DeviceCase]:
    """Return the cases of the given kind, or the case of the given name.

    Raises:
        NotFound: There is no such kind or case.
    """
    if name in CASES:
        return cases(name, quick=quick)
    matching = [case for kind in CASES for case in cases(kind, quick=quick) if case.name == name]
    if not matching:
        case_names = [case.name for kind in CASES for case in cases(kind, quick=quick)]
        raise NotFound(
            f"the case {name}",
            f"must be one of {', '.join((*CASES, *case_names))}",
            do="cputrain bench devices --help describes them.",
        )
    return matching
