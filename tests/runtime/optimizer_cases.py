"""Small training scripts, generated from a seed, run with and without fused optimizers.

A case is a list of lines. Each runs by itself, and what it raises is noted as a part of the result:
the next one runs all the same. Lines work on names of `PRELUDE`, and on these:

    P       the parameters                  opt     the optimizer
    grads   sets gradients from a seed      loss    a number that depends on all parameters
    L       what the script has seen: losses, versions, operators
"""

from __future__ import annotations

import random
import re
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from cputrain.runtime.fused import FusedOptimizers

Lines = list[str]

LOGS = "torch.testing._internal.logging_tensor.capture_logs_with_logging_tensor_mode()"

SPECIAL = (
    "0., -0., 1., -1., 1e-45, -1e-40, 1e-30, 1e-20, 1e19, -3e19, 3.4e38, -3.4e38, inf, -inf, nan"
)

PRELUDE = (
    "import copy, pickle, numpy, re; from math import inf, nan; L, P, A = [], [], []; "
    f"SPECIAL = [{SPECIAL}]"
)

OPTIONS: dict[str, tuple[str, ...]] = {
    "Adam": (
        "", "lr=0.01", "weight_decay=0.1", "weight_decay=0.1, maximize=True", "amsgrad=True",
        "weight_decay=0.1, amsgrad=True", "betas=(0.5, 0.6)", "betas=(0.0, 0.9)", "maximize=True",
        "eps=1e-3, lr=1", "decoupled_weight_decay=True, weight_decay=0.1", "betas=(0.9, 0.0)",
    ),
    "AdamW": (
        "", "lr=0.01", "weight_decay=0.0", "weight_decay=0.3, maximize=True",
        "lr=0.1, amsgrad=True",
    ),
    "SGD": (
        "lr=0.1", "lr=0.1, weight_decay=0.5", "lr=0.1, momentum=0.9", "lr=0.1, maximize=True",
        "lr=0.1, momentum=0.9, dampening=0.5", "lr=0.1, momentum=0.9, weight_decay=0.1",
        "lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1", "lr=1, momentum=1, dampening=1",
        "lr=0.1, momentum=0.5, maximize=True",
    ),
    "Adagrad": (
        "", "weight_decay=0.1", "weight_decay=0.1, maximize=True", "lr=0.1, lr_decay=0.5",
        "initial_accumulator_value=0.1", "eps=0.1", "maximize=True",
    ),
}  # fmt: skip
"""What torch's own tests give to these optimizers, and more."""

SHARED_OPTIONS = (
    # fused=True is torch's own, which reads beyond the memory of gradients that are expanded
    "foreach=True", "foreach=False", "fused=False", "differentiable=True",
    "lr=torch.tensor(0.01)", "lr=numpy.float64(0.01)",
)  # fmt: skip

SHAPES = ("()", "1", "3", "8", "16", "0", "4, 5", "2, 3, 2, 2", "1, 7", "3, 1, 2, 2")

ODD_PARAMETERS = (
    "torch.nn.Parameter(torch.randn(6, 6)[:, :3])",
    "torch.nn.Parameter(torch.randn(4, 5).t())",
    "torch.nn.Parameter(torch.randn(3).expand(2, 3))",
    "torch.nn.Parameter(torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last))",
    "torch.nn.Parameter(torch.randn(4, 1, 3, 3).to(memory_format=torch.channels_last))",
    "torch.nn.Parameter(torch.empty_strided((3, 1, 2), (2, 17, 1)).fill_(0.5))",
    "torch.nn.Parameter(torch.randn(4, dtype=torch.bfloat16))",
    "torch.nn.Parameter(torch.randn(4, dtype=torch.complex64))",
    "torch.nn.Parameter(torch.randn(5, dtype=torch.float64))",
    "torch.nn.Parameter(torch.randn(5), requires_grad=False)",
    'type("Mine", (torch.nn.Parameter,), {})(torch.randn(4))',
    "torch.nn.Parameter(torch.randn(40000))",
    "torch.nn.Parameter(torch.randn(5).share_memory_())",
    "torch.randn(6, requires_grad=True)",
    "torch.nn.Parameter(torch.zeros(4, device='meta'))",
    "P[0]",
    "torch.nn.Parameter(P[0].data)",
    "torch.nn.Parameter(P[0].data.view(-1)[:1])",
    "torch.nn.Parameter(torch.randn(1, dtype=torch.complex64).conj().imag)",
    "torch.nn.Parameter(torch._neg_view(torch.randn(4)))",
    "torch.randn(9)[2:7].requires_grad_()",
)

