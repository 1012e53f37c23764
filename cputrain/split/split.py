"""A module that stands for a model, and divides its batches."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from cputrain.errors import UsageError
from cputrain.plan.teams import counts, ordered, parts
from cputrain.split.choose import Asked, Fastest
from cputrain.split.splitter import Splitter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, Self

    from cputrain.machine import Cpus
    from cputrain.plan import Request
    from cputrain.split.choose import Choice, Measured
    from cputrain.split.splitter import Places
    from cputrain.split.verify import Verification

OWN = frozenset({"_stands_for", "_asked", "_splitter", "chosen", "_compiled_call_impl"})
"""Attributes of the module itself, beside its hooks; all others are the model's."""


class Split(nn.Module):
    """Stands for the model: its parameters, buffers and modules, its names in a state_dict.

    A forward divides the batch among replicas, which share the memory of the parameters, and puts
    their outputs together; a backward adds up their gradients. Loss and optimizer see nothing of
    it. What comes out is what the model gives for the whole batch, but for the order of additions:
    batch norm is over the whole batch, random numbers are those of the whole batch. A model that
    gives something else when its batch is divided is left as it is, with a warning that says why.

    `replicas` is their number, or "auto": the fastest of the first few steps, with one of them if
    more are not faster. `shares` are the parts of the batch, (3, 1) say: even by default.
    """

    def __init__(
        self,
        model: nn.Module,
        devices: str | Sequence[str] = "auto",
        replicas: int | str = "auto",
        shares: str | Sequence[float] = "auto",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(
                "model", "must be a torch.nn.Module", found=type(model).__name__,
                do="Split(nn.Linear(2, 3)), for example.",
            )  # fmt: skip
        _check_devices(devices)
        count = _count(replicas)
        given = _shares(shares, count)
        super().__init__()
        del self.training
        for table in ("_parameters", "_buffers", "_modules"):
            object.__setattr__(self, table, model.__dict__[table])
        self._stands_for = model
        self._asked = (devices, replicas, shares)
        self.chosen: tuple[int, float] | None = None
        self._splitter = splitter_of(model, count, shares=given, chose=self._chose, tell=_warn)

    def forward(self, *args: Any, **options: Any) -> Any:
        """The model's, divided."""
        if torch.compiler.is_compiling():  # a compiler is given the whole model
            return self._stands_for(*args, **options)
        return self._splitter(type(self._stands_for).__call__, args, options)

    def _chose(self, count: int, gain: float) -> None:
        object.__setattr__(self, "chosen", (count, gain))

    @property
    def calls_divided(self) -> int:
        """How many calls were."""
        return self._splitter.divided

    @property
    def why_not(self) -> str:
        """Why the batch is not divided; empty where it is, or where nothing was tried yet."""
        return self._splitter.refused

    @staticmethod
    def verify(model: nn.Module, *args: Any, replicas: int = 2, **options: Any) -> Verification:
        """How far the batch in so many parts is from the whole: a call, and its backward.

        Tensor by tensor, in float64 and in float32. Nothing of it stays in the model.
        """
        from cputrain.split.verify import verify

        count = _count(replicas)
        if count is None or count < 2:
            raise UsageError(
                "replicas", "must be 2 or more to be verified", found=repr(replicas), do="Try 2."
            )
        whole = model._stands_for if isinstance(model, Split) else model
        return verify(whole, args, options, replicas=count)

    # -- all else is the model's

    def __getattr__(self, name: str) -> Any:
        if name in OWN or "_stands_for" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return getattr(self._stands_for, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OWN:
            object.__setattr__(self, name, value)
        elif "_stands_for" in self.__dict__:
            setattr(self._stands_for, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if "_stands_for" in self.__dict__:
            delattr(self._stands_for, name)
        else:
            super().__delattr__(name)

    def train(self, mode: bool = True) -> Self:
        self._stands_for.train(mode)
        return self

    def state_dict(self, *args: Any, **options: Any) -> Any:
        return self._stands_for.state_dict(*args, **options)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        return self._stands_for.load_state_dict(state_dict, strict=strict, assign=assign)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        apply: Any = self._stands_for._apply
        apply(fn, recurse)
        return self

    def __getitem__(self, index: Any) -> Any:
        return self._stands_for[index]  # type: ignore[index]

    def __len__(self) -> int:
        return len(self._stands_for)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._stands_for)  # type: ignore[call-overload, no-any-return]

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._stands_for, *self._asked)

    def __repr__(self) -> str:
        return f"Split({self._stands_for!r})"


def splitter_of(
    model: nn.Module,
    count: int | None,
    *,
    shares: Sequence[float] | None = None,
    chose: Callable[[int, float], None],
    tell: Callable[[str], None],
    falls_back: bool = False,
) -> Splitter:
    """One for this model: with so many replicas, or with None as many as are fastest.

    `chose` hears of the number, and of how many times as fast as one that was; `tell` why a batch
    is not divided. One that `falls_back` runs the whole batch where a part fails.
    """
    found = places(count)

    def told(measured: Measured) -> None:
        splitter.use_only(measured.count)
        chose(measured.count, measured.gain)

    choice: Choice = Fastest(list(found), told) if count is None else Asked(count)
    splitter = Splitter(model, found, choice, shares=shares, tell=tell, falls_back=falls_back)
    return splitter


def _warn(reason: str) -> None:
    warnings.warn(f"cputrain.Split: the model is left as it is: {reason}", stacklevel=2)


def places(count: int | None) -> dict[int, Places]:
    """The cores of each replica, for each number of replicas: that one, or those worth trying."""
    from cputrain.machine import read_machine
    from cputrain.plan.cores import share_of

    machine = read_machine()
    cores = ordered(machine, share_of(machine, _request()).fast)[: torch.get_num_threads()]
    if count is None:
        return {one: parts(cores, one) for one in counts(machine, cores)}
    if count == 1:
        return {}
    return {count: _parts(cores, count)}


def _request() -> Request:
    import os

    from cputrain.machine import read_rank
    from cputrain.plan import Request

    return Request(environment=dict(os.environ), rank=read_rank(os.environ))


def _parts(cores: list[Cpus], count: int) -> Places:
    if count <= len(cores):
        return parts(cores, count)
    # more replicas than cores: several on one
    return [(cores[number % len(cores)],) for number in range(count)]


def _count(replicas: int | str) -> int | None:
    if replicas == "auto":
        return None
    if isinstance(replicas, bool) or not isinstance(replicas, int) or not 1 <= replicas <= 1024:
        raise UsageError(
            "replicas", 'must be "auto" or a whole number from 1 to 1024', found=repr(replicas),
            do='Leave it out for "auto".',
        )  # fmt: skip
    return replicas


def _check_devices(devices: str | Sequence[str]) -> None:
    given = (devices,) if isinstance(devices, str) else tuple(devices)
    if given not in (("auto",), ("cpu",)):
        raise UsageError(
            "devices", 'must be "auto" or "cpu"', found=repr(devices),
            do="A batch is divided among replicas on the CPU; leave devices out.",
        )  # fmt: skip


def _shares(shares: str | Sequence[float], count: int | None) -> list[float] | None:
    if shares == "auto":
        return None
    good = not isinstance(shares, str) and all(
        isinstance(one, int | float) and 0 < one < float("inf") for one in shares
    )
    if not good or len(shares) != count:
        raise UsageError(
            "shares", 'must be "auto" or a positive number for each replica',
            found=f"{shares!r} for {'auto' if count is None else count} replicas",
            do="Split(model, replicas=2, shares=(3, 1)), for example.",
        )  # fmt: skip
    return [float(one) for one in shares]
