"""Trace the layout of the batch through the operators of a forward; refuse those that mix samples.

`OperatorRecorder` is a dispatch mode, which sees each operator that reaches a kernel and infers the
layout of its outputs from that of its inputs (see `sharding`). The same forward is run with two
batch sizes. Operators, constants and shapes must be equal except for the batch size: this shows
branches on the batch size, and which dimension of a tensor is the batch.
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

from cputrain.counting import counted
from cputrain.split.proof.refusal import UNDIVIDED_DRAW
from cputrain.split.proof.sharding import (
    Layout,
    MixesSamples,
    Opaque,
    OperatorCall,
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
"""Functions that take values out of torch, where they cannot be traced."""

VALUES = frozenset({
    torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__dlpack__
})  # fmt: skip
"""Functions of `ESCAPES` that are refused for replicated tensors too: they read all values."""

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
"""Functions that would see the gradients of a shard in place of those of the whole batch."""

GETTERS = (_tensor.grad_fn.__get__, _tensor._backward_hooks.__get__)
"""Functions of `HOOKS` that torch itself calls, for example in a checkpoint."""

VIEWS = frozenset({
    "t", "transpose", "unsqueeze", "squeeze", "permute", "swapaxes", "view", "set"
})  # fmt: skip
"""Operators whose in-place forms change a tensor's shape and none of its elements."""

SAME = {"_unsafe_view": "view", "_reshape_alias": "view"}
"""Synonyms: which of the two operators runs depends on strides only."""

IGNORED = frozenset({"generator", "out"})
"""Arguments that are not compared between batch sizes."""


class CannotShard(BaseException):
    """The forward cannot be sharded; a BaseException, as a model may catch an Exception."""