GRADIENTS = (
    "torch.randn(p.shape).to(p)",
    "torch.randn(p.shape).to(p)",
    "torch.randn(p.shape).to(p)",
    "torch.zeros_like(p)",
    "-torch.zeros_like(p)",
    "torch.randn(p.shape).to(p) * 1e20",
    "torch.randn(p.shape).to(p) * 1e-25",
    "torch.tensor(SPECIAL)[torch.randint(15, p.shape)].to(p)",
    "torch.ones(()).to(p).expand_as(p)",
    "torch.randn((*p.shape, 2)).to(p)[..., 0]",
    "p.data",
    "p.detach().clone()",
    "torch.randn(p.shape).to(p).to_sparse()",
)

GROUP_CHANGES = (
    '"lr"] = inf', '"lr"] = nan', '"lr"] = 0.0', '"lr"] = -0.1', '"lr"] = 1e39', '"lr"] = 1e30',
    '"lr"] = torch.tensor(0.1)', '"lr"] = numpy.float64(0.1)', '"lr"] = numpy.float32(0.1)',
    '"lr"] = True', '"lr"] = 1', '"lr"] = None', '"lr"] = "0.1"', '"lr"] *= 0.5',
    '"weight_decay"] = nan', '"weight_decay"] = inf', '"weight_decay"] = -0.1',
    '"weight_decay"] = torch.tensor(0.1)', '"weight_decay"] = 1e39', '"weight_decay"] = 0.1',
    '"betas"] = (1.0, 0.9)', '"betas"] = (0.9, 1.0)', '"betas"] = (-0.5, 0.9)',
    '"betas"] = (0.9, 1.5)', '"betas"] = (nan, 0.9)', '"betas"] = (0.9, inf)', '"betas"] = (0, 0)',
    '"betas"] = (torch.tensor(0.9), torch.tensor(0.99))', '"eps"] = 0', '"eps"] = nan',
    '"eps"] = inf', '"eps"] = -1e-3', '"eps"] = 1e-50', '"eps"] = None', '"momentum"] = 0.9',
    '"momentum"] = 0', '"momentum"] = 1.5', '"momentum"] = -0.9', '"momentum"] = nan',
    '"dampening"] = 2', '"dampening"] = -1', '"nesterov"] = 1', '"nesterov"] = True',
    '"maximize"] = 1', '"maximize"] = True', '"amsgrad"] = True', '"amsgrad"] = 1',
    '"lr_decay"] = nan', '"lr_decay"] = -1.0', '"lr_decay"] = 1e39', '"foreach"] = False',
    '"foreach"] = True', '"fused"] = False', '"capturable"] = True',
    '"differentiable"] = True', '"decoupled_weight_decay"] = True', '"unknown"] = 1',
)  # fmt: skip

STATE_KEYS = {
    "Adam": ("exp_avg", "exp_avg_sq", "step", "max_exp_avg_sq"),
    "AdamW": ("exp_avg", "exp_avg_sq", "step"),
    "SGD": ("momentum_buffer",),
    "Adagrad": ("sum", "step"),
}

STATE_CHANGES = (
    "{v}.t()", "{v}.reshape(-1)", "{v}.reshape(1, *{v}.shape)", "{v}.double()", "{v}.half()",
    "{v}.clone()", "{v}.clone().requires_grad_()", "{v}.flatten()[:1]", "float({v}.sum())",
    "None", "-{v}", "{v} * nan", "{v} * 1e30", "torch.zeros(2, 3)", "{v}.t().contiguous().t()",
    "P[0].data", "P[1].data", "torch._neg_view({v})", "{v}.to_sparse()", "{v}.tolist()",
    "{v}.share_memory_()", "{v}.to(torch.bfloat16)", "torch.randn({v}.shape).expand_as({v})",
    "torch.empty({v}.shape, device='meta')", "torch.nn.Parameter({v})", "{v}.view({v}.shape)",
)  # fmt: skip

