"""Compiles models once they have been through a whole step of training.

Not before, as no compiled model can be differentiated twice: a script that asks for that is left as
it is, and it has asked by then. Evaluation runs uncompiled: it is seldom worth the time that
compiling takes.
"""

from __future__ import annotations

import weakref

from cputrain.runtime.double_backward import DoubleBackward
from cputrain.runtime.module_hooks import ModuleHooks
from cputrain.runtime.patching import pass_by
from cputrain.runtime.root_forward import is_watched, outermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

POLICY = "compile"

EXACT = {"fallback_random": True}
"""Inductor's own random numbers are others than torch's: with those, dropout drops other values."""

EXACT_WITHIN_CHECKPOINTS = {**EXACT, "layout_optimization": False}
"""There, random numbers are drawn in the order of memory that convolutions are given."""


class Compiled:
    """The models that are trained, and those that were compiled."""

    def __init__(self, torch: ModuleType) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._torch = torch
        self._steps = 0
        self._since: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._compiled: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._shared: Any = None
        self._graphs = 0
        self._configured: list[tuple[Any, str, Any]] = []
        self._kinds: set[type] = set()
        self._count = 0
        self._refusals: dict[str, None] = {}
        self._ready = False
        self._hooks = ModuleHooks(torch)
        self._derivatives = DoubleBackward(torch)
        self._outermost = outermost(torch)
        self._outermost.add(self._around)
        self._hook = register_optimizer_step_post_hook(self._stepped)
        pass_by(Compiled._stepped.__code__)

    def _stepped(self, *_: object) -> None:
        if not self._torch.compiler.is_compiling():
            self._steps += 1

    def _around(self, call: Callable[..., Any], model: Any, /, *args: Any, **options: Any) -> Any:
        if not self._may_run_compiled():
            return call(model, *args, **options)
        run = self._compiled.get(model)
        if run is not None:
            if self._hooks.find(model):  # registered since: what is compiled does not call it
                return call(model, *args, **options)
            return run(model, *args, **options)
        if model not in self._since:
            return self._watch(call, model, *args, **options)
        if self._steps > self._since[model]:
            self._since[model] = FOREVER  # whatever comes of it, once is enough
            if self._may_compile(model):
                return self._first(model, *args, **options)
        return call(model, *args, **options)

    def _watch(self, call: Callable[..., Any], model: Any, /, *args: Any, **options: Any) -> Any:
        """Its first call in training: does it write to tensors of its own?

        Where these enter its output, as those of spectral_norm do, Inductor of torch 2.13 computes
        gradients from what is written, and not from what was read: wrong ones.
        """
        before = [
            (tensor, tensor._version)
            for tensor in self._own_tensors(model)
            if tensor is not None and not tensor.is_inference()
        ]
        made = call(model, *args, **options)
        writes = any(tensor._version != version for tensor, version in before)
        if writes and next(model.parameters(), None) is not None:  # a metric does so, too
            self._refuse(model, "its forward writes to its own tensors")
        self._since[model] = FOREVER if writes else self._steps
        return made

    def _own_tensors(self, model: Any) -> Iterator[Any]:
        for module in model.modules():
            yield from module._parameters.values()
            if not isinstance(module, self._torch.nn.modules.batchnorm._NormBase):
                yield from module._buffers.values()  # statistics do not enter the output

    def _may_run_compiled(self) -> bool:
        """Training, and nobody between the model and torch: a checkpoint, or what counts."""
        torch = self._torch
        return (
            torch.is_grad_enabled()
            and not self._derivatives.twice
            and torch._C._current_graph_task_id() == -1
            and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
            and not is_watched(torch)
        )

    def _may_compile(self, model: Any) -> bool:
        """It is on the CPU, and the script has not compiled it, or a part of it, by itself."""
        from torch._dynamo import OptimizedModule

        if not any(parameter.is_cpu for parameter in model.parameters()):
            return False
        hooked = self._hooks.find(model)
        if hooked:
            self._refuse(model, hooked)
            return False
        for module in model.modules():
            if isinstance(module, OptimizedModule) or module._compiled_call_impl is not None:
                self._refuse(model, "the script compiles it")
                return False
            if isinstance(module, self._torch.jit.ScriptModule):
                self._refuse(model, "torch.jit compiled it")
                return False
        return True

    def _refuse(self, model: Any, reason: str) -> None:
        self._refusals[f"{type(model).__name__} left uncompiled: {reason}"] = None

    def _first(self, model: Any, /, *args: Any, **options: Any) -> Any:
        self._get_ready()
        before = self._graphs
        run = self._compiled[model] = self._compile(model)
        made = run(model, *args, **options)
        # one of the same class may share what was compiled for another
        if self._graphs > before or type(model) in self._kinds:
            self._count += 1
            if run is self._shared:
                self._kinds.add(type(model))
        else:
            del self._compiled[model]
            self._refuse(model, "torch.compile finds nothing in it that it can compile")
        return made

    def _compile(self, model: Any) -> Any:
        """A function of the model and its arguments. It holds no model: those may end."""
        from torch._dynamo import trace_rules

        if trace_rules.check(model.forward):  # torch's own: it looks at those from outside only

            def run(model: Any, /, *args: Any, **options: Any) -> Any:
                return model(*args, **options)

            # torch keeps what it compiled with the code, and up to eight of one
            run.__code__ = run.__code__.replace()
            return self._outermost.compile(run, backend=self._inductor)
        if self._shared is None:
            call = self._torch.nn.Module._call_impl
            self._shared = self._outermost.compile(call, backend=self._inductor)
        return self._shared

    def _inductor(self, graph: Any, inputs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        torch = self._torch
        checkpoint = torch.ops.higher_order.tag_activation_checkpoint
        parts = (part for part in graph.modules() if isinstance(part, torch.fx.GraphModule))
        within = any(node.target is checkpoint for part in parts for node in part.graph.nodes)
        patches: dict[str, Any] = dict(EXACT_WITHIN_CHECKPOINTS if within else EXACT)
        made = compile_fx(graph, inputs, config_patches=patches)
        self._graphs += 1
        return made

    def _get_ready(self) -> None:
        if self._ready:
            return
        self._ready = True
        import logging
        import os
        import warnings

        import torch._dynamo.config
        import torch._functorch.config

        self._configure(torch._functorch.config, "donated_buffer", value=False)  # retain_graph=True
        # what cannot be compiled runs as it is, and without a word unless somebody wants to hear it
        self._configure(torch._dynamo.config, "suppress_errors", value=True)
        if "TORCH_LOGS" not in os.environ:
            logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
            warnings.filterwarnings("ignore", module=r"torch\._(dynamo|inductor|functorch)\.")

    def _configure(self, config: Any, name: str, *, value: bool) -> None:
        self._configured.append((config, name, getattr(config, name)))
        setattr(config, name, value)

    def describe(self) -> str:
        parts = [f"{self._count} model{'s' * (self._count != 1)} compiled"] if self._count else []
        if self._derivatives.twice:
            parts.append("models left uncompiled: the script differentiates gradients again")
        return ", ".join([*parts, *self._refusals])

    def undo(self) -> None:
        self._outermost.remove(self._around)
        self._hook.remove()
        self._derivatives.undo()
        for config, name, value in self._configured:
            setattr(config, name, value)


FOREVER = 1 << 62
"""More steps than there will be."""


def apply(torch: ModuleType, value: object) -> Compiled | None:
    """Wait for models to be trained."""
    return Compiled(torch) if value else None
