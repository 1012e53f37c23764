"""A module that stands for a model, and divides its batches."""

from __future__ import annotations

import sys
import warnings

import torch
from torch import nn

from cputrain.errors import UsageError
from cputrain.split.balance.auto_replicas import AutoReplicas, FixedShards
from cputrain.split.balance.load_balancer import LoadBalancer, described
from cputrain.split.dispatcher import Dispatcher
from cputrain.split.execution.placement import places, seats_among
from cputrain.split.execution.replica import home_of
from cputrain.split.validation import count_of, devices_of, shares_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, Self

    from cputrain.split.balance.auto_replicas import Choice, Measured
    from cputrain.split.balance.load_balancer import Fit
    from cputrain.split.proof.verify import Verification

OWN = frozenset(
    {"_stands_for", "_asked", "_splitter", "chosen", "chosen_shares", "_compiled_call_impl"}
)
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

    `devices` such as ("cuda", "cpu") compute side by side, wherever the model is: it stays there,
    and the others have copies of its parameters, made anew for each call. Their shares are fitted
    from the first steps, and told on standard error; one of them has all of the batch where that
    is faster. `replicas` are then those on the CPU.
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
        count = count_of(replicas)
        beside = devices_of(devices)
        given = shares_of(shares, count, beside)
        super().__init__()
        del self.training
        for table in ("_parameters", "_buffers", "_modules"):
            object.__setattr__(self, table, model.__dict__[table])
        self._stands_for = model
        self._asked = (devices, replicas, shares)
        self.chosen: tuple[int, float] | None = None
        self.chosen_shares: dict[str, int] | None = None
        if beside:
            self._splitter = among(
                model, beside, count, shares=given, fit=self._fits, tell=_warn, say=_say
            )
        else:
            self._splitter = splitter_of(model, count, shares=given, chose=self._chose, tell=_warn)

    def forward(self, *args: Any, **options: Any) -> Any:
        """The model's, divided."""
        if torch.compiler.is_compiling():  # a compiler is given the whole model
            return self._stands_for(*args, **options)
        return self._splitter(type(self._stands_for).__call__, args, options)

    def _chose(self, count: int, gain: float) -> None:
        object.__setattr__(self, "chosen", (count, gain))

    def _fits(self, fit: Fit, names: Sequence[str]) -> None:
        if not fit.is_promise:
            object.__setattr__(self, "chosen_shares", dict(zip(names, fit.sizes, strict=True)))
        _say(described(fit, names))

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
        from cputrain.split.proof.verify import verify

        count = count_of(replicas)
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
        return _restored, (type(self), self._stands_for, *self._asked)

    def __repr__(self) -> str:
        return f"Split({self._stands_for!r})"


def _restored(kind: type[Split], model: nn.Module, devices: Any, *others: Any) -> Split:
    """One that was kept; of devices that are not here, nothing is left."""
    try:
        devices_of(devices)
    except UsageError as error:
        warnings.warn(f"cputrain.Split: it is divided on the CPU alone: {error}", stacklevel=2)
        return kind(model)
    return kind(model, devices, *others)


def splitter_of(
    model: nn.Module,
    count: int | None,
    *,
    shares: Sequence[float] | None = None,
    chose: Callable[[int, float], None],
    tell: Callable[[str], None],
    falls_back: bool = False,
) -> Dispatcher:
    """One for this model: with so many replicas, or with None as many as are fastest.

    `chose` hears of the number, and of how many times as fast as one that was; `tell` why a batch
    is not divided. One that `falls_back` runs the whole batch where a part fails.
    """
    found = places(count)

    def told(measured: Measured) -> None:
        splitter.use_only(measured.count)
        chose(measured.count, measured.gain)

    choice: Choice = (
        AutoReplicas(list(found), told) if count is None else FixedShards(shares or [1.0] * count)
    )
    splitter = Dispatcher(model, found, choice, tell=tell, falls_back=falls_back)
    return splitter


def among(
    model: nn.Module,
    devices: Sequence[torch.device],
    count: int | None,
    *,
    shares: Sequence[float] | None,
    fit: Callable[[Fit, Sequence[str]], None],
    tell: Callable[[str], None],
    say: Callable[[str], None],
) -> Dispatcher:
    """One that divides among devices, with so many replicas where that is the CPU.

    `fit` hears of fitted shares, and of the names of the devices that they are for; `tell` why a
    batch is not divided, `say` of a device that has less from now on.
    """
    members, seats = seats_among(devices, count)
    each = [device for device, many in zip(devices, members, strict=True) for _ in range(many)]

    def at_home() -> int | None:
        home = home_of(model)
        return devices.index(home) if home in devices else None

    choice: Choice
    if shares is not None or len(devices) == 1:
        given = shares or [1.0]
        choice = FixedShards(
            [share / many for share, many in zip(given, members, strict=True) for _ in range(many)]
        )
    else:
        names = [str(device) for device in devices]
        choice = LoadBalancer(members, at_home, lambda one: fit(one, names))
    return Dispatcher(model, {len(seats): seats}, choice, devices=each, tell=tell, say=say)


def _warn(reason: str) -> None:
    warnings.warn(f"cputrain.Split: the model is left as it is: {reason}", stacklevel=2)


def _say(text: str) -> None:
    print(f"cputrain.Split: {text}", file=sys.stderr, flush=True)
