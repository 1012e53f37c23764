"""Compile graphs in a thread, while the script goes on."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING

import torch
from torch.fx import _symbolic_trace

from cputrain.runtime.patching import Patch
from cputrain.step.compiled_step import compile_graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from torch import Tensor
    from torch.fx import GraphModule

    from cputrain.step.compiled_step import Compiled

_waiting: queue.SimpleQueue[tuple[Future[Any], GraphModule, list[Tensor]]] = queue.SimpleQueue()
_threads: list[threading.Thread] = []


def compile_in_background(graph: GraphModule, tensors: Sequence[Tensor]) -> Future[Compiled]:
    """Compile a graph in C++; a script does not wait for it.

    Args:
        graph: The graph.
        tensors: Tensors like its arguments.
    """
    future: Future[Compiled] = Future()
    # those of the script have gradients, which it may free while they are looked at
    detached = [tensor.detach() for tensor in tensors]
    _waiting.put((future, graph, detached))
    if not _threads or not _threads[0].is_alive():  # not so in a forked child
        _threads[:] = [threading.Thread(target=_work, name="cputrain-step", daemon=True)]
        _threads[0].start()
    return future


def _work() -> None:
    while True:
        future, graph, tensors = _waiting.get()
        with _beside_script():
            try:
                future.set_result(compile_graph(graph, tensors))
            except BaseException as error:
                future.set_exception(error)


@contextmanager
def _beside_script() -> Iterator[None]:
    """Keep torch, while it compiles, from changing what the script uses meanwhile.

    Inductor sets torch's generator to what it was when compiling began; the script has drawn from
    it since. A tracer of torch.fx patches the calls of all modules, also those of the script.
    """
    thread, original = threading.get_ident(), torch.random.set_rng_state

    @wraps(original)
    def set_rng_state(new_state: Tensor) -> None:
        if threading.get_ident() != thread:
            original(new_state)

    patcher: Any = _symbolic_trace._Patcher
    patch_method = patcher.patch_method

    @wraps(patch_method)
    def patch_other_method(self: Any, cls: type, *args: Any, **kwargs: Any) -> None:
        if threading.get_ident() != thread or cls is not torch.nn.Module:
            patch_method(self, cls, *args, **kwargs)

    patches = [
        Patch(torch.random, "set_rng_state", set_rng_state),
        Patch(patcher, "patch_method", patch_other_method),
    ]
    try:
        yield
    finally:
        for patch in patches:
            patch.undo()