STEP_CHANGES = (
    "torch.tensor(3.0, dtype=torch.float64)", "torch.tensor(3)", "3", "3.0", "torch.tensor(-1.0)",
    "torch.tensor(nan)", "torch.tensor(0.5)", "torch.tensor(1e30)", "torch.ones(1)",
    "opt.state[P[1]]['step']", "torch.tensor(2.0**24)", "torch.tensor(2, dtype=torch.int32)",
    "torch.tensor(3.0, requires_grad=True)", "torch.tensor(3.0, dtype=torch.bfloat16)",
)  # fmt: skip

MEMORY_CHANGES = (
    "P[0].data = P[1].data",
    "P[0].data = P[0].data.t()",
    "P[0].data = P[0].data.double()",
    "P[0].data = P[0].data.clone()",
    "P[0].data = torch.randn(2, 2)",
    "P[0].data = P[0].data * nan",
    "P[0].data = P[0].data * -0.0",
    "P[0].grad = P[0].data",
    "P[0].grad = P[1].grad",
    "P[0].grad = None",
    "P[0].grad.data = P[0].grad.data.double()",
    "P[0].grad.data = P[0].grad.data.reshape(-1)",
    "P[0].requires_grad_(False)",
    "P[0].data.share_memory_()",
    "P[0].detach_()",
    "P[0].register_hook(lambda g: g * 2)",
    "P[0].register_post_accumulate_grad_hook(lambda p: L.append(p._version))",
    "torch.utils.swap_tensors(P[0], torch.nn.Parameter(torch.randn(P[0].shape)))",
    "P[0].data = torch._neg_view(P[0].data)",
)

CONTEXTS = (
    "with torch.enable_grad(): opt.step()",
    "with torch.inference_mode(): opt.step()",
    "with torch.autograd.set_detect_anomaly(True): opt.step()",
    "with torch.device('cpu'): opt.step()",
    "with torch.device('meta'): opt.step()",
    "with torch.overrides.BaseTorchFunctionMode(): opt.step()",
    "with torch.utils._python_dispatch.TorchDispatchMode(): opt.step()",
    "with torch.autograd.forward_ad.dual_level(): opt.step()",
    "with torch.autograd.graph.allow_mutation_on_saved_tensors(): opt.step()",
    "with torch.autocast('cpu', torch.bfloat16): opt.step()",
    "with torch.autograd.profiler.record_function('mine'): opt.step()",
    "torch.use_deterministic_algorithms(True)",
    "torch.set_default_dtype(torch.float64)",
    "torch.set_num_threads(2)",
)

OTHERS = (
    "opt = pickle.loads(pickle.dumps(opt)); P = opt.param_groups[0]['params']",
    "opt = copy.deepcopy(opt); P = opt.param_groups[0]['params']",
    "opt.load_state_dict(copy.deepcopy(opt.state_dict()))",
    "opt.load_state_dict(pickle.loads(pickle.dumps(opt.state_dict())))",
    "opt.add_param_group({'params': [torch.nn.Parameter(torch.ones(3))], 'lr': 0.5})",
    "opt.register_step_post_hook(lambda o, *_: L.append(str(o.param_groups[0]['fused'])))",
    "opt.register_step_pre_hook(lambda o, *_: L.append([p._version for p in P]))",
    "opt.state[P[0]].clear()",
    "opt.zero_grad(set_to_none=False)",
    "opt.found_inf = torch.tensor(0.0)",
    "opt.grad_scale = torch.tensor(2.0)",
    "L.append(opt.step(lambda: (opt.zero_grad(), (l := loss()), l.backward())[1]))",
    "L.append([p._version for p in P])",
    "a = loss(); a.backward(retain_graph=True); opt.step(); a.backward()",
    "a = P[0] * P[0].sum(); b = P[0].sin(); opt.step(); b.sum().backward(); a.sum().backward()",
    "a = [v.sin() * v for s in opt.state.values() for v in s.values() if hasattr(v, 'sin')]",
    "m = P[0].detach().clone().requires_grad_(); a = (m * opt.state[P[0]]['exp_avg']).sum(); "
    "opt.step(); a.backward()",
    "m = P[0].detach().clone().requires_grad_(); a = (m * P[0].grad).sum(); "
    "opt.step(); a.backward()",
    "loss().backward(create_graph=True); opt.step()",
    "(l := loss()).backward(); L.append(l.detach()); opt.step()",
    "x = P[0].detach(); opt.step(); L.append([x._version, torch.equal(x, P[0])])",
    "torch.nn.utils.clip_grad_norm_(P, 1.0)",
    "torch.rand(3)",
)

