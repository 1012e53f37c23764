"""How far a divided batch is from the whole one, tensor by tensor, in float64 and float32."""

from __future__ import annotations

from cputrain.record import Record
from cputrain.split.batch import DIMS, Arguments, divided
from cputrain.split.dispatcher import exchange
from cputrain.split.execution.executor import executor_on
from cputrain.split.proof.compare import Compared, ShardingSpec
from cputrain.split.proof.refusal import CannotSplitError
from cputrain.split.proof.search import FEWEST, Numbers, find_sharding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torch import nn

    from cputrain.split.execution.autograd import Calls
    from cputrain.split.execution.executor import Executor

LIMIT = 1e-8
"""In float64, what is farther apart is something else."""


class Difference(Record):
    """One tensor."""

    what: str
    """ "output", "buffer" or "gradient"."""

    name: str
    """Of the parameter or buffer; of an output, its number."""

    float64: float | None
    """How far apart, relative to the norm; None where the model does not compute in float64."""

    float32: float
    """The same in the model's own types."""


class Verification(Record):
    """What came of it."""

    model: str
    """Its class."""

    replicas: int
    """Among which the batch was divided."""

    calls: int = 1
    """That were compared."""

    differences: tuple[Difference, ...] = ()
    """Of every tensor, in the order of the model; the largest of all calls."""

    refused: str = ""
    """Why the batch cannot be divided; empty where it can."""

    @property
    def good(self) -> bool:
        """Whether it is the same but for rounding."""
        return not self.refused and all(
            one.float64 is None or one.float64 <= LIMIT for one in self.differences
        )

    def worst(self, what: str) -> tuple[float | None, float]:
        """The largest differences of outputs, buffers or gradients."""
        mine = [one for one in self.differences if one.what == what]
        exact = [one.float64 for one in mine if one.float64 is not None]
        return max(exact) if exact else None, max((one.float32 for one in mine), default=0.0)

    def and_also(self, other: Verification) -> Verification:
        """This and another call of the same model."""
        if self.refused or other.refused:
            return self if self.refused else other
        known = {(one.what, one.name): one for one in self.differences}
        for one in other.differences:
            before = known.get((one.what, one.name), one)
            exact = [far for far in (before.float64, one.float64) if far is not None]
            known[one.what, one.name] = one.replace(
                float64=max(exact) if exact else None, float32=max(before.float32, one.float32)
            )
        return self.replace(calls=self.calls + other.calls, differences=tuple(known.values()))


def verify(
    model: nn.Module,
    args: tuple[Any, ...],
    options: dict[str, Any],
    *,
    replicas: int,
    call: Calls | None = None,
) -> Verification:
    """One call and its backward, whole and divided. Nothing of it stays."""
    from cputrain.split.execution.placement import places

    exchange()
    found = Verification(model=type(model).__name__, replicas=replicas)
    crew = executor_on(places(replicas)[replicas])
    numbers = Numbers()
    call = call or type(model).__call__
    reason = ""
    try:
        for dim in DIMS:
            arguments = Arguments(args, options, dim)
            if arguments.size < FEWEST:
                continue
            try:
                _, way = find_sharding(model, call, arguments, crew)
                differences = _differences(model, call, arguments, crew, numbers, replicas, way)
                return found.replace(differences=differences)
            except CannotSplitError as refusal:
                reason = reason or str(refusal)
            except RuntimeError as error:  # a part alone does not fit it
                reason = reason or f"{type(error).__name__}: {error}"
    finally:
        numbers.put_back()
    return found.replace(refused=reason or f"fewer than {FEWEST} samples cannot be told apart")


def _differences(
    model: nn.Module,
    call: Calls,
    arguments: Arguments,
    crew: Executor,
    numbers: Numbers,
    replicas: int,
    way: ShardingSpec,
) -> tuple[Difference, ...]:
    found: dict[tuple[str, str], Difference] = {}
    for exactly in (False, True):
        numbers.put_back()
        same = arguments.first(arguments.size, exactly=exactly)
        parts = divided(arguments.size, [1.0] * replicas)
        try:
            compared = Compared(model, call, same, crew, parts, exactly=exactly, way=way)
            pairs = list(compared.pairs())
        except RuntimeError:
            if not exactly:
                raise
            break  # float64 is not what it takes
        for pair in pairs:
            key = (pair.what, pair.name)
            far = pair.difference
            if exactly:
                found[key] = found[key].replace(float64=far)
            else:
                found[key] = Difference(what=pair.what, name=pair.name, float64=None, float32=far)
    return tuple(found.values())
