"""Split: a module in place of a model, which shards its batches over replicas and devices."""

from __future__ import annotations

import sys

import torch
from torch import nn

from cputrain.errors import ArgumentTypeError, UsageError
from cputrain.runtime.state import NOW
from cputrain.split.balance.auto_replicas import AutoReplicas, FixedShards, ReproducibleShards
from cputrain.split.balance.concurrency import Concurrency
from cputrain.split.balance.load_balancer import LoadBalancer, described
from cputrain.split.dispatcher import Dispatcher
from cputrain.split.execution.placement import (
    num_cores,
    places,
    places_on_any_core,
    seats_among,
)
from cputrain.split.execution.replica import home_of
from cputrain.split.proof.search import FEWEST
from cputrain.split.proof.watch import ChecksByCalls, CheckSchedule
from cputrain.split.validation import check_reproducible, count_of, devices_of, shares_of
from cputrain.user_warnings import warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, Self

    from cputrain.split.balance.auto_replicas import Choice, Measured
    from cputrain.split.balance.load_balancer import Fit
    from cputrain.split.proof.verify import Verification

SPLIT_ATTRIBUTES = frozenset(
    {
        "_split_model",
        "_split_options",
        "_split_dispatcher",
        "chosen",
        "chosen_shares",
        "_compiled_call_impl",
    }
)
"""Attributes of Split itself, besides its hooks; all others are the model's."""