FUNCTIONAL = {
    "Adam": "torch.optim._functional.adam({}amsgrad=False, beta1=0.9, beta2=0.99, lr=0.1,"
    " weight_decay=0.1, eps=1e-8, maximize=False{})",
    "AdamW": "torch.optim._functional.adamw({}amsgrad=True, beta1=0.9, beta2=0.99, lr=0.1,"
    " weight_decay=0.1, eps=1e-8, maximize=False{})",
    "SGD": "torch.optim._functional.sgd({}weight_decay=0.1, momentum=0.9, lr=0.1, dampening=0,"
    " nesterov=False, maximize=False{})",
    "Adagrad": "torch.optim._functional.adagrad({}lr=0.1, weight_decay=0.1, lr_decay=0.1,"
    " eps=1e-10, maximize=False{})",
}

FUNCTIONAL_LISTS = {
    "Adam": ("params", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"),
    "AdamW": ("params", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"),
    "SGD": ("params", "d_p_list", "momentum_buffer_list"),
    "Adagrad": ("params", "grads", "state_sums", "state_steps"),
}


def generate(seed: str) -> Lines:
    """Return the case of a seed."""
    pick = random.Random(seed)
    name = pick.choice(list(OPTIONS))
    lines = [f"torch.manual_seed({pick.randrange(1000)})"]
    count = pick.choice((1, 3, 5, 9, 21, 21, 22))  # SGD is fused from 20 on
    shape = pick.choice(SHAPES)
    dtype = pick.choice(("", "", ", dtype=torch.float64"))
    shape_of = f"{shape}{dtype}"
    if pick.random() < 0.3:
        shape_of = f"i + 1, i % 3 + 1{dtype}"
    lines.append(f"P = [torch.nn.Parameter(torch.randn({shape_of})) for i in range({count})]")
    if pick.random() < 0.3:
        place = pick.randrange(count)
        lines.append(f"P[{place}] = {pick.choice(ODD_PARAMETERS)}")
    if pick.random() < 0.1:
        scale = pick.choice(("1e30", "1e-38", "-0.0", "3e38", "1e-44"))
        lines.append(f"for p in P: p.data = p.data * {scale}")
    if pick.random() < 0.03:
        lines.append("P.append(torch.nn.Parameter(torch.randn(20000, 16)))")
    lines.append("loss = lambda: sum((p * p).sum() * (i + 1) for i, p in enumerate(P))")
    if pick.random() < 0.08:
        lines += _functional(pick, name)
    else:
        lines += _stepping(pick, name)
    return lines


def _functional(pick: random.Random, name: str) -> Lines:
    names = FUNCTIONAL_LISTS[name]
    lists = [
        pick.choice(("P", "P", "P", "P", "tuple(P)", "dict(enumerate(P))")),
        "[torch.randn_like(p) for p in P]",
        *(f"[torch.randn_like(p){'.abs()' * (place > 0)} for p in P]" for place in range(3)),
        "[torch.tensor(2.0) for p in P]",
    ]  # fmt: skip
    chosen = lists[: len(names)]
    if name != "SGD":
        chosen[-1] = lists[-1]
        if name == "Adagrad":
            chosen[2] = lists[3]
    lines = [f"A = [{', '.join(chosen)}]"]
    words = pick.choice(("", "", ", foreach=None, fused=None", ", foreach=False", ", fused=False"))
    if pick.random() < 0.5:
        args = "*A, "
    else:
        args = "".join(f"{word}=A[{place}], " for place, word in enumerate(names))
    call = FUNCTIONAL[name].format(args, words)
    for _ in range(pick.randrange(1, 3)):
        context = pick.choice(("with torch.no_grad(): ", "with torch.no_grad(): ", ""))
        lines.append(f"{context}{call}")
    return lines


def _stepping(pick: random.Random, name: str) -> Lines:
    options = pick.choice(OPTIONS[name])
    if pick.random() < 0.1:
        extra = pick.choice(SHARED_OPTIONS)
        kept = [word for word in re.split(r", (?![^(]*\))", options) if word and "lr=" not in word]
        options = ", ".join([*kept, extra])
        if name == "SGD" and "lr=" not in extra:
            options += ", lr=0.1"
    lines = [f"opt = torch.optim.{name}(P, {options})", *_gradients(pick), "opt.step()"]
    for _ in range(pick.randrange(1, 5)):
        kind = pick.random()
        if kind < 0.2:
            lines += _gradients(pick)
        elif kind < 0.32:
            lines.append(f"opt.param_groups[0][{pick.choice(GROUP_CHANGES)}")
        elif kind < 0.5:
            lines += _surgery(pick, name)
        elif kind < 0.6:
            lines.append(pick.choice(MEMORY_CHANGES))
        elif kind < 0.72:
            lines.append(pick.choice(CONTEXTS))
        elif kind < 0.76:
            lines += [
                f"with {LOGS} as logs: opt.step()",
                "L.append([re.sub(r'0x[0-9a-f]+|[$0-9]+', '', line) for line in logs])",
            ]
        else:
            lines.append(pick.choice(OTHERS))
        lines.append("opt.step()")
    return lines


def _gradients(pick: random.Random) -> Lines:
    seed = f"torch.manual_seed({pick.randrange(1000)})"
    if pick.random() < 0.2:
        return ["opt.zero_grad(); loss().backward()"]
    gradient = pick.choice(GRADIENTS)
    if pick.random() < 0.2:  # of one parameter only
        return [f"{seed}; p = P[0]; p.grad = {gradient}"]
    return [f"{seed}\nfor p in P: p.grad = {gradient}"]


def _surgery(pick: random.Random, name: str) -> Lines:
    key = pick.choice(STATE_KEYS[name])
    place = pick.choice(("0", "0", "-1"))
    changes = STEP_CHANGES if key == "step" else STATE_CHANGES
    if pick.random() < 0.15:
        change = f"del s['{key}']"
    else:
        change = f"s['{key}'] = " + pick.choice(changes).format(v=f"s['{key}']")
    if pick.random() < 0.5:
        return [f"s = opt.state[P[{place}]]; {change}"]
    return [f"d = opt.state_dict(); s = d['state'][{place}]; {change}; opt.load_state_dict(d)"]


class Result(NamedTuple):
    """What a case has done."""

    errors: list[tuple[int, str, str]]
    warnings: list[str]
    facts: dict[str, Any]
    """What must be the same to the last bit."""

    values: dict[str, torch.Tensor]
    description: str


@lru_cache(maxsize=1 << 16)
def _compiled(line: str) -> Any:
    return compile(line, "<case>", "exec")


def run(lines: Lines, *, patched: bool, rounded: int | None = None) -> Result:
    """Run the lines, with fused optimizers or without, and leave torch as it was.

    Args:
        rounded: A seed with which numbers are rounded in another way after each line.
    """
    import torch.testing._internal.logging_tensor

    patches = FusedOptimizers(torch) if patched else None
    names: dict[str, Any] = {"torch": torch}
    errors: list[tuple[int, str, str]] = []
    generator = torch.Generator("cpu")
    generator.manual_seed(rounded or 0)
    torch.manual_seed(0)
    torch.set_warn_always(True)  # not once in a process
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for number, line in enumerate([PRELUDE, *lines]):
                try:
                    exec(_compiled(line), names)
                except Exception as error:  # whatever it is: it must be the same both ways
                    text = re.sub(r"0x[0-9a-f]+", "", str(error))
                    errors.append((number, type(error).__name__, text))
                if rounded is not None and number:
                    _round_anew(names, generator)
        description = patches.describe() if patches else ""
        facts, values = _observe(names)
    finally:
        if patches:
            patches.undo()
        torch.set_warn_always(False)
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(1)
    told = [f"{type(w.message).__name__}: {w.message}" for w in seen]
    return Result(errors, told, facts, values, description)


def _tensors(names: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return parameters, gradients, states and what the case has collected, by name."""
    found: dict[str, torch.Tensor] = {}
    optimizer = names.get("opt")
    for place, param in enumerate(names.get("P", ())):
        found[f"P[{place}]"] = param
        if isinstance(getattr(param, "grad", None), torch.Tensor):
            found[f"P[{place}].grad"] = param.grad
        if optimizer is not None and param in optimizer.state:
            for key, value in optimizer.state[param].items():
                if isinstance(value, torch.Tensor):
                    found[f"P[{place}] {key}"] = value
    for number, given in enumerate(names.get("A", ())):
        tensors = given.values() if isinstance(given, dict) else given
        found.update({f"A[{number}][{place}]": tensor for place, tensor in enumerate(tensors)})
    for number, value in enumerate(names.get("L", ())):
        if isinstance(value, torch.Tensor):
            found[f"L[{number}]"] = value
    return found


def _round_anew(names: dict[str, Any], generator: torch.Generator) -> None:
    """Replace some numbers with the next larger or smaller one."""
    for name, tensor in _tensors(names).items():
        if (
            name.endswith((" step", ".grad"))
            or tensor.layout is not torch.strided
            or tensor.device.type != "cpu"
            or tensor.dtype not in (torch.float32, torch.float64)
            or tensor.is_inference()
            or not tensor.is_contiguous()
        ):
            continue
        signs = torch.randint(-1, 2, tensor.shape, generator=generator, device="cpu")
        with torch.no_grad():  # through `data`: no version rises
            beside = torch.where(signs > 0, tensor.data.sign() * torch.inf, 0.0).to(tensor.dtype)
            moved = torch.nextafter(tensor.data, beside)  # denormal numbers as well
            stays = (signs == 0) | (tensor.data == 0) | tensor.data.isinf()
            tensor.data.copy_(torch.where(stays, tensor.data, moved))


def _observe(names: dict[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return what must be the same, and the tensors, whose values may differ by rounding."""
    found = _tensors(names)
    facts: dict[str, Any] = {"random": torch.random.get_rng_state().tolist()}
    memory: dict[int, str] = {}
    for name, tensor in found.items():
        facts[name] = (
            type(tensor).__name__, tuple(tensor.shape), str(tensor.dtype), str(tensor.layout),
            str(tensor.device), tensor.requires_grad, tensor.is_leaf, tensor._is_view(),
            type(tensor.grad_fn).__name__, tensor.is_inference(), tensor.is_neg(),
            None if tensor.is_inference() else tensor._version,
        )  # fmt: skip
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            facts[name] += (
                tensor.stride(), tensor.storage_offset(), storage.nbytes(), tensor.is_shared(),
                memory.setdefault(storage._cdata, name) if storage.nbytes() else "",
            )  # fmt: skip
    facts["seen"] = [
        value for value in names.get("L", ()) if not isinstance(value, torch.Tensor | float)
    ]
    optimizer = names.get("opt")
    if optimizer is not None:
        facts["groups"] = [
            {key: repr(value) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        facts["state"] = [
            {
                # numbers may differ by rounding
                key: type(value).__name__
                if isinstance(value, torch.Tensor | float | list) and key != "step"
                else repr(value)
                for key, value in state.items()
            }
            for state in optimizer.state.values()
        ]
        facts["attributes"] = sorted(vars(optimizer))
    return facts, found


def compare(lines: Lines) -> list[str]:
    """Return what tells a case apart that is run both ways, in words; nothing if it is rounding."""
    ours, theirs = run(lines, patched=True), run(lines, patched=False)
    told = []
    for what in ("errors", "warnings"):
        if getattr(ours, what) != getattr(theirs, what):
            told.append(f"{what}: {getattr(ours, what)} instead of {getattr(theirs, what)}")
    for name in {**theirs.facts, **ours.facts}:
        if ours.facts.get(name) != theirs.facts.get(name):
            told.append(f"{name}: {ours.facts.get(name)} instead of {theirs.facts.get(name)}")
    spreads: list[Result] = []
    for name in sorted(theirs.values.keys() & ours.values.keys()):
        mine, other = ours.values[name], theirs.values[name]
        if not ours.description or name.endswith(" step"):
            is_same = _are_identical(mine, other)
        else:
            is_same = _are_close(mine, other, [])
            if not is_same:  # training may amplify roundings: see what another one leads to
                spreads = spreads or [run(lines, patched=False, rounded=seed) for seed in range(9)]
                others = [result.values.get(name) for result in spreads]
                is_same = _are_close(mine, other, [one for one in others if one is not None])
        if not is_same:
            told.append(f"{name}: {mine} instead of {other}")
    return told


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().to_dense().resolve_neg().resolve_conj()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _are_identical(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False  # told already
    if ours.device.type != "cpu":
        return True
    ours, theirs = _plain(ours), _plain(theirs)
    nan = ours.isnan()
    return (
        torch.equal(nan, theirs.isnan())
        and torch.equal(ours[~nan], theirs[~nan])
        and torch.equal(ours[~nan].signbit(), theirs[~nan].signbit())
    )


def _are_close(ours: torch.Tensor, theirs: torch.Tensor, spread: list[torch.Tensor]) -> bool:
    """Return whether numbers differ by little, or by little more than other roundings make."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype or ours.device.type != "cpu":
        return True  # told already, or without numbers
    precision = 1e-6 if ours.dtype is torch.float32 else 1e-12
    ours, theirs = _plain(ours).double(), _plain(theirs).double()
    near = (ours == theirs) | (ours.isnan() & theirs.isnan())
    allowed = precision * theirs.abs() + 3e-45  # two float32 denormals
    for other in spread:
        if other.shape == theirs.shape:
            other = _plain(other).double()
            near |= (ours == other) | (ours.isnan() & other.isnan())
            allowed = torch.maximum(allowed, 20 * (other - theirs).abs().nan_to_num(0.0))
    return bool((near | ((ours - theirs).abs() <= allowed)).all())


def reduce(lines: Lines) -> Lines:
    """Return as few of the lines as still make a difference."""
    shorter = True
    while shorter:
        shorter = False
        for place in reversed(range(len(lines))):
            fewer = lines[:place] + lines[place + 1 :]
            if compare(fewer):
                lines, shorter = fewer, True
    return lines


def as_script(lines: Lines) -> str:
    """Return a script of its own, of at most 15 lines, that prints what a case does both ways."""
    body = [PRELUDE, *lines]
    kept = body[:4]
    tensors = "sum(names['A'], [])"
    if any(line.startswith("opt = ") for line in lines):
        tensors = "[x for p in names['P'] for x in (p, p.grad, *names['opt'].state[p].values())]"
    return "\n".join(
        [
            "import torch, torch.testing._internal.logging_tensor",
            "from cputrain.runtime.fused import FusedOptimizers",
            "for patched in (False, True):",
            "    names = {'torch': torch, 'patch': patched and FusedOptimizers(torch)}",
            f"    for line in ({kept[0]!r},",
            *(f"        {line!r}," for line in (body[1:] if len(body) < 6 else kept[1:])),
            *([] if len(body) < 6 else [f"        *{body[4:]!r},"]),
            "    ):",
            "        try: exec(line, names)",
            "        except Exception as error: print(line, repr(error))",
            f"    tensors = [x for x in {tensors} if hasattr(x, 'sin')]",
            "    print(patched, names['L'], [(x, x._version) for x in tensors])",
        ]
    )
