"""Whether a model gives the same when its batch is divided: tried on a few samples, before it is.

The few samples go through the model once whole and once in two uneven parts, with the same random
numbers; outputs, buffers and gradients must agree. Nothing of it stays: not a buffer, not a random
number. What parts of different sizes return shows along which dimension they belong together.
"""

from __future__ import annotations

import random
import sys

import torch
from torch import nn

from cputrain.split.compare import CannotSplitError, Compared, Way

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.split.batch import Arguments
    from cputrain.split.call import Calls
    from cputrain.split.crew import Crew

SAMPLES = 8
"""So many are tried."""

FEWEST = 3
"""Of fewer than these there are no two uneven parts."""

EXACTLY = 1e-8
"""How far two results in float64 may be apart, relative to the norm."""

ROUGHLY = 5e-2
"""How far those in other types may: batch norm of few samples blows up what rounding does."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def find_way(model: nn.Module, call: Calls, arguments: Arguments, crew: Crew) -> Way:
    """How to divide such calls. Raises CannotSplitError, or what the model itself raises."""
    look_at(model)
    numbers = Numbers()
    try:
        try:
            return _agreed(model, call, arguments, crew, exactly=True)
        except RuntimeError:  # float64 may not be what it takes
            numbers.put_back()
            return _agreed(model, call, arguments, crew, exactly=False)
    finally:
        if numbers.put_back():  # which explains whatever differs
            raise CannotSplitError("it draws random numbers from Python or NumPy as well")


def look_at(model: nn.Module) -> None:
    """Raises CannotSplitError for what can be seen without running it."""
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, torch.jit.ScriptModule):
            raise CannotSplitError(f"{where} is compiled by torch.jit")
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise CannotSplitError(f"{where} belongs to several processes: divide what is in it")
        if module.__dict__.get("_compiled_call_impl") is not None or hasattr(module, "_orig_mod"):
            raise CannotSplitError(f"{where} is compiled by torch.compile")
        for hooks in HOOKS:
            for hook in module.__dict__.get(hooks, {}).values():
                if not type(hook).__module__.startswith("torch.nn.utils."):
                    raise CannotSplitError(
                        f"{where} has a hook, which would see parts of the batch"
                    )
        for parameter in module.parameters(recurse=False):
            if type(parameter) is not nn.Parameter:
                raise CannotSplitError(f"{where} has a parameter of {type(parameter).__name__}")
            if parameter.device.type != "cpu":
                raise CannotSplitError(f"{where} is on {parameter.device}")


def _agreed(
    model: nn.Module, call: Calls, arguments: Arguments, crew: Crew, *, exactly: bool
) -> Way:
    few = arguments.first(min(arguments.size, SAMPLES), exactly=exactly)
    less = (few.size - 1) // 2
    compared = Compared(model, call, few, crew, [(0, less), (less, few.size)], exactly=exactly)
    for pair in compared.pairs():
        far = pair.difference
        if far > (EXACTLY if pair.whole.dtype == torch.float64 else ROUGHLY):
            what = {
                "output": f"its output {pair.name}",
                "buffer": f"the buffer {pair.name}",
                "gradient": f"the gradient of {pair.name}",
            }[pair.what].strip()
            by = f" by {far:.1e}" if far < float("inf") else ""
            raise CannotSplitError(f"{what} differs{by} when its batch is divided")
    return compared.way


class Numbers:
    """The generators of torch, Python and NumPy, as they are now."""

    def __init__(self) -> None:
        self._torchs = torch.get_rng_state()
        self._pythons = random.getstate()
        self._numpy = sys.modules.get("numpy")
        self._numpys = None if self._numpy is None else self._numpy.random.get_state()

    def put_back(self) -> bool:
        """Whether anything was drawn from those that are not torch's."""
        torch.set_rng_state(self._torchs)
        used = random.getstate() != self._pythons
        random.setstate(self._pythons)
        if self._numpy is not None and self._numpys is not None:
            now = self._numpy.random.get_state()
            used |= now[2:] != self._numpys[2:] or bool((now[1] != self._numpys[1]).any())
            self._numpy.random.set_state(self._numpys)
        return used
