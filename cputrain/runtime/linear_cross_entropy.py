"""Compute the gradients of a linear layer with the cross entropy of its output.

The gradient of the output of a language model's last layer, a number for each token and each word
of the vocabulary, is often the largest tensor of a step. Here it is computed for some rows at a
time, multiplied with the layer's weight and input, and forgotten.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge

from cputrain.runtime.replaced_builtin import replace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from cputrain.kernels.cross_entropy import CrossEntropyKernels
    from cputrain.runtime.patching import Patch
    from cputrain.runtime.plain_tensors import PlainTensors

MIN_ELEMENTS = 1 << 23
"""Fewest elements of an output whose gradient is worth the chunks: 32 MiB."""

CHUNK_ELEMENTS, MIN_ROWS = 1 << 23, 128
"""Elements of a chunk, and its fewest rows: products of fewer rows are slower."""

VIEWS = frozenset({"ViewBackward0", "UnsafeViewBackward0"})
"""Nodes of a graph that leave the memory of a tensor as it is."""

Gradients = tuple["Tensor | None", "Tensor | None", "Tensor | None"]
"""Gradients of a layer's input, weight and bias; None for those that require none."""

ADDMM = "AddmmBackward0"

PRODUCTS = frozenset({"MmBackward0", ADDMM})
"""Nodes of a layer's product, without and with a bias."""


class LinearLayer(NamedTuple):
    """The tensors from which an output was computed, with their places in the graph."""

    input: Tensor
    weight: Tensor
    """The weight, transposed: (features of the input, features of the output)."""

    bias: Tensor | None
    """The bias, if it requires a gradient."""

    outputs: tuple[Tensor, ...]
    """The output and those that it is a view of, as far as the script may have them."""


class LinearCall(NamedTuple):
    """A call of a linear layer whose output is alive."""

    memory: weakref.ref[Tensor]
    """The tensor that has the memory of the output: itself, or what it is a view of."""

    output: weakref.ref[Tensor]
    input: Tensor
    version: int
    """Number of times that the input had been written to."""


