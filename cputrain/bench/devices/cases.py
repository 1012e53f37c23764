"""Models of the device benchmark: several widths, as a second device pays off above some width."""

from __future__ import annotations

from cputrain.errors import NotFound
from cputrain.record import Record

CASES = {
    "mlp": "a perceptron of four layers: few operators, bound by the parameters",
    "conv": "convolutions with batch norm: the devices meet in every layer",
    "transformer": "attention and layer norm: many operators",
    "spectral": "logarithms of covariances: eigenvalues of a small matrix for each sample",
}
"""Description of each kind of model."""

WIDTHS = {
    "mlp": (64, 256, 1024, 2048),
    "conv": (8, 16, 32, 64),
    "transformer": (64, 128, 256, 512),
    "spectral": (8, 16, 32, 64),
}

BATCH = {"mlp": 1024, "conv": 128, "transformer": 64, "spectral": 256}


class Case(Record):
    """Model of one kind and width, with its batch size."""

    name: str
    """Kind and width: "mlp-64"."""

    title: str
    """Description shown in the table's heading."""

    kind: str
    """Key of `CASES`."""

    width: int
    """Features or channels of the layers."""

    batch: int
    """Batch size in samples."""


def cases(kind: str, *, quick: bool = False) -> list[Case]:
    """Return the cases of a kind; with `quick`, one small case."""
    return [
        Case(
            name=f"{kind}-{width}",
            title=f"{kind}, {width} wide",
            kind=kind,
            width=width,
            batch=16 if quick else BATCH[kind],
        )
        for width in ((8,) if quick else WIDTHS[kind])
    ]


def named(name: str, *, quick: bool = False) -> list[Case]:
    """Return the cases of the given kind, or the case of the given name.

    Raises:
        NotFound: There is no such kind or case.
    """
    if name in CASES:
        return cases(name, quick=quick)
    found = [case for kind in CASES for case in cases(kind, quick=quick) if case.name == name]
    if not found:
        every = [case.name for kind in CASES for case in cases(kind, quick=quick)]
        raise NotFound(
            f"the case {name}",
            f"must be one of {', '.join((*CASES, *every))}",
            do="cputrain bench devices --help tells what they are.",
        )
    return found
