"""Compare a training call of a model with that of a twin, to which a setting was applied.

Both calls, forward and backward, run on copies of the model and of its arguments, with the same
random numbers: the script's model, its random numbers and its globals stay as they are. Where the
results differ by more than usual, a second twin shows what rounding errors do to this model: its
parameters differ by about one unit in the last place.
"""

from __future__ import annotations

from statistics import median

import torch

from cputrain.runtime.effects import EffectError, without_effects
from cputrain.runtime.module_hooks import ModuleHooks
from cputrain.split.outputs import leaves_of
from cputrain.split.proof.compare import SMALL, Pair
from cputrain.split.proof.model_state import GlobalState, StateCopier, uncopied
from cputrain.split.proof.read_names import ReadNames
from cputrain.split.proof.refusal import CannotSplitError
from cputrain.split.proof.search import RandomStates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from torch import nn

    Results = dict[tuple[str, str], torch.Tensor]
    """Tensors by kind ("output", "gradient" or "buffer") and name."""

ROUNDING = 1e-5
"""Relative difference that is always allowed in float32."""

SPREAD = 10.0
"""Multiple of the difference of the disturbed twin that is allowed."""

ULP = 2.0**-23
"""Relative size of the disturbance."""

DTYPES = (torch.float32, torch.float64)
"""Dtypes of parameters of models that are compared: others round more."""


def difference_from_twin(
    model: nn.Module,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    prepare: Callable[[nn.Module], None],
) -> str:
    """Return how the results differ; "" if by no more than rounding errors explain.

    Args:
        model: The model, which is left as it is.
        call: Calls a model, without effects of other settings.
        args: Positional arguments of a call in training.
        kwargs: Keyword arguments.
        prepare: Applies the setting to a copy of the model.
    """
    try:
        return _difference(_TwinRuns(model, call, args, kwargs), prepare)
    except CannotSplitError as refusal:
        return str(refusal)
    except Exception as error:  # of the model, with the setting or as a copy
        return f"a copy of the model cannot be called: {type(error).__name__}: {error}"


class _TwinRuns:
    """Runs of one call on copies of a model; raises CannotSplitError if it cannot be copied."""

    def __init__(
        self,
        model: nn.Module,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        hooked = ModuleHooks(torch).find(model)
        if hooked:
            raise CannotSplitError(f"{hooked}, which would see the calls of a copy")
        if any(parameter.dtype not in DTYPES for parameter in model.parameters()):
            raise CannotSplitError("it has parameters of reduced precision")
        self._read = ReadNames(model)
        self._original = (model, args, kwargs)
        if name := uncopied(self._original, self._read):
            raise CannotSplitError(f"it holds {name}")
        self._call = call
        self._random_states, self._global_state = RandomStates(), GlobalState(model)

    def results(self, change: Callable[[nn.Module], None]) -> Results:
        """Return the results of a copy that was changed, with the random numbers of the others."""
        self._random_states.restore()
        try:
            model, args, kwargs = StateCopier(read=self._read).copy(self._original)
            change(model)
            with without_effects(is_output_only=True):
                return _results(model, self._call(model, *args, **kwargs))
        except EffectError as effect:
            raise CannotSplitError(str(effect)) from None
        finally:
            used = self._random_states.restore()
            written = self._global_state.restore()
            if written or used:
                raise CannotSplitError(
                    f"it writes to {written}"
                    if written
                    else "it draws random numbers from Python or NumPy as well"
                )


def _difference(runs: _TwinRuns, prepare: Callable[[nn.Module], None]) -> str:
    """Return how the results of a prepared copy differ from those of a plain one."""
    plain = runs.results(lambda _: None)
    differences = _differences(plain, runs.results(prepare))
    if all(difference <= ROUNDING for difference in differences.values()):
        return ""
    usual = _differences(plain, runs.results(_disturb))
    medians = {
        kind: median([usual[key] for key in usual if key[0] == kind]) for kind, _ in differences
    }
    for key, difference in differences.items():
        kind, name = key
        allowed = max(ROUNDING, SPREAD * usual[key], medians[kind])
        if not difference <= allowed:
            return (
                f"{kind} {name} differs by {difference:.1e}, more than by rounding ({allowed:.1e})"
            )
    return ""


def _results(model: nn.Module, output: Any) -> Results:
    """Return the outputs, gradients and buffers of a call of a copy, by name."""
    leaves, _ = leaves_of(output)
    outputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    results: Results = {
        ("output", str(index)): output.detach() for index, output in enumerate(outputs)
    }
    generator = torch.Generator().manual_seed(0)
    roots = [output for output in outputs if output.requires_grad]
    named = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    if roots and named:
        gradients = torch.autograd.grad(
            roots,
            list(named.values()),
            [torch.randn(root.shape, generator=generator).to(root) for root in roots],
            allow_unused=True,
        )
        results.update(
            (("gradient", name), gradient)
            for name, gradient in zip(named, gradients, strict=True)
            if gradient is not None
        )
    results.update((("buffer", name), buffer) for name, buffer in model.named_buffers())
    return results


def _disturb(model: nn.Module) -> None:
    """Change each parameter by about a unit in its last place."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            sign = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter)
            parameter.mul_(1 + ULP * (2 * sign - 1))


def _differences(plain: Results, changed: Results) -> dict[tuple[str, str], float]:
    """Return the relative difference of each tensor."""
    if plain.keys() != changed.keys():
        raise CannotSplitError("a copy has other results than its twin")
    largest: dict[str, float] = {}
    for (kind, _), tensor in plain.items():
        if tensor.is_floating_point():
            norm = float(tensor.detach().nan_to_num().norm())
            largest[kind] = max(largest.get(kind, 0.0), norm)
    return {
        key: _difference_of(key, tensor, changed[key], SMALL * largest.get(key[0], 0.0))
        for key, tensor in plain.items()
    }


def _difference_of(
    key: tuple[str, str], plain: torch.Tensor, changed: torch.Tensor, least: float
) -> float:
    """Return a relative difference; infinite where one tensor is NaN and the other is not."""
    if plain.shape == changed.shape and not torch.equal(plain.isnan(), changed.isnan()):
        return float("inf")
    kind, name = key
    whole, parts = plain.nan_to_num(), changed.nan_to_num()
    return Pair(what=kind, name=name, whole=whole, parts=parts, least=least).difference