class LinearCalls:
    """The last call of a large linear layer.

    The graph has no input where the weight is frozen, and no output of a layer with a bias.
    """

    def __init__(self, tensors: PlainTensors) -> None:
        self._tensors = tensors
        self._linear = torch._C._nn.linear
        self._last: LinearCall | None = None
        self.patches: list[Patch] = []

    def start(self) -> None:
        """Remember calls from now on."""
        if not self.patches:
            places = (torch._C._nn, torch.nn.functional)
            self.patches = replace(places, "linear", self._compute)

    def _compute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Return the output of a large layer; None for others."""
        if (
            len(args) < 2
            or kwargs
            or not self._tensors.types.issuperset(map(type, args[:2]))
            or not args[0].requires_grad
            or args[0].dim() < 2
            or args[0].numel() // max(1, args[0].size(-1)) * args[1].size(0) < MIN_ELEMENTS
            or not torch.is_grad_enabled()
            or not self._tensors.is_eager()
            or not self._tensors.have_plain_keys(args[:2])
        ):
            return None
        output: Tensor = self._linear(*args)
        memory = weakref.ref(_root(output), self._forget)
        self._last = LinearCall(memory, weakref.ref(output), args[0], args[0]._version)
        return output

    def _forget(self, memory: weakref.ref[Tensor]) -> None:
        if self._last is not None and self._last.memory is memory:
            self._last = None

    def of(self, output: Tensor) -> LinearCall | None:
        """Return the call with this output or a view of it; None if the input has been changed."""
        last = self._last
        if last is None or last.memory() is not _root(output):
            return None
        self._last = None
        return last if last.input._version == last.version else None


def _root(tensor: Tensor) -> Tensor:
    return tensor if tensor._base is None else tensor._base


def layer_of(data: Tensor, tensors: PlainTensors, calls: LinearCalls) -> LinearLayer | None:
    """Return the layer whose output, in two dimensions, is `data`; None if that is not certain.

    Its graph has to be that of torch.nn.functional.linear and of views of its output.
    """
    if data._version != 0:  # written to, perhaps where no graph records it
        return None
    call = calls.of(data)
    known = (data, data._base, None if call is None else call.output())
    outputs = tuple(tensor for tensor in known if tensor is not None)
    nodes = {tensor.grad_fn for tensor in outputs}
    node: Any = data.grad_fn
    while node in nodes and node.name() in VIEWS and not isinstance(node, BackwardCFunction):
        node = node.next_functions[0][0]
    if node is None or isinstance(node, BackwardCFunction) or node.name() not in PRODUCTS:
        if node is not None and node.name() in VIEWS:
            calls.start()  # of an output that the script may have
        return None
    is_addition = node.name() == ADDMM
    if is_addition and not (node._saved_alpha == node._saved_beta == 1 and _has_bias(node)):
        return None
    sizes = node._saved_mat1_sym_sizes if is_addition else node._saved_self_sym_sizes
    if (sizes[0], node._saved_mat2_sym_sizes[1]) != data.shape:
        return None
    try:
        layer_input = node._saved_mat1 if is_addition else node._saved_self
        weight = node._saved_mat2
    except RuntimeError:  # written to since, or freed: torch has words for it
        return None
    if layer_input is None and weight is not None:
        calls.start()
        layer_input = None if call is None else call.input
    if layer_input is None or weight is None or not tensors.have_plain_keys([layer_input, weight]):
        return None
    bias = getattr(node.next_functions[0][0], "variable", None) if is_addition else None
    return LinearLayer(layer_input.reshape(sizes), weight, bias, outputs)


def _has_bias(addition: Any) -> bool:
    """Return whether what is added is a parameter of one dimension, or requires no gradient."""
    node = addition.next_functions[0][0]
    if node is None:
        return True
    bias = getattr(node, "variable", None)
    return bias is not None and tuple(bias.shape) == tuple(addition._saved_mat2_sym_sizes[1:])


def compute(
    kernels: CrossEntropyKernels,
    output: Tensor,
    targets: Tensor,
    ignored: int,
    layer: LinearLayer,
    *,
    is_mean: bool,
) -> tuple[Tensor, Gradients] | None:
    """Return the loss, and the gradients of the layer; None if a target is no class."""
    num_rows, num_classes = output.shape
    reduction = kernels.reduction(targets, num_classes, ignored, is_mean=is_mean)
    if reduction is None:
        return None
    input_grad = torch.empty_like(layer.input) if layer.input.requires_grad else None
    weight_grad = torch.empty_like(layer.weight.t()) if layer.weight.requires_grad else None
    bias_grad = None if layer.bias is None else torch.zeros_like(layer.bias)
    step = max(MIN_ROWS, CHUNK_ELEMENTS // num_classes)
    buffer = torch.empty((min(step, num_rows), num_classes), device="cpu")
    total = 0.0
    for start in range(0, num_rows, step):
        rows = slice(start, start + step)
        grad = buffer[: num_rows - start]
        total += kernels.compute_rows(output[rows], targets[rows], ignored, reduction.scale, grad)
        if input_grad is not None:
            torch.mm(grad, layer.weight.t(), out=input_grad[rows])
        if weight_grad is not None:
            weight_grad.addmm_(grad.t(), layer.input[rows], beta=0 if start == 0 else 1)
        if bias_grad is not None:
            bias_grad += grad.sum(0)
    weight_grad = None if weight_grad is None else weight_grad.t()
    return reduction.loss(total), (input_grad, weight_grad, bias_grad)


def have_hooks(outputs: Iterable[Tensor]) -> bool:
    """Return whether hooks, or the script, have use for the gradients of outputs."""
    return any(bool(tensor._backward_hooks or tensor.retains_grad) for tensor in outputs)


def is_whole_backward(mark: Tensor) -> bool:
    """Return whether the backward pass that runs was called without inputs.

    Args:
        mark: A leaf of the graph that is no input of any backward pass.
    """
    will: bool = torch._C._will_engine_execute_node(get_gradient_edge(mark).node)
    return will
