"""Follows a batch through every operator of a forward, and stops at one that mixes samples.

`Recorder` is a dispatch mode: each operator that reaches a kernel passes it, with the layout of
every tensor that it is given (see `sharding`). The same forward is run with two numbers of
samples: operators, numbers and shapes must be the same but for the size of the batch, so what a
model decides by the number of samples shows, and so does which dimension of a tensor is the batch.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from cputrain.split.proof.sharding import (
    Layout,
    MixesSamples,
    Opaque,
    Operator,
    Reduced,
    SampleIndex,
    Shard,
    base_name,
    only_replicated,
    rule_of,
)
from cputrain.split.proof.sharding.rules import SIZE_ARGUMENTS, SIZES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ESCAPES = {
    torch.Tensor.numpy: "numpy()",
    torch.Tensor.tolist: "tolist()",
    torch.Tensor.__array__: "an array of NumPy",
    torch.Tensor.data_ptr: "data_ptr()",
    torch.Tensor.__dlpack__: "DLPack",
    torch.Tensor.share_memory_: "share_memory_()",
    torch.Tensor.untyped_storage: "untyped_storage()",
    torch.Tensor.storage: "storage()",
}
"""How values leave torch, where nothing can follow them."""

VALUES = frozenset({
    torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__dlpack__
})  # fmt: skip
"""Of these, what takes all values at once, also those of a tensor that has no samples."""

_tensor: Any = torch.Tensor

HOOKS = {
    torch.Tensor.register_hook: "registers a hook on a tensor",
    torch.Tensor.retain_grad: "keeps a gradient (retain_grad)",
    torch.Tensor.register_post_accumulate_grad_hook: "registers a hook on a tensor",
    torch.Tensor.backward: "runs a backward",
    torch.autograd.backward: "runs a backward",
    _tensor.grad_fn.__get__: "looks at the graph (grad_fn)",
    _tensor._backward_hooks.__get__: "looks at hooks of a tensor",
}
"""What sees gradients of the whole batch in a plain run, and of a shard in a divided one."""

GETTERS = (_tensor.grad_fn.__get__, _tensor._backward_hooks.__get__)
"""Of these, what torch itself looks at, in a checkpoint for example."""

VIEWS = frozenset({
    "t", "transpose", "unsqueeze", "squeeze", "permute", "swapaxes", "view", "set"
})  # fmt: skip
"""In-place ones of these change a tensor's shape, and no element."""

SAME = {"_unsafe_view": "view", "_reshape_alias": "view"}
"""Names for one thing: which of them runs depends on strides alone."""

IGNORED = frozenset({"generator", "out"})


class CannotShard(BaseException):
    """Why a forward cannot be divided; not an Exception, which a model may catch."""