class Split(nn.Module):
    """A module in place of a model, with the model's parameters, buffers, modules and state_dict.

    A forward shards the batch over replicas, which share the parameters' memory, and concatenates
    their outputs; a backward adds up their gradients. The loss and the optimizer need no change.
    The result is that of the model on the whole batch, but for the order of floating-point
    additions: batch norm uses the statistics of the whole batch, and random numbers are those of
    the whole batch. A model whose result would differ is called unsharded, with a warning that says
    why.

    Args:
        model: The model.
        devices: Devices such as ("cuda", "cpu") that compute side by side. The model stays on its
            device; the others have copies of its parameters, updated in each call. Shard sizes are
            balanced in the first steps and reported on standard error; one device gets the whole
            batch where that is faster.
        replicas: Number of replicas on the CPU, or "auto": the fastest of the first steps, or 1 if
            more are not faster.
        shares: Relative shard sizes, such as (3, 1); even by default.
        reproducible: Number of shards that one thread computes each, on whatever cores there are,
            so that outputs and gradients have the same bits on any number of cores; in place of
            `devices`, `replicas` and `shares`. What the script computes outside of the model is
            rounded the same if torch has one thread there: torch.set_num_threads(1).

    Examples:
        >>> import torch
        >>> from cputrain import Split
        >>> model = torch.nn.Linear(4, 2)
        >>> split = Split(model, replicas=2)
        >>> split(torch.ones(6, 4)).sum().backward()
        >>> model.weight.grad[0]
        tensor([6., 6., 6., 6.])
        >>> split.calls_divided
        1
    """

    def __init__(
        self,
        model: nn.Module,
        devices: str | Sequence[str] = "auto",
        replicas: int | str = "auto",
        shares: str | Sequence[float] = "auto",
        reproducible: int | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentTypeError(
                "model", "must be a torch.nn.Module", found=type(model).__name__,
                do="Split(nn.Linear(2, 3)), for example.",
            )  # fmt: skip
        if reproducible is not None:
            check_reproducible(reproducible, devices, replicas, shares)
        num_shards = reproducible or NOW.values.get("reproducible")
        count = count_of(num_shards or replicas)
        checked_devices = devices_of(devices)
        checked_shares = shares_of(shares, count, checked_devices)
        super().__init__()
        del self.training
        for table in ("_parameters", "_buffers", "_modules"):
            object.__setattr__(self, table, model.__dict__[table])
        self._split_model = model
        self._split_options = (devices, replicas, shares, reproducible)
        self.chosen: tuple[int, float] | None = None
        self.chosen_shares: dict[str, int] | None = None
        if checked_devices:
            self._split_dispatcher = among(
                model,
                checked_devices,
                count,
                shares=checked_shares,
                fit=self._record_fit,
                tell=_warn,
                say=_log,
            )
        else:
            self._split_dispatcher = splitter_of(
                model,
                count,
                shares=checked_shares,
                is_reproducible=num_shards is not None,
                chose=self._record_choice,
                tell=_warn,
            )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward, sharded."""
        if torch.compiler.is_compiling():  # a compiler traces the whole model
            return self._split_model(*args, **kwargs)
        return self._split_dispatcher(type(self._split_model).__call__, args, kwargs)

    def _record_choice(self, count: int, gain: float) -> None:
        object.__setattr__(self, "chosen", (count, gain))

    def _record_fit(self, fit: Fit, names: Sequence[str]) -> None:
        if not fit.is_promise:
            object.__setattr__(self, "chosen_shares", dict(zip(names, fit.sizes, strict=True)))
        _log(described(fit, names))

    @property
    def calls_divided(self) -> int:
        """Number of calls that were sharded."""
        return self._split_dispatcher.divided

    @property
    def why_not(self) -> str:
        """Why the batch is not sharded; empty if it is, or if no call was tried yet."""
        return self._split_dispatcher.refusal

    @staticmethod
    def verify(model: nn.Module, *args: Any, replicas: int = 2, **kwargs: Any) -> Verification:
        """Compare a call and its backward, sharded and whole, in float64 and float32.

        All outputs, buffers and gradients are compared. The model is left unchanged.
        """
        from cputrain.split.proof.verify import verify

        count = count_of(replicas)
        if count is None or count < 2:
            raise UsageError(
                "replicas",
                "must be 2 or more to be verified",
                found=repr(replicas),
                do="Try 2.",
            )
        unsplit_model = model._split_model if isinstance(model, Split) else model
        return verify(unsplit_model, args, kwargs, replicas=count)

    # -- everything else is delegated to the model

    def __getattr__(self, name: str) -> Any:
        if name in SPLIT_ATTRIBUTES or "_split_model" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return getattr(self._split_model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SPLIT_ATTRIBUTES:
            object.__setattr__(self, name, value)
        elif "_split_model" in self.__dict__:
            setattr(self._split_model, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if "_split_model" in self.__dict__:
            delattr(self._split_model, name)
        else:
            super().__delattr__(name)

    def train(self, mode: bool = True) -> Self:
        self._split_model.train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._split_model.state_dict(*args, **kwargs)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        return self._split_model.load_state_dict(state_dict, strict=strict, assign=assign)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        apply: Any = self._split_model._apply
        apply(fn, recurse)
        return self

    def __getitem__(self, index: Any) -> Any:
        return self._split_model[index]  # type: ignore[index]

    def __len__(self) -> int:
        return len(self._split_model)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._split_model)  # type: ignore[call-overload, no-any-return]

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self._split_model, *self._split_options)

    def __repr__(self) -> str:
        return f"Split({self._split_model!r})"


def _restored(split_class: type[Split], model: nn.Module, devices: Any, *options: Any) -> Split:
    """Restore a pickled Split; on the CPU alone if its devices are not available here."""
    try:
        devices_of(devices)
    except UsageError as error:
        warn(f"cputrain.Split: it is divided on the CPU alone: {error}")
        return split_class(model)
    return split_class(model, devices, *options)


def splitter_of(
    model: nn.Module,
    count: int | None,
    *,
    shares: Sequence[float] | None = None,
    is_reproducible: bool = False,
    chose: Callable[[int, float], None],
    tell: Callable[[str], None],
    falls_back: bool = False,
) -> Dispatcher:
    """Return a dispatcher for this model, with `count` replicas; None for the fastest number.

    Args:
        model: The model to shard.
        count: Number of replicas; None to measure the fastest number in the script's own steps.
        shares: Relative shard sizes; even by default.
        is_reproducible: Whether the bits are to depend on `count` alone: each replica has one
            thread, which may run on any core.
        chose: Called with the number of replicas and their speed-up over one replica.
        tell: Called with the reason for which a batch is not sharded.
        falls_back: Run the whole batch where a shard's forward fails.
    """
    replica_cores = places_on_any_core(count) if is_reproducible and count else places(count)

    def on_measured(measured: Measured) -> None:
        dispatcher.use_only(measured.count)
        chose(measured.count, measured.gain)

    choice: Choice
    if count is None:
        choice = AutoReplicas(list(replica_cores), on_measured)
    elif is_reproducible:
        choice = ReproducibleShards(count, FEWEST)
    else:
        choice = FixedShards(shares or [1.0] * count)
    dispatcher = Dispatcher(
        model,
        replica_cores,
        choice,
        on_refused=tell,
        falls_back=falls_back,
        checks=ChecksByCalls() if is_reproducible else CheckSchedule(),
        concurrency=Concurrency(min(num_cores(), count)) if is_reproducible and count else None,
    )
    return dispatcher


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
    """Return a dispatcher that shards among devices, with `count` replicas on the CPU.

    Args:
        model: The model to shard.
        devices: Devices that compute shards.
        count: Number of replicas on the CPU; None for one.
        shares: Relative shard size of each device; None to balance by measured costs.
        fit: Called with fitted shard sizes and the devices' names.
        tell: Called with the reason for which a batch is not sharded.
        say: Called with messages about devices whose limit was reduced.
    """
    replicas_per_device, replica_cores = seats_among(devices, count)
    replica_devices = [
        device
        for device, num_replicas in zip(devices, replicas_per_device, strict=True)
        for _ in range(num_replicas)
    ]

    def home_index() -> int | None:
        home = home_of(model)
        return devices.index(home) if home in devices else None

    choice: Choice
    if shares is not None or len(devices) == 1:
        relative_shares = shares or [1.0]
        choice = FixedShards(
            [
                share / num_replicas
                for share, num_replicas in zip(relative_shares, replicas_per_device, strict=True)
                for _ in range(num_replicas)
            ]
        )
    else:
        names = [str(device) for device in devices]
        choice = LoadBalancer(replicas_per_device, home_index, lambda result: fit(result, names))
    return Dispatcher(
        model,
        {len(replica_cores): replica_cores},
        choice,
        devices=replica_devices,
        on_refused=tell,
        log=say,
    )


def _warn(reason: str) -> None:
    warn(f"cputrain.Split: the model is left as it is: {reason}")


def _log(text: str) -> None:
    print(f"cputrain.Split: {text}", file=sys.stderr, flush=True)