class Entry:
    """Name, constants and output shapes of one operator call, compared between batch sizes."""

    __slots__ = ("constants", "name", "shapes")

    def __init__(self, name: str, constants: Any, shapes: Sequence[Sequence[int]]) -> None:
        self.name = name
        self.constants = constants
        self.shapes = shapes


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the operators of a forward and, given a reference, infer the layout of each tensor."""

    def __init__(
        self,
        model: nn.Module,
        num_samples: int,
        other_tensors: Iterable[tuple[str, torch.Tensor]] = (),
        reference: OperatorRecorder | None = None,
        answers: Sequence[bool] = (),
    ) -> None:
        """Set up the trace of one forward.

        With a reference, layouts are inferred. A batch of one sample is an exception, as its
        dimension looks like any other of size 1: only operators and shapes are compared.

        Args:
            model: the model whose modules are named in messages.
            num_samples: size of the batch.
            other_tensors: names and tensors of the model besides its parameters and buffers.
            reference: trace of the same forward with another batch size.
            answers: results of the first reductions over the batch, such as `mask.all()`.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_samples = num_samples
        self.entries: list[Entry] = []
        self.answers: list[bool] = []
        """Results of reductions over the batch, such as `mask.all()`, in the order of the calls."""
        self.needs_two_samples = False
        self.output: Any = None
        """The parts of the forward's output that must not depend on the batch size."""
        self.reason: str | None = None
        """Why the forward cannot be sharded; kept even if the model caught the exception."""
        self._prescribed_answers = answers
        self._answer_storages: set[int] = set()
        """Storages that hold results of reductions over the batch."""
        self._model = model
        self._reference = reference
        self._infers_layouts = reference is not None and num_samples > 1
        self._num_skipped = 0
        """Number of `clone` calls of the reference that a single sample does not need."""
        self._paused = 0
        self._layouts: dict[Any, Layout] = {}
        self._argument_storages: set[int] = set()
        """Storages of the forward's arguments."""
        self._sharded_storages: set[int] = set()
        """Storages that hold samples."""
        self._keep_alive: list[Any] = []
        """Storages and tensors, held so that no address is used twice."""
        self._descriptions: dict[int, str] = {}
        """Description of each storage that is older than the forward; empty for other storages."""
        self._functions = _FunctionMode(self)
        for prefix, named_tensors in (
            ("the tensor", other_tensors),
            ("the buffer", model.named_buffers()),
            ("the parameter", model.named_parameters()),
        ):
            for name, tensor in named_tensors:
                self._descriptions[self._storage(tensor)] = f"{prefix} {name}"

    def __enter__(self) -> OperatorRecorder:
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._functions.__exit__(*error)  # type: ignore[no-untyped-call]

    # -- inputs and outputs of a forward

    def set_batch_dim(self, tensor: torch.Tensor, dim: int | None) -> None:
        """Set the batch dimension of an argument; None for a replicated one."""
        if dim is not None:
            self._set(tensor, Shard(dim))
        self._argument_storages.add(self._storage(tensor))
        self._descriptions[self._storage(tensor)] = "an argument" if dim is None else ""

    def layout(self, tensor: torch.Tensor) -> Layout:
        """Return the layout of the batch in a tensor; None if it is replicated."""
        key = self._key(tensor)
        if key in self._layouts:
            return self._layouts[key]
        storage = key[0]
        if storage in self._sharded_storages:
            raise MixesSamples("looks at a batch in a way that cannot be followed")
        if storage not in self._descriptions and not self._paused:
            self._descriptions[storage] = "a tensor from elsewhere"
            self._compare(Entry("a constant", _values(tensor), [tensor.shape]))
        return None

    def set_gradient(self, name: str, tensor: torch.Tensor) -> None:
        """Register an output gradient; its batch dimension is that which grows with the batch."""
        reference = self._compare(Entry(f"the gradient of {name}", None, [tensor.shape]))
        layout: Layout = None
        if reference is not None:
            with self.naming_operator(f"the gradient of {name}"):
                layout = self._growing_shard(tensor, reference.shapes[0])
        self._set(tensor, layout)

    def check_gradient(self, name: str, tensor: torch.Tensor) -> None:
        """Raise unless a gradient's layout is the dimension that grows with the batch."""
        reference = self._compare(Entry(f"a gradient from {name}", None, [tensor.shape]))
        if reference is None:
            return
        with self.naming_operator(f"the backward of {name}"):
            layout = self.layout(tensor)
            if layout is None or layout != self._growing_shard(tensor, reference.shapes[0]):
                raise MixesSamples("does not keep the gradients of samples apart")

    def _growing_shard(self, tensor: torch.Tensor, reference: Sequence[int]) -> Layout:
        """Return the shard along the dimension that differs from the reference shape."""
        grown = [dim for dim in range(tensor.dim()) if tensor.shape[dim] != reference[dim]]
        if not grown:
            return None
        if len(grown) > 1 or tensor.shape[grown[0]] != self.num_samples:
            raise MixesSamples("has samples in an order that cannot be followed")
        return Shard(grown[0])

    def is_argument(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor shares its storage with an argument of the forward."""
        return self._storage(tensor) in self._argument_storages

    @contextmanager
    def opaque(self) -> Iterator[None]:
        """Pause the trace in a function that is recorded as a single operator."""
        self._paused += 1
        try:
            # (a function mode would see the public name of a method, which is patched)
            with torch._C.DisableTorchFunction():
                yield
        finally:
            self._paused -= 1

    def drawn(
        self, tensor: torch.Tensor, like: torch.Tensor | None = None, constants: Any = ()
    ) -> None:
        """Record a tensor of random numbers.

        Args:
            tensor: the random numbers.
            like: tensor whose layout they must have.
            constants: name and parameters of the distribution.
        """
        entry = Entry("random numbers", _comparable(constants), [tensor.shape])
        reference = self._compare(entry)
        if reference is None:
            self._set(tensor, None)
            return
        with self.naming_operator("random numbers"):
            operator = OperatorCall(
                "random numbers", {}, {}, [tensor], self.num_samples, reference.shapes
            )  # fmt: skip
            scaled = operator.scaled_dims()
            if len(scaled) > 1:
                raise MixesSamples("have a row and a column for each sample")
            layout: Layout = None
            if scaled:
                layout = Shard(scaled[0], tensor.shape[scaled[0]] // self.num_samples)
            if like is not None:
                like_layout = self.layout(like)
                if like_layout is not None and like_layout != layout:
                    raise MixesSamples("are drawn for a batch in which samples do not come first")
            self._set(tensor, layout)

    def batch_norm(self, tensor: torch.Tensor, output: torch.Tensor, constants: Any = ()) -> None:
        """Record a batch norm, whose statistics are synchronised between shards."""
        if self._compare(Entry("batch norm", _comparable(constants), [output.shape])) is None:
            self._set(output, None)
            return
        with self.naming_operator("batch norm"):
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
        with self.naming_operator(name):
            layouts = [self.layout(tensor) for tensor in tensors]
        if self._compare(Entry(name, None, [output.shape])) is None:
            self._set(output, None)
            return
        with self.naming_operator(name):
            sharded = [layout for layout in layouts if layout is not None]
            if not sharded or not all(isinstance(layout, Shard) for layout in sharded):
                raise MixesSamples("is no loss of a batch")
            if layouts[0] is None or layouts[1] not in (None, layouts[0]):
                raise MixesSamples("compares samples that lie in different dimensions")
            self._set(output, Reduced())

    def answer(self, computed: bool) -> bool:
        """Return the result of the next reduction: the prescribed one if there is one."""
        index = len(self.answers)
        self.answers.append(
            self._prescribed_answers[index] if index < len(self._prescribed_answers) else computed
        )
        return self.answers[-1]

    def decision(self, name: str, tensor: torch.Tensor, output: torch.Tensor) -> None:
        """Record a reduction over the batch, such as `mask.all()`, that a model may branch on."""
        with self.naming_operator(name):
            if isinstance(self.layout(tensor), SampleIndex | Reduced | Opaque):
                raise MixesSamples("asks about the numbers of samples")
        self._compare(Entry(name, self.answers[-1], [output.shape]))
        self._set(output, None)
        self._answer_storages.add(self._storage(output))

    def one_hot(self, indices: torch.Tensor, output: torch.Tensor) -> None:
        """Record a one-hot encoding with a given number of classes."""
        if self._compare(Entry("one_hot", None, [output.shape])) is None:
            self._set(output, None)
            return
        with self.naming_operator("one_hot"):
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
            with self.naming_operator(name):
                raise MixesSamples(UNDIVIDED_DRAW)
        arguments = _bind_arguments(func, args, kwargs)
        layouts: dict[int, Layout] = {}
        follows = self._infers_layouts
        with self.naming_operator(name):
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
        """Compare an operator call with the reference and set the layouts of its outputs."""
        outputs = _tensors([result] if not isinstance(result, list | tuple) else result)
        constants = _values(outputs[0]) if name == "lift_fresh" else _constants(arguments)
        entry = Entry(SAME.get(name, name), constants, [tuple(item.shape) for item in outputs])
        reference = self._compare(entry)
        written = [
            arguments.get(item.name)
            for item in func._schema.arguments
            if item.alias_info is not None and item.alias_info.is_write
        ]
        if reference is None:
            for tensor in outputs:
                self._set(tensor, None)
            return
        with self.naming_operator(name):
            operator = OperatorCall(
                func._schema.name.rpartition("::")[2], arguments, layouts, outputs,
                self.num_samples, reference.shapes,
            )  # fmt: skip
            if name == "set" and self._storage(outputs[0]) in self._sharded_storages:
                raise MixesSamples("looks at a batch in a way that cannot be followed")
            if all(layout is None for layout in layouts.values()) and not _makes_rows(name):
                if not outputs and result is not None and not self._is_answer(arguments):
                    raise MixesSamples("reads the value of a tensor, by which the model may decide")
                output_layouts = only_replicated(operator)
            else:
                rule = rule_of(func)
                if rule is None:
                    raise MixesSamples("is not known to keep samples apart")
                output_layouts = rule(operator)
                if torch.Tag.data_dependent_output in func.tags:
                    raise MixesSamples("reads values of samples, by which the model may decide")
            self.needs_two_samples |= operator.needs_two_samples
            for tensor, layout, shape in zip(
                outputs, output_layouts, reference.shapes, strict=True
            ):
                self._check(tensor, layout, shape)
            for tensor in _tensors(written) if name not in VIEWS else ():
                self._check_write(tensor, layouts[id(tensor)], output_layouts)
            for tensor, layout in zip(outputs, output_layouts, strict=True):
                self._set(tensor, layout)

    def _is_answer(self, arguments: dict[str, Any]) -> bool:
        """Return whether all tensors hold results of recorded reductions over the batch."""
        return all(
            self._storage(tensor) in self._answer_storages
            for tensor in _tensors(arguments.values())
        )

    def _check(self, tensor: torch.Tensor, layout: Layout, reference: Sequence[int]) -> None:
        """Raise where a shape contradicts the layout for one of the batch sizes."""
        assert self._reference is not None
        if not isinstance(layout, Shard | SampleIndex | None):
            return
        for dim, (size, reference_size) in enumerate(zip(tensor.shape, reference, strict=True)):
            if layout is not None and dim == layout.dim:
                if size * self._reference.num_samples != reference_size * self.num_samples:
                    raise MixesSamples("has a result that does not grow with the batch")
            elif size != reference_size:
                raise MixesSamples("has a result whose size depends on the batch")

    def _check_write(self, tensor: torch.Tensor, before: Layout, after: Sequence[Layout]) -> None:
        """Raise where an in-place write changes the layout, or state shared by replicas."""
        if after and after[0] != before:
            raise MixesSamples("writes a batch into a tensor that has none")
        description = self._descriptions.get(self._storage(tensor), "")
        if description.startswith("the buffer") and before is None:
            return  # each replica writes the same to its copy
        if description and before is None:
            raise MixesSamples(f"writes to {description}")

    def _compare(self, entry: Entry) -> Entry | None:
        """Add an entry; return its counterpart in the reference, or None if layouts are unknown."""
        index = len(self.entries) + self._num_skipped
        self.entries.append(entry)
        if self._reference is None:
            return None
        with self.naming_operator(entry.name):
            expected_entries = self._reference.entries
            while (
                not self._infers_layouts
                and expected_entries[index : index + 1]
                and _is_copy(expected_entries[index], entry)
            ):  # (a single sample is contiguous where several are not)
                self._num_skipped += 1
                index += 1
            counts = f"{counted(self.num_samples, 'sample')} and {self._reference.num_samples}"
            if index >= len(expected_entries) or expected_entries[index].name != entry.name:
                expected_name = (
                    expected_entries[index].name if index < len(expected_entries) else "nothing"
                )
                raise MixesSamples(
                    f"is not computed for other numbers of samples ({counts}): {expected_name} is"
                )
            expected = expected_entries[index]
            if len(expected.shapes) != len(entry.shapes) or any(
                len(left_shape) != len(right_shape)
                for left_shape, right_shape in zip(expected.shapes, entry.shapes, strict=True)
            ):
                raise MixesSamples(f"gives results of other dimensions for {counts}")
            if not self._are_constants_alike(entry, expected):
                raise MixesSamples(f"is given other numbers for {counts}")
            if self._infers_layouts:
                return expected
            for left_shape, right_shape in zip(entry.shapes, expected.shapes, strict=True):
                self._check_sizes(left_shape, right_shape)
            return None

    def _check_sizes(self, shape: Sequence[int], reference: Sequence[int]) -> None:
        """Raise unless each size is that of the reference, or its share of one sample."""
        assert self._reference is not None
        for size, reference_size in zip(shape, reference, strict=True):
            if size not in (reference_size, reference_size / self._reference.num_samples):
                raise MixesSamples("has another size for a single sample")

    def _are_constants_alike(self, entry: Entry, expected: Entry) -> bool:
        """Return whether constants are equal, or are sizes in proportion to the batch."""
        if entry.name not in SIZES:
            return bool(entry.constants == expected.constants)
        assert self._reference is not None
        counts = self.num_samples, self._reference.num_samples
        return all(
            value == expected_value
            or (name in SIZE_ARGUMENTS and _is_proportional(value, expected_value, *counts))
            for (name, value), (_, expected_value) in zip(
                entry.constants, expected.constants, strict=True
            )
        )

    def finish(self) -> None:
        """Raise CannotShard if there is a reason, even if the model caught an earlier one."""
        if self.reason is None and self._reference is not None:
            missing = self._reference.entries[len(self.entries) + self._num_skipped :]
            if missing:
                self.reason = (
                    f"it computes {missing[0].name} for "
                    f"{counted(self._reference.num_samples, 'sample')}, and not for "
                    f"{self.num_samples}"
                )
        if self.reason is not None:
            raise CannotShard(self.reason)

    def refuse(self, reason: str) -> None:
        """Raise CannotShard and keep the first reason for `finish`."""
        self.reason = self.reason or reason
        raise CannotShard(reason)

    @contextmanager
    def naming_operator(self, name: str) -> Iterator[None]:
        """Refuse with the names of the operator and module where the block raises MixesSamples."""
        try:
            yield
        except MixesSamples as error:
            what = name if " " in name else f"the operator {name}"
            self.refuse(f"{what} in {self.place_of_call()} {error}")

    def place_of_call(self) -> str:
        """Return name and class of the innermost module whose forward is running."""
        names = {id(module): name for name, module in self._model.named_modules()}
        frame: Any = sys._getframe()
        while frame is not None:
            frame_self = frame.f_locals.get("self")
            if isinstance(frame_self, nn.Module) and id(frame_self) in names:
                name = names[id(frame_self)]
                return (
                    f"{name} ({type(frame_self).__name__})" if name else type(frame_self).__name__
                )
            frame = frame.f_back
        return type(self._model).__name__

    # -- layouts of tensors

    def _storage(self, tensor: torch.Tensor) -> int:
        """Return the address of a tensor's storage, and keep the storage alive."""
        if tensor.layout is not torch.strided:
            self._keep_alive.append(tensor)
            return id(tensor)
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
        self._keep_alive.append(storage)
        return int(storage._cdata)

    def _key(self, tensor: torch.Tensor) -> Any:
        """Return storage, offset, shape and strides, which identify a view."""
        if tensor.layout is not torch.strided:
            return self._storage(tensor), 0, (), ()
        return (
            self._storage(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(),
        )  # fmt: skip

    def _set(self, tensor: torch.Tensor, layout: Layout) -> None:
        """Set the layout of a view of a storage."""
        key = self._key(tensor)
        self._layouts[key] = layout
        self._descriptions.setdefault(key[0], "")
        if layout is not None:
            self._sharded_storages.add(key[0])


class _FunctionMode(TorchFunctionMode):
    """Function mode for calls without a kernel: reads of values, hooks, and one-hot."""

    def __init__(self, recorder: OperatorRecorder) -> None:
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
            with recorder.naming_operator(ESCAPES[func]):
                if recorder._infers_layouts and recorder.layout(args[0]) is not None:
                    raise MixesSamples("takes values of samples out of torch")
                if func in VALUES:
                    raise MixesSamples("reads the value of a tensor, by which the model may decide")
        if func is torch.nn.functional.one_hot:
            return self._one_hot(*args, **kwargs)
        return func(*args, **kwargs)

    def _one_hot(self, tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        """Run one_hot; with a fixed number of classes, record it as a single operator."""
        if num_classes < 0:
            return torch.nn.functional.one_hot(tensor, num_classes)
        with self._recorder.opaque():
            output = torch.nn.functional.one_hot(tensor, num_classes)
        self._recorder.one_hot(tensor, output)
        return output


def _is_called_by_torch() -> bool:
    """Return whether the function that a mode sees was called from torch."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith("overrides.py"):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("torch.")


def _is_copy(entry: Entry, expected: Entry) -> bool:
    """Return whether the first entry is a `clone` and the second is not."""
    return entry.name == "clone" != expected.name


def _is_composite(func: Any) -> bool:
    """Return whether an operator decomposes into others (CompositeImplicitAutograd)."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _makes_rows(name: str) -> bool:
    """Return whether an operator may make a row for each sample from replicated inputs."""
    return name in ("expand", "repeat", "arange") or name in SIZES


def _bind_arguments(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Bind arguments to names, with defaults for missing ones."""
    bound: dict[str, Any] = {}
    for index, argument in enumerate(func._schema.arguments):
        if index < len(args) and not argument.kwarg_only:
            bound[argument.name] = args[index]
        elif argument.name in kwargs:
            bound[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            bound[argument.name] = argument.default_value
    return bound


def _tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists and tuples."""
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += _tensors(value)
    return tensors


def _constants(arguments: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return names and comparable values of the arguments that are compared."""
    return [(key, _comparable(value)) for key, value in arguments.items() if key not in IGNORED]


def _is_proportional(size: Any, reference_size: Any, count: int, reference_count: int) -> bool:
    """Return whether sizes, or tuples of sizes, are equal or in proportion to the samples."""
    if isinstance(size, tuple) and isinstance(reference_size, tuple):
        return len(size) == len(reference_size) and all(
            _is_proportional(item, reference_item, count, reference_count)
            for item, reference_item in zip(size, reference_size, strict=True)
        )
    if not isinstance(size, int) or not isinstance(reference_size, int):
        return bool(size == reference_size)
    return size == reference_size or size * reference_count == reference_size * count


def _comparable(value: Any) -> Any:
    """Return a comparable value in which tensors are replaced by the word "tensor"."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, list | tuple):
        return tuple(_comparable(item) for item in value)
    if isinstance(value, dict):
        return tuple(
            (name, _comparable(item)) for name, item in value.items() if name not in IGNORED
        )
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, torch.UntypedStorage | torch.TypedStorage):
        return "a storage"
    return value


def _values(tensor: torch.Tensor) -> Any:
    """Return a hash of a constant's values; its shape if there are none to read."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        if tensor.layout is not torch.strided or tensor.is_meta:
            return str(tensor.layout), tuple(tensor.shape)
        plain = tensor.detach().cpu().contiguous()
        if plain.dtype in (torch.bfloat16, torch.float16):
            plain = plain.float()
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return tuple(tensor.shape) if not raw else hashlib.sha256(raw).hexdigest()
