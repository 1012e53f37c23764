"""Compile models with torch.compile after their first whole training step.

Compiled models do not support double backward; the first step shows whether the script uses it, and
such a script is not compiled. Evaluation is not compiled: it seldom repays the compilation time.
"""

from __future__ import annotations

import weakref

from cputrain.counting import counted
from cputrain.runtime.double_backward import DoubleBackward
from cputrain.runtime.module_hooks import ModuleHooks
from cputrain.runtime.patching import skip_frames
from cputrain.runtime.root_forward import is_watched, root_forward_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

EXACT = {"fallback_random": True}
"""Inductor config that keeps torch's random numbers, so that dropout drops the same values."""

EXACT_WITHIN_CHECKPOINTS = {**EXACT, "layout_optimization": False}
"""The same within activation checkpoints, where random numbers follow convolutions' layout."""


class Compiled:
    """The models that are trained, and those of them that were compiled."""

    def __init__(self, torch: ModuleType) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._torch = torch
        self._num_steps = 0
        self._num_steps_at_first_call: weakref.WeakKeyDictionary[Any, int] = (
            weakref.WeakKeyDictionary()
        )
        self._compiled: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._shared_call: Any = None
        self._num_graphs = 0
        self._previous_config: list[tuple[Any, str, Any]] = []
        self._compiled_classes: set[type] = set()
        self._num_compiled = 0
        self._refusals: dict[str, None] = {}
        self._is_ready = False
        self._hooks = ModuleHooks(torch)
        self._double_backward = DoubleBackward(torch)
        self._root_forward = root_forward_of(torch)
        self._root_forward.add(self._intercept)
        self._hook = register_optimizer_step_post_hook(self._after_step)
        skip_frames(Compiled._after_step.__code__)

    def _after_step(self, *_: object) -> None:
        if not self._torch.compiler.is_compiling():
            self._num_steps += 1

    def _intercept(self, call: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not self._can_run_compiled():
            return call(model, *args, **kwargs)
        run = self._compiled.get(model)
        if run is not None:
            if self._hooks.find(model):  # registered since: compiled code does not call it
                return call(model, *args, **kwargs)
            return run(model, *args, **kwargs)
        if model not in self._num_steps_at_first_call:
            return self._check_mutation(call, model, *args, **kwargs)
        if self._num_steps > self._num_steps_at_first_call[model]:
            self._num_steps_at_first_call[model] = FOREVER  # compilation is tried once
            if self._can_compile(model):
                return self._compile_and_run(model, *args, **kwargs)
        return call(model, *args, **kwargs)

    def _check_mutation(
        self, call: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Run a model's first call in training, and check whether it mutates its own tensors.

        Where these enter the output, as those of spectral_norm do, Inductor of torch 2.13 computes
        wrong gradients: from the values after the mutation instead of those that were read.
        """
        before = [
            (tensor, tensor._version)
            for tensor in self._tensors_of(model)
            if tensor is not None and not tensor.is_inference()
        ]
        output = call(model, *args, **kwargs)
        is_mutating = any(tensor._version != version for tensor, version in before)
        if (
            is_mutating and next(model.parameters(), None) is not None
        ):  # metrics, which have no parameters, do so too
            self._refuse(model, "its forward writes to its own tensors")
        self._num_steps_at_first_call[model] = FOREVER if is_mutating else self._num_steps
        return output

    def _tensors_of(self, model: Any) -> Iterator[Any]:
        for module in model.modules():
            yield from module._parameters.values()
            if not isinstance(module, self._torch.nn.modules.batchnorm._NormBase):
                yield from module._buffers.values()  # running statistics do not enter the output

    def _can_run_compiled(self) -> bool:
        """Return whether gradients are recorded, and neither a checkpoint nor a mode is active."""
        torch = self._torch
        return (
            torch.is_grad_enabled()
            and not self._double_backward.is_used
            and torch._C._current_graph_task_id() == -1
            and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
            and not is_watched(torch)
        )

    def _can_compile(self, model: Any) -> bool:
        """Return whether a model is on the CPU, without hooks or modules compiled by the script."""
        from torch._dynamo import OptimizedModule

        if not any(parameter.is_cpu for parameter in model.parameters()):
            return False
        reason = self._hooks.find(model)
        if reason:
            self._refuse(model, reason)
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

    def _compile_and_run(self, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._get_ready()
        before = self._num_graphs
        run = self._compiled[model] = self._compile(model)
        output = run(model, *args, **kwargs)
        # a model of a class compiled before may reuse its graphs
        if self._num_graphs > before or type(model) in self._compiled_classes:
            self._num_compiled += 1
            if run is self._shared_call:
                self._compiled_classes.add(type(model))
        else:
            del self._compiled[model]
            self._refuse(model, "torch.compile finds nothing in it that it can compile")
        return output

    def _compile(self, model: Any) -> Any:
        """Return a compiled function of the model and its arguments, without a reference to it."""
        from torch._dynamo import trace_rules

        if trace_rules.check(model.forward):  # a torch function: Dynamo skips its frames

            def run(model: Any, /, *args: Any, **kwargs: Any) -> Any:
                return model(*args, **kwargs)

            # Dynamo caches by code object, at most eight entries each
            run.__code__ = run.__code__.replace()
            return self._root_forward.compile(run, backend=self._inductor)
        if self._shared_call is None:
            call = self._torch.nn.Module._call_impl
            self._shared_call = self._root_forward.compile(call, backend=self._inductor)
        return self._shared_call

    def _inductor(self, graph: Any, inputs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        torch = self._torch
        checkpoint = torch.ops.higher_order.tag_activation_checkpoint
        subgraphs = (
            subgraph for subgraph in graph.modules() if isinstance(subgraph, torch.fx.GraphModule)
        )
        has_checkpoint = any(
            node.target is checkpoint for subgraph in subgraphs for node in subgraph.graph.nodes
        )
        patches: dict[str, Any] = dict(EXACT_WITHIN_CHECKPOINTS if has_checkpoint else EXACT)
        output = compile_fx(graph, inputs, config_patches=patches)
        self._num_graphs += 1
        return output

    def _get_ready(self) -> None:
        if self._is_ready:
            return
        self._is_ready = True
        import logging
        import os
        import warnings

        import torch._dynamo.config
        import torch._functorch.config

        self._configure(torch._functorch.config, "donated_buffer", value=False)  # retain_graph=True
        # what cannot be compiled runs eagerly, and silently unless TORCH_LOGS is set
        self._configure(torch._dynamo.config, "suppress_errors", value=True)
        if "TORCH_LOGS" not in os.environ:
            logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
            warnings.filterwarnings("ignore", module=r"torch\._(dynamo|inductor|functorch)\.")

    def _configure(self, config: Any, name: str, *, value: bool) -> None:
        self._previous_config.append((config, name, getattr(config, name)))
        setattr(config, name, value)

    def describe(self) -> str:
        subgraphs = (
            [f"{counted(self._num_compiled, 'model')} compiled"] if self._num_compiled else []
        )
        if self._double_backward.is_used:
            subgraphs.append("models left uncompiled: the script differentiates gradients again")
        return ", ".join([*subgraphs, *self._refusals])

    def undo(self) -> None:
        self._root_forward.remove(self._intercept)
        self._hook.remove()
        self._double_backward.undo()
        for config, name, value in self._previous_config:
            setattr(config, name, value)


FOREVER = 1 << 62
"""More steps than a run has: the model is not compiled any more."""
