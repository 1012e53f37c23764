"""Whether a model gives the same when its batch is divided: tried on a few samples, before it is.

The few samples go through the model once whole and once in two uneven parts, with the same random
numbers; outputs, buffers and gradients must agree. Nothing of it stays: not a buffer, not a random
number. What parts of different sizes return shows along which dimension they belong together.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from functools import partial

import torch
from torch import nn

from cputrain.runtime.module_hooks import ModuleHooks
from cputrain.split.devices import CPU
from cputrain.split.execution.replica import home_of, is_plain
from cputrain.split.proof.compare import Compared, ShardingSpec
from cputrain.split.proof.model_state import StateCopier
from cputrain.split.proof.refusal import CannotSplitError
from cputrain.split.proof.structural import WITH_STORAGE, Proof
from cputrain.split.sync.rng import Generators

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.split.batch import Arguments
    from cputrain.split.execution.autograd import Calls
    from cputrain.split.execution.executor import Executor

SAMPLES = 5
"""So many are tried."""

FEWEST = 3
"""Of fewer than these there are no two uneven parts."""

EXACTLY = 1e-6
"""How far two results in float64 may be apart, relative to the norm: some models compute parts of
them in float32."""

CLOSELY = 3e-6
"""How far they may be apart in float32, unless they are compared in float64 as well."""

ROUGHLY = 5e-2
"""How far those in other types may: batch norm of few samples blows up what rounding does."""


def find_sharding(
    model: nn.Module,
    call: Calls,
    arguments: Arguments,
    crew: Executor,
    devices: Sequence[torch.device] = (),
) -> tuple[Proof, ShardingSpec]:
    """Return the proof that such calls can be divided, and how they are.

    Raises CannotSplitError, or what the model itself raises. With `devices`, members of the crew
    compute there: one part is tried on each kind of device.
    """
    look_at(model, anywhere=bool(devices))
    numbers = Numbers(home_of(model))
    try:
        proof = Proof(model, call, arguments)
        numbers.put_back()
        copied = StateCopier(read=proof.read).copy(model)
        way = _way(copied, call, arguments, crew, devices, numbers, proof)
        return proof, way.replace(changing=way.changing | proof.written)
    finally:
        if numbers.put_back():  # which explains whatever differs
            raise CannotSplitError("it draws random numbers from Python or NumPy as well")


def _way(
    model: nn.Module,
    call: Calls,
    arguments: Arguments,
    crew: Executor,
    devices: Sequence[torch.device],
    numbers: Numbers,
    proof: Proof,
) -> ShardingSpec:
    """Compare a few samples, whole and in parts: as few and as cheaply as they agree.

    In the model's own types first; in float64, where the model can, for what rounding blows up.
    """
    compared = partial(_agreed, model, call, arguments, crew, devices, proof.reduced)
    # statistics of few samples blow up what rounding does: float64 alone can tell
    if not proof.written and not proof.needs_two_samples:
        with suppress(Exception):  # as one sample may be too few for a part: told below
            return compared(FEWEST, CLOSELY, exactly=False)
        numbers.put_back()
    with suppress(RuntimeError, TypeError):  # float64 may not be what it takes
        return compared(SAMPLES, ROUGHLY, exactly=True)
    numbers.put_back()
    return compared(SAMPLES, ROUGHLY, exactly=False)


def look_at(model: nn.Module, *, anywhere: bool = False) -> None:
    """Raises CannotSplitError for what can be seen without running it.

    It may be `anywhere`, as long as all of it is there.
    """
    home = home_of(model) if anywhere else CPU
    hooked = ModuleHooks(torch).find(model)
    if hooked:
        raise CannotSplitError(f"{hooked}, which would see parts of the batch")
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, torch.jit.ScriptModule):
            raise CannotSplitError(f"{where} is compiled by torch.jit")
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise CannotSplitError(f"{where} belongs to several processes: divide what is in it")
        if module.__dict__.get("_compiled_call_impl") is not None or hasattr(module, "_orig_mod"):
            raise CannotSplitError(f"{where} is compiled by torch.compile")
        for parameter in module.parameters(recurse=False):
            if not is_plain(parameter):
                raise CannotSplitError(f"{where} has a parameter of {type(parameter).__name__}")
            if parameter.device != home:
                raise CannotSplitError(f"{where} is on {parameter.device}")
        for buffer in module.buffers(recurse=False):
            if buffer.device != home:
                raise CannotSplitError(f"{where} has a buffer on {buffer.device}")
    _look_at_memory(model)


def _look_at_memory(model: nn.Module) -> None:
    """Raise where a buffer shares memory: replicas have copies of buffers, apart from others."""
    owners: dict[int, str] = {}
    buffers = dict(model.named_buffers())
    for name, tensor in (*model.named_parameters(), *buffers.items()):
        if tensor.layout is torch.strided and tensor.device.type in WITH_STORAGE:
            address = tensor.untyped_storage().data_ptr()
            owner = owners.setdefault(address, name) if address else name
            if owner != name and name in buffers:
                raise CannotSplitError(f"its buffer {name} shares memory with {owner}")


def _agreed(
    model: nn.Module,
    call: Calls,
    arguments: Arguments,
    crew: Executor,
    devices: Sequence[torch.device],
    reduced: frozenset[int],
    samples: int,
    tolerance: float,
    *,
    exactly: bool,
) -> ShardingSpec:
    few = arguments.first(min(arguments.size, samples), exactly=exactly)
    home = home_of(model)
    kinds = list(dict.fromkeys(devices)) or [home]
    if len(kinds) == 1:  # beside where the model is
        kinds.append(home)
    del kinds[few.size - 1 :]  # two of them have one sample, else
    ones = [1] * (len(kinds) - 2)
    less = max(1, (few.size - 1) // 2 - len(ones))
    sizes = [*ones, less, few.size - less - len(ones)]
    compared = Compared(
        model, call, few, crew, sizes, exactly=exactly, devices=kinds, reduced=reduced
    )
    for pair in compared.pairs():
        far = pair.difference
        if far > (EXACTLY if pair.whole.dtype == torch.float64 else tolerance):
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

    def __init__(self, home: torch.device = CPU) -> None:
        self._generators = Generators(home)
        self._torchs = self._generators.get()
        self._pythons = random.getstate()
        self._numpy = sys.modules.get("numpy")
        self._numpys = None if self._numpy is None else self._numpy.random.get_state()

    def put_back(self) -> bool:
        """Whether anything was drawn from those that are not torch's."""
        self._generators.set(self._torchs)
        used = random.getstate() != self._pythons
        random.setstate(self._pythons)
        if self._numpy is not None and self._numpys is not None:
            now = self._numpy.random.get_state()
            used |= now[2:] != self._numpys[2:] or bool((now[1] != self._numpys[1]).any())
            self._numpy.random.set_state(self._numpys)
        return used
