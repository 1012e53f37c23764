"""Search for the way to shard a model's calls, checked on a few samples before any batch is split.

After the structural proof, a few samples go through the model once whole and once in uneven shards,
with the same random numbers; outputs, buffers and gradients must agree. Buffers and random
generators are left as they were. The output shapes of uneven shards show the batch dimension.
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
from cputrain.split.proof.compare import ShardingComparison, ShardingSpec
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
"""Number of samples of a comparison with float64 or with batch statistics."""

FEWEST = 3
"""Fewest samples that two uneven shards need."""

EXACTLY = 1e-6
"""Tolerance of float64 results, relative to the norm: some models compute in part in float32."""

CLOSELY = 3e-6
"""Tolerance in the model's own dtype where no comparison in float64 follows."""

ROUGHLY = 5e-2
"""Tolerance of other dtypes: batch norm of few samples amplifies rounding errors."""


def find_sharding(
    model: nn.Module,
    call: Calls,
    arguments: Arguments,
    executor: Executor,
    devices: Sequence[torch.device] = (),
) -> tuple[Proof, ShardingSpec]:
    """Return the proof that such calls can be sharded, and the sharding.

    Args:
        model: the model on its home device; it is left as it is.
        call: calls a model with its arguments.
        arguments: arguments of the call, with the batch.
        executor: threads that compute the shards.
        devices: where shards are computed; one shard is tried on each distinct device.

    Raises:
        CannotSplitError: the calls cannot be sharded. Errors of the model are raised as they are.
    """
    _check_statically(model, anywhere=bool(devices))
    random_states = RandomStates(home_of(model))
    try:
        proof = Proof(model, call, arguments)
        random_states.restore()
        copied = StateCopier(read=proof.read).copy(model)
        spec = _agreeing_spec(copied, call, arguments, executor, devices, random_states, proof)
        return proof, spec.replace(changing=spec.changing | proof.written)
    finally:
        if random_states.restore():  # the reason for any difference
            raise CannotSplitError("it draws random numbers from Python or NumPy as well")


def _agreeing_spec(
    model: nn.Module,
    call: Calls,
    arguments: Arguments,
    executor: Executor,
    devices: Sequence[torch.device],
    random_states: RandomStates,
    proof: Proof,
) -> ShardingSpec:
    """Compare a few samples, whole and sharded, at the lowest cost that shows agreement.

    The model's own dtypes come first; float64 decides where rounding errors are amplified.
    """
    compare = partial(_compare_samples, model, call, arguments, executor, devices, proof.reduced)
    # statistics of few samples amplify rounding errors: only float64 can tell
    if not proof.written and not proof.needs_two_samples:
        with suppress(Exception):  # one sample may be too few for a shard: raised below
            return compare(FEWEST, CLOSELY, exactly=False)
        random_states.restore()
    with suppress(RuntimeError, TypeError):  # the model may not accept float64
        return compare(SAMPLES, ROUGHLY, exactly=True)
    random_states.restore()
    return compare(SAMPLES, ROUGHLY, exactly=False)


def _check_statically(model: nn.Module, *, anywhere: bool = False) -> None:
    """Raise CannotSplitError for what shows without running the model: hooks, compilation, devices.

    The model must be on the CPU or, with `anywhere`, on any single device.
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
    _check_shared_memory(model)


def _check_shared_memory(model: nn.Module) -> None:
    """Raise where a buffer shares its storage: each replica has separate copies of buffers."""
    owners: dict[int, str] = {}
    buffers = dict(model.named_buffers())
    for name, tensor in (*model.named_parameters(), *buffers.items()):
        if tensor.layout is torch.strided and tensor.device.type in WITH_STORAGE:
            address = tensor.untyped_storage().data_ptr()
            owner = owners.setdefault(address, name) if address else name
            if owner != name and name in buffers:
                raise CannotSplitError(f"its buffer {name} shares memory with {owner}")


def _compare_samples(
    model: nn.Module,
    call: Calls,
    arguments: Arguments,
    executor: Executor,
    devices: Sequence[torch.device],
    reduced: frozenset[int],
    samples: int,
    tolerance: float,
    *,
    exactly: bool,
) -> ShardingSpec:
    """Compare `samples` samples, whole and sharded; raise where a tensor exceeds the tolerance."""
    batch = arguments.first(min(arguments.size, samples), exactly=exactly)
    home = home_of(model)
    distinct_devices = list(dict.fromkeys(devices)) or [home]
    if len(distinct_devices) == 1:  # the home device computes the second shard
        distinct_devices.append(home)
    del distinct_devices[batch.size - 1 :]  # otherwise two shards would have one sample
    ones = [1] * (len(distinct_devices) - 2)
    smaller = max(1, (batch.size - 1) // 2 - len(ones))
    sizes = [*ones, smaller, batch.size - smaller - len(ones)]
    comparison = ShardingComparison(
        model,
        call,
        batch,
        executor,
        sizes,
        exactly=exactly,
        devices=distinct_devices,
        reduced=reduced,
    )
    for pair in comparison.pairs():
        error = pair.difference
        if error > (EXACTLY if pair.whole.dtype == torch.float64 else tolerance):
            what = {
                "output": f"its output {pair.name}",
                "buffer": f"the buffer {pair.name}",
                "gradient": f"the gradient of {pair.name}",
            }[pair.what].strip()
            by = f" by {error:.1e}" if error < float("inf") else ""
            raise CannotSplitError(f"{what} differs{by} when its batch is divided")
    return comparison.spec


class RandomStates:
    """Saved states of the random generators of torch, Python and NumPy."""

    def __init__(self, home: torch.device = CPU) -> None:
        self._generators = Generators(home)
        self._torch_states = self._generators.get()
        self._python_state = random.getstate()
        self._numpy = sys.modules.get("numpy")
        self._numpy_state = None if self._numpy is None else self._numpy.random.get_state()

    def restore(self) -> bool:
        """Restore all states; return whether Python's or NumPy's generator had been used."""
        self._generators.set(self._torch_states)
        used = random.getstate() != self._python_state
        random.setstate(self._python_state)
        if self._numpy is not None and self._numpy_state is not None:
            now = self._numpy.random.get_state()
            used |= now[2:] != self._numpy_state[2:] or bool((now[1] != self._numpy_state[1]).any())
            self._numpy.random.set_state(self._numpy_state)
        return used
