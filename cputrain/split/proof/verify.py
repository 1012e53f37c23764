"""Differences between a sharded and a whole batch for each tensor, in float64 and float32."""

from __future__ import annotations

from cputrain.record import Record
from cputrain.split.batch import DIMS, Arguments, divided
from cputrain.split.dispatcher import exchange
from cputrain.split.execution.executor import executor_on
from cputrain.split.proof.compare import ShardingComparison, ShardingSpec
from cputrain.split.proof.refusal import CannotSplitError
from cputrain.split.proof.search import FEWEST, RandomStates, find_sharding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torch import nn

    from cputrain.split.execution.autograd import Calls
    from cputrain.split.execution.executor import Executor

LIMIT = 1e-8
"""Largest relative difference in float64 that rounding errors explain."""


class Difference(Record):
    """Relative difference of one tensor."""

    what: str
    """ "output", "buffer" or "gradient"."""

    name: str
    """Name of the parameter or buffer; index of an output, empty if there is a single output."""

    float64: float | None
    """Relative difference in float64; None where the model does not compute in float64."""

    float32: float
    """Relative difference in the model's own dtypes."""


class Verification(Record):
    """Result of a verification: the differences of all tensors, or why there is none."""

    model: str
    """Name of the model's class."""

    replicas: int
    """Number of replicas that the batch was sharded over."""

    calls: int = 1
    """Number of calls that were compared."""

    differences: tuple[Difference, ...] = ()
    """Difference of each tensor, in the order of the model; the largest over all calls."""

    refused: str = ""
    """Why the batch cannot be sharded; empty where it can."""

    @property
    def good(self) -> bool:
        """Whether sharding changes nothing but rounding errors."""
        return not self.refused and all(
            difference.float64 is None or difference.float64 <= LIMIT
            for difference in self.differences
        )

    def worst(self, what: str) -> tuple[float | None, float]:
        """Return the largest float64 and float32 differences of outputs, buffers or gradients."""
        selected = [difference for difference in self.differences if difference.what == what]
        exact = [difference.float64 for difference in selected if difference.float64 is not None]
        return max(exact) if exact else None, max(
            (difference.float32 for difference in selected), default=0.0
        )

    def and_also(self, verification: Verification) -> Verification:
        """Merge with the verification of another call of the same model."""
        if self.refused or verification.refused:
            return self if self.refused else verification
        differences = {
            (difference.what, difference.name): difference for difference in self.differences
        }
        for difference in verification.differences:
            previous = differences.get((difference.what, difference.name), difference)
            exact = [error for error in (previous.float64, difference.float64) if error is not None]
            differences[difference.what, difference.name] = difference.replace(
                float64=max(exact) if exact else None,
                float32=max(previous.float32, difference.float32),
            )
        return self.replace(
            calls=self.calls + verification.calls, differences=tuple(differences.values())
        )


def verify(
    model: nn.Module,
    args: tuple[Any, ...],
    options: dict[str, Any],
    *,
    replicas: int,
    call: Calls | None = None,
) -> Verification:
    """Compare a call and its backward, whole and sharded; leave the model as it was."""
    from cputrain.split.execution.placement import places

    exchange()
    verification = Verification(model=type(model).__name__, replicas=replicas)
    executor = executor_on(places(replicas)[replicas])
    random_states = RandomStates()
    call = call or type(model).__call__
    reason = ""
    try:
        for dim in DIMS:
            arguments = Arguments(args, options, dim)
            if arguments.size < FEWEST:
                continue
            try:
                _, spec = find_sharding(model, call, arguments, executor)
                differences = _differences(
                    model, call, arguments, executor, random_states, replicas, spec
                )
                return verification.replace(differences=differences)
            except CannotSplitError as refusal:
                reason = reason or str(refusal)
            except RuntimeError as error:  # the model does not accept a single shard
                reason = reason or f"{type(error).__name__}: {error}"
    finally:
        random_states.restore()
    return verification.replace(
        refused=reason or f"fewer than {FEWEST} samples cannot be told apart"
    )


def _differences(
    model: nn.Module,
    call: Calls,
    arguments: Arguments,
    executor: Executor,
    random_states: RandomStates,
    replicas: int,
    spec: ShardingSpec,
) -> tuple[Difference, ...]:
    """Return the differences of one call, computed in the model's dtypes and in float64."""
    differences: dict[tuple[str, str], Difference] = {}
    for exactly in (False, True):
        random_states.restore()
        batch = arguments.first(arguments.size, exactly=exactly)
        sizes = divided(arguments.size, [1.0] * replicas)
        try:
            comparison = ShardingComparison(
                model, call, batch, executor, sizes, exactly=exactly, spec=spec
            )
            pairs = list(comparison.pairs())
        except RuntimeError:
            if not exactly:
                raise
            break  # the model does not accept float64
        for pair in pairs:
            key = (pair.what, pair.name)
            error = pair.difference
            if exactly:
                differences[key] = differences[key].replace(float64=error)
            else:
                differences[key] = Difference(
                    what=pair.what, name=pair.name, float64=None, float32=error
                )
    return tuple(differences.values())