class Entry:
    """One operator of a forward, as far as it must be the same for every number of samples."""

    __slots__ = ("constants", "name", "shapes")

    def __init__(self, name: str, constants: Any, shapes: Sequence[Sequence[int]]) -> None:
        self.name = name
        self.constants = constants
        self.shapes = shapes


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operators of a forward, and follows the batch where there is a reference."""

    def __init__(
        self,
        model: nn.Module,
        num_samples: int,
        held: Iterable[tuple[str, torch.Tensor]] = (),
        reference: Recorder | None = None,
        answers: Sequence[bool] = (),
    ) -> None:
        """`held` are the tensors that the model has beside parameters and buffers, by name.

        Questions about the batch have these `answers`, as far as there are any.

        With a reference, samples are followed; but for a single one, whose dimension looks like
        any other with one element: then operators and shapes are compared alone.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_samples = num_samples
        self.entries: list[Entry] = []
        self.answers: list[bool] = []
        """To questions about the batch, in order."""
        self.needs_two_samples = False
        self.output: Any = None
        """What the forward's output has in common for all numbers of samples."""
        self.reason: str | None = None
        """Why the forward cannot be divided, also if the model caught what was raised."""
        self._given = answers
        self._decisions: set[int] = set()
        """Storages that hold answers."""
        self._model = model
        self._reference = reference
        self._follows = reference is not None and num_samples > 1
        self._num_skipped = 0
        """Copies of the reference that a single sample does not need."""
        self._paused = 0
        self._layouts: dict[Any, Layout] = {}
        self._arguments: set[int] = set()
        """Storages of what the forward was called with."""
        self._sharded: set[int] = set()
        """Storages that hold samples."""
        self._kept: list[Any] = []
        """Storages and tensors, so that no address is used twice."""
        self._known: dict[int, str] = {}
        """Storages that were there before the forward, by what they are."""
        self._functions = _Functions(self)
        for kind, named in (
            ("the tensor", held),
            ("the buffer", model.named_buffers()),
            ("the parameter", model.named_parameters()),
        ):
            for name, tensor in named:
                self._known[self._storage(tensor)] = f"{kind} {name}"

    def __enter__(self) -> Recorder:
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._functions.__exit__(*error)  # type: ignore[no-untyped-call]

    # -- what a forward is given, and what it returns

    def place(self, tensor: torch.Tensor, dim: int | None) -> None:
        """Say where the batch lies in an argument; None where all shards are given it whole."""
        if dim is not None:
            self._set(tensor, Shard(dim))
        self._arguments.add(self._storage(tensor))
        self._known[self._storage(tensor)] = "an argument" if dim is None else ""

    def layout(self, tensor: torch.Tensor) -> Layout:
        """Return where the batch lies in a tensor."""
        key = self._key(tensor)
        if key in self._layouts:
            return self._layouts[key]
        storage = key[0]
        if storage in self._sharded:
            raise MixesSamples("looks at a batch in a way that cannot be followed")
        if storage not in self._known and not self._paused:
            self._known[storage] = "a tensor from elsewhere"
            self._compare(Entry("a constant", _values(tensor), [tensor.shape]))
        return None

    def gradient(self, name: str, tensor: torch.Tensor) -> None:
        """Say that this is the gradient of a result that has samples where its shape grows."""
        reference = self._compare(Entry(f"the gradient of {name}", None, [tensor.shape]))
        layout: Layout = None
        if reference is not None:
            with self.told(f"the gradient of {name}"):
                layout = self._grown(tensor, reference.shapes[0])
        self._set(tensor, layout)

    def check_gradient(self, name: str, tensor: torch.Tensor) -> None:
        """Raise unless samples are where the shape of a gradient grows."""
        reference = self._compare(Entry(f"a gradient from {name}", None, [tensor.shape]))
        if reference is None:
            return
        with self.told(f"the backward of {name}"):
            found = self.layout(tensor)
            if found is None or found != self._grown(tensor, reference.shapes[0]):
                raise MixesSamples("does not keep the gradients of samples apart")

    def _grown(self, tensor: torch.Tensor, reference: Sequence[int]) -> Layout:
        grown = [dim for dim in range(tensor.dim()) if tensor.shape[dim] != reference[dim]]
        if not grown:
            return None
        if len(grown) > 1 or tensor.shape[grown[0]] != self.num_samples:
            raise MixesSamples("has samples in an order that cannot be followed")
        return Shard(grown[0])

    def is_argument(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has the memory of what the forward was called with."""
        return self._storage(tensor) in self._arguments

    @contextmanager
    def opaque(self) -> Iterator[None]:
        """Record nothing: a function is known as a whole."""
        self._paused += 1
        try:
            # a mode would be given the public name of a method, which is a patched one
            with torch._C.DisableTorchFunction():
                yield
        finally:
            self._paused -= 1

    def drawn(
        self, tensor: torch.Tensor, like: torch.Tensor | None = None, constants: Any = ()
    ) -> None:
        """Record a tensor of random numbers; `constants` say of which distribution."""
        entry = Entry("random numbers", _plain(constants), [tensor.shape])
        reference = self._compare(entry)
        if reference is None:
            self._set(tensor, None)
            return
        with self.told("random numbers"):
            operator = Operator(
                "random numbers", {}, {}, [tensor], self.num_samples, reference.shapes
            )  # fmt: skip
            scaled = operator.scaled_dims()
            if len(scaled) > 1:
                raise MixesSamples("have a row and a column for each sample")
            layout: Layout = None
            if scaled:
                layout = Shard(scaled[0], tensor.shape[scaled[0]] // self.num_samples)
            if like is not None:
                given = self.layout(like)
                if given is not None and given != layout:
                    raise MixesSamples("are drawn for a batch in which samples do not come first")
            self._set(tensor, layout)

    def batch_norm(self, tensor: torch.Tensor, output: torch.Tensor, constants: Any = ()) -> None:
        """Record a batch norm, whose statistics are those of all shards."""
        if self._compare(Entry("batch norm", _plain(constants), [output.shape])) is None:
            self._set(output, None)
            return
        with self.told("batch norm"):
            layout = self.layout(tensor)
            if isinstance(layout, Shard) and layout.dim == 1:
                raise MixesSamples("normalises channels that belong to single samples")
            if layout is not None and not isinstance(layout, Shard):
                raise MixesSamples("computes with the numbers of samples")
            if layout is None:
                raise MixesSamples("normalises what is no batch")
            self._set(output, layout)

    def loss(self, name: str, tensors: Sequence[torch.Tensor], output: torch.Tensor) -> None:
        """Record a loss over the whole batch, to which all shards contribute."""
        with self.told(name):
            layouts = [self.layout(tensor) for tensor in tensors]
        if self._compare(Entry(name, None, [output.shape])) is None:
            self._set(output, None)
            return
        with self.told(name):
            sharded = [layout for layout in layouts if layout is not None]
            if not sharded or not all(isinstance(layout, Shard) for layout in sharded):
                raise MixesSamples("is no loss of a batch")
            if layouts[0] is None or layouts[1] not in (None, layouts[0]):
                raise MixesSamples("compares samples that lie in different dimensions")
            self._set(output, Reduced())

    def answer(self, found: bool) -> bool:
        """Return the answer to the next question: the one that is given, or that was found."""
        number = len(self.answers)
        self.answers.append(self._given[number] if number < len(self._given) else found)
        return self.answers[-1]

    def decision(self, name: str, tensor: torch.Tensor, output: torch.Tensor) -> None:
        """Record a question about the whole batch, by which the model may decide."""
        with self.told(name):
            if isinstance(self.layout(tensor), SampleIndex | Reduced | Opaque):
                raise MixesSamples("asks about the numbers of samples")
        self._compare(Entry(name, self.answers[-1], [output.shape]))
        self._set(output, None)
        self._decisions.add(self._storage(output))

    def one_hot(self, indices: torch.Tensor, output: torch.Tensor) -> None:
        """Record a one-hot encoding with a given number of classes."""
        if self._compare(Entry("one_hot", None, [output.shape])) is None:
            self._set(output, None)
            return
        with self.told("one_hot"):
            layout = self.layout(indices)
            if isinstance(layout, SampleIndex):
                raise MixesSamples("computes with the numbers of samples")
            self._set(output, layout)

    # -- operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        name = base_name(func)
        if rule_of(func) is None and _is_composite(func):
            super().__enter__()  # type: ignore[no-untyped-call]
            try:
                return func.decompose(*args, **kwargs)
            finally:
                super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if torch.Tag.nondeterministic_seeded in func.tags and rule_of(func) is None:
            with self.told(name):
                raise MixesSamples(
                    "draws random numbers in a way that cannot be divided (an nn.LSTM or nn.GRU "
                    "with dropout does, for example)"
                )
        arguments = _bound(func, args, kwargs)
        layouts: dict[int, Layout] = {}
        follows = self._follows
        with self.told(name):
            for tensor in _tensors(arguments.values()):
                layout = self.layout(tensor)
                layouts[id(tensor)] = layout if follows else None
        result = func(*args, **kwargs)
        self._record(func, name, arguments, layouts, result)
        return result

    def _record(
        self,
        func: Any,
        name: str,
        arguments: dict[str, Any],
        layouts: dict[int, Layout],
        result: Any,
    ) -> None:
        outputs = _tensors([result] if not isinstance(result, list | tuple) else result)
        constants = _values(outputs[0]) if name == "lift_fresh" else _constants(arguments)
        entry = Entry(SAME.get(name, name), constants, [tuple(one.shape) for one in outputs])
        reference = self._compare(entry)
        written = [
            arguments.get(one.name)
            for one in func._schema.arguments
            if one.alias_info is not None and one.alias_info.is_write
        ]
        if reference is None:
            for tensor in outputs:
                self._set(tensor, None)
            return
        with self.told(name):
            operator = Operator(
                func._schema.name.rpartition("::")[2], arguments, layouts, outputs,
                self.num_samples, reference.shapes,
            )  # fmt: skip
            if name == "set" and self._storage(outputs[0]) in self._sharded:
                raise MixesSamples("looks at a batch in a way that cannot be followed")
            if all(layout is None for layout in layouts.values()) and not _makes_sizes(name):
                if not outputs and result is not None and not self._is_answer(arguments):
                    raise MixesSamples("reads the value of a tensor, by which the model may decide")
                found = only_replicated(operator)
            else:
                rule = rule_of(func)
                if rule is None:
                    raise MixesSamples("is not known to keep samples apart")
                found = rule(operator)
                if torch.Tag.data_dependent_output in func.tags:
                    raise MixesSamples("reads values of samples, by which the model may decide")
            self.needs_two_samples |= operator.needs_two_samples
            for tensor, layout, shape in zip(outputs, found, reference.shapes, strict=True):
                self._check(tensor, layout, shape)
            for tensor in _tensors(written) if name not in VIEWS else ():
                self._check_write(tensor, layouts[id(tensor)], found)
            for tensor, layout in zip(outputs, found, strict=True):
                self._set(tensor, layout)

    def _is_answer(self, arguments: dict[str, Any]) -> bool:
        """Whether a value that is read is the answer to a question, which is recorded."""
        return all(self._storage(one) in self._decisions for one in _tensors(arguments.values()))

    def _check(self, tensor: torch.Tensor, layout: Layout, reference: Sequence[int]) -> None:
        """Raise where a shape is not what the layout says for both numbers of samples."""
        assert self._reference is not None
        if not isinstance(layout, Shard | SampleIndex | None):
            return
        for dim, (size, other) in enumerate(zip(tensor.shape, reference, strict=True)):
            if layout is not None and dim == layout.dim:
                if size * self._reference.num_samples != other * self.num_samples:
                    raise MixesSamples("has a result that does not grow with the batch")
            elif size != other:
                raise MixesSamples("has a result whose size depends on the batch")

    def _check_write(self, tensor: torch.Tensor, before: Layout, after: Sequence[Layout]) -> None:
        if after and after[0] != before:
            raise MixesSamples("writes a batch into a tensor that has none")
        what = self._known.get(self._storage(tensor), "")
        if what.startswith("the buffer") and before is None:
            return  # each replica has buffers of its own, and writes the same
        if what and before is None:
            raise MixesSamples(f"writes to {what}")

    def _compare(self, entry: Entry) -> Entry | None:
        """Return what the other number of samples had in this place."""
        number = len(self.entries) + self._num_skipped
        self.entries.append(entry)
        if self._reference is None:
            return None
        with self.told(entry.name):
            others = self._reference.entries
            while (
                not self._follows
                and others[number : number + 1]
                and _is_copy(others[number], entry)
            ):  # a single sample is contiguous where several are not
                self._num_skipped += 1
                number += 1
            counts = f"{self.num_samples} samples and {self._reference.num_samples}"
            if number >= len(others) or others[number].name != entry.name:
                instead = others[number].name if number < len(others) else "nothing"
                raise MixesSamples(
                    f"is not computed for other numbers of samples ({counts}): {instead} is"
                )
            other = others[number]
            if len(other.shapes) != len(entry.shapes) or any(
                len(one) != len(two) for one, two in zip(other.shapes, entry.shapes, strict=True)
            ):
                raise MixesSamples(f"gives results of other dimensions for {counts}")
            if not self._same_constants(entry, other):
                raise MixesSamples(f"is given other numbers for {counts}")
            if self._follows:
                return other
            for one, two in zip(entry.shapes, other.shapes, strict=True):
                self._check_sizes(one, two)
            return None

    def _check_sizes(self, shape: Sequence[int], reference: Sequence[int]) -> None:
        """Raise unless a single sample has that part of each dimension, or all of it."""
        assert self._reference is not None
        for size, other in zip(shape, reference, strict=True):
            if size not in (other, other / self._reference.num_samples):
                raise MixesSamples("has another size for a single sample")

    def _same_constants(self, entry: Entry, other: Entry) -> bool:
        """Whether numbers are the same, or sizes that grow with the batch."""
        if entry.name not in SIZES:
            return bool(entry.constants == other.constants)
        assert self._reference is not None
        counts = self.num_samples, self._reference.num_samples
        return all(
            one == two or (name in SIZE_ARGUMENTS and _grows(one, two, *counts))
            for (name, one), (_, two) in zip(entry.constants, other.constants, strict=True)
        )

    def finish(self) -> None:
        """Raise what was found, also where the model caught it."""
        if self.reason is None and self._reference is not None:
            missing = self._reference.entries[len(self.entries) + self._num_skipped :]
            if missing:
                self.reason = (
                    f"it computes {missing[0].name} for {self._reference.num_samples} samples, and "
                    f"not for {self.num_samples}"
                )
        if self.reason is not None:
            raise CannotShard(self.reason)

    def refuse(self, reason: str) -> None:
        """Raise, and remember why."""
        self.reason = self.reason or reason
        raise CannotShard(reason)

    @contextmanager
    def told(self, name: str) -> Iterator[None]:
        """Name the operator and its module with what is raised."""
        try:
            yield
        except MixesSamples as error:
            what = name if " " in name else f"the operator {name}"
            self.refuse(f"{what} in {self.place_of_call()} {error}")

    def place_of_call(self) -> str:
        """Return the innermost module whose forward is running, as text."""
        names = {id(module): name for name, module in self._model.named_modules()}
        frame: Any = sys._getframe()
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and id(owner) in names:
                name = names[id(owner)]
                return f"{name} ({type(owner).__name__})" if name else type(owner).__name__
            frame = frame.f_back
        return type(self._model).__name__

    # -- where the samples of each tensor lie

    def _storage(self, tensor: torch.Tensor) -> int:
        if tensor.layout is not torch.strided:
            self._kept.append(tensor)
            return id(tensor)
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
        self._kept.append(storage)
        return int(storage._cdata)

    def _key(self, tensor: torch.Tensor) -> Any:
        if tensor.layout is not torch.strided:
            return self._storage(tensor), 0, (), ()
        return (
            self._storage(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(),
        )  # fmt: skip

    def _set(self, tensor: torch.Tensor, layout: Layout) -> None:
        key = self._key(tensor)
        self._layouts[key] = layout
        self._known.setdefault(key[0], "")
        if layout is not None:
            self._sharded.add(key[0])


class _Functions(TorchFunctionMode):
    """Sees functions that no kernel shows: what leaves torch, and hooks on tensors."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        if recorder._paused:
            return func(*args, **kwargs)
        if func in HOOKS and not (func in GETTERS and _is_called_by_torch()):
            recorder.refuse(f"{recorder.place_of_call()} {HOOKS[func]}")
        if func in ESCAPES and args and isinstance(args[0], torch.Tensor):
            with recorder.told(ESCAPES[func]):
                if recorder._follows and recorder.layout(args[0]) is not None:
                    raise MixesSamples("takes values of samples out of torch")
                if func in VALUES:
                    raise MixesSamples("reads the value of a tensor, by which the model may decide")
        if func is torch.nn.functional.one_hot:
            return self._one_hot(*args, **kwargs)
        return func(*args, **kwargs)

    def _one_hot(self, tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if num_classes < 0:
            return torch.nn.functional.one_hot(tensor, num_classes)
        with self._recorder.opaque():
            output = torch.nn.functional.one_hot(tensor, num_classes)
        self._recorder.one_hot(tensor, output)
        return output


def _is_called_by_torch() -> bool:
    """Whether the function that a mode sees was called by torch's own code."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith("overrides.py"):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("torch.")


def _is_copy(entry: Entry, instead: Entry) -> bool:
    return entry.name == "clone" != instead.name


def _is_composite(func: Any) -> bool:
    """Whether an operator is made of others, which say more than it does."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _makes_sizes(name: str) -> bool:
    """Whether an operator makes a batch of what is none: a row for each sample."""
    return name in ("expand", "repeat", "arange") or name in SIZES


def _bound(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name; what is not given has its default."""
    found: dict[str, Any] = {}
    for number, argument in enumerate(func._schema.arguments):
        if number < len(args) and not argument.kwarg_only:
            found[argument.name] = args[number]
        elif argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
    return found


def _tensors(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _constants(arguments: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, _plain(value)) for key, value in arguments.items() if key not in IGNORED]


def _grows(one: Any, other: Any, count: int, other_count: int) -> bool:
    """Whether two sizes, or lists of them, are the same or in proportion to the samples."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(
            _grows(a, b, count, other_count) for a, b in zip(one, other, strict=True)
        )
    if not isinstance(one, int) or not isinstance(other, int):
        return bool(one == other)
    return one == other or one * other_count == other * count


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, list | tuple):
        return tuple(_plain(one) for one in value)
    if isinstance(value, dict):
        return tuple((name, _plain(one)) for name, one in value.items() if name not in IGNORED)
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, torch.UntypedStorage | torch.TypedStorage):
        return "a storage"
    return value


def _values(tensor: torch.Tensor) -> Any:
    """Return the values of a constant, or a hash of them."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        if tensor.layout is not torch.strided or tensor.is_meta:
            return str(tensor.layout), tuple(tensor.shape)
        plain = tensor.detach().cpu().contiguous()
        if plain.dtype in (torch.bfloat16, torch.float16):
            plain = plain.float()
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return tuple(tensor.shape) if not raw else hashlib.sha256(raw).hexdigest()
