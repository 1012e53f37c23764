"""Functions of torch as objects: attributes, keys, pickles, errors, overrides, graphs."""

import copy
import inspect
import pickle
import traceback
import types

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.overrides import TorchFunctionMode, resolve_name

PLACES = {
    "torch": torch,
    "torch._VF": torch._VF,
    "torch.nn.functional": F,
    "torch._C._nn": torch._C._nn,
}
NAMES = (
    "batch_norm", "relu", "relu_", "leaky_relu", "hardtanh", "relu6", "dropout", "dropout_",
    "conv1d", "conv2d", "cross_entropy_loss", "scaled_dot_product_attention", "rand_like",
    "randn_like", "addmm",
)  # fmt: skip
FUNCTIONS = {
    f"{place}.{name}": getattr(module, name)
    for place, module in PLACES.items()
    for name in NAMES
    if hasattr(module, name)
}
METHODS = {f"Tensor.{name}": getattr(torch.Tensor, name) for name in ("relu", "relu_", "sigmoid")}


def told(function, *args, **kwargs):
    """Print what a call returns, or its traceback."""
    try:
        result = function(*args, **kwargs)
    except Exception:
        print(traceback.format_exc(), end="")
    else:
        print(result)


for name, function in (FUNCTIONS | METHODS).items():
    print(
        name,
        function.__name__,
        getattr(function, "__module__", None),
        function.__qualname__,
        resolve_name(function),
    )
    print(isinstance(function, (types.BuiltinFunctionType, types.MethodDescriptorType)))
    print(inspect.isbuiltin(function), inspect.isfunction(function), inspect.ismethod(function))
    print(inspect.isroutine(function), callable(function), inspect.getdoc(function))
    told(inspect.signature, function)
    print(pickle.dumps(function), pickle.loads(pickle.dumps(function)) == function)
    print(copy.copy(function) is function, copy.deepcopy([function])[0] is function)
    print(repr(function).split(" at ")[0], {function: name}[function], function == F.relu)

for name, function in FUNCTIONS.items():
    print(name)
    told(function)
    told(function, 3)
    told(function, torch.ones(2), torch.ones(3), bias="none")
    told(function, torch.ones(2, 3, 4, 4), no_such_argument=1)
    told(function, *[torch.ones(1)] * 12)


class Block(nn.Module):
    activation = torch.relu
    convolve = F.conv2d
    drop = torch.dropout
    attend = F.scaled_dot_product_attention
    functions = {torch.relu: "relu", torch.conv2d: "conv2d"}

    def __init__(self, activation=torch.relu):
        super().__init__()
        self.norm = nn.BatchNorm2d(8)
        self.weight = nn.Parameter(torch.randn(8, 1, 5, 5) / 5)
        self.last = activation

    def forward(self, x):
        x = self.activation(self.norm(x))
        x = self.convolve(x, self.weight, None, 1, 2, 1, 8)
        x = self.drop(x, 0.25, self.training)
        return self.last(self.attend(x, x, x))


torch.manual_seed(0)
block = Block()
x = torch.randn(16, 8, 32, 32, requires_grad=True)
for activation in (torch.relu, torch.Tensor.relu, lambda h: h.relu(), nn.functional.relu):
    block.last = activation
    out = block(x)
    out.square().mean().backward()
    print(out.sum().item(), block.norm.weight.grad.sum().item())


class Named(torch.Tensor):
    """A subclass that knows functions by their names, of now and of before."""

    @classmethod
    def __torch_function__(cls, func, types_, args=(), kwargs=None):
        if func in Block.functions:
            print("known", Block.functions[func], func is torch.relu, func is torch.conv2d)
        return super().__torch_function__(func, types_, args, kwargs or {})


class Refuses(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types_, args=(), kwargs=None):
        raise ValueError(f"no {func.__name__}")


class Prints(TorchFunctionMode):
    def __torch_function__(self, func, types_, args=(), kwargs=None):
        print("mode", getattr(func, "__name__", "?"), func in Block.functions)
        return func(*args, **(kwargs or {}))


for kind in (Named, Refuses):
    told(lambda kind=kind: torch.relu(torch.ones(2).as_subclass(kind)))
    told(lambda kind=kind: torch.ones(2).as_subclass(kind).relu())
    told(
        lambda kind=kind: F.conv2d(
            torch.ones(1, 2, 3, 3), torch.ones(2, 1, 3, 3).as_subclass(kind), groups=2
        )
    )
with Prints():
    told(lambda: torch.relu(torch.ones(2)))
    told(lambda: F.conv2d(torch.ones(1, 2, 3, 3), torch.ones(2, 1, 3, 3), groups=2))
    told(lambda: F.conv2d(torch.ones(1, 2, 3, 3), torch.ones(2, 1, 3), groups=2))

for model in (
    Block().eval(),
    nn.Sequential(nn.Conv2d(4, 4, 5, groups=4), nn.BatchNorm2d(4), nn.ReLU()),
):
    graph = fx.symbolic_trace(model)
    print(graph.code)
    for node in graph.graph.nodes:
        print(node.op, node.target, node.target is torch.relu, node.target in Block.functions)
    print(pickle.loads(pickle.dumps(graph)).code == graph.code)

scripted = torch.jit.script(
    nn.Sequential(nn.Conv2d(4, 4, 5, groups=4), nn.BatchNorm2d(4), nn.ReLU())
)
print(scripted.code, scripted.inlined_graph.findNode("aten::relu") is not None)
traced = torch.jit.trace(Block().eval(), torch.ones(1, 8, 4, 4))
print(str(traced.inlined_graph).count("aten::"))


def kinds(graph, inputs):
    """A compiler that prints the functions of a graph, and runs it as it is."""
    for node in graph.graph.nodes:
        if node.op == "call_function":
            print(node.target.__name__, type(node.target).__name__)
    return graph


print(torch.compile(Block().eval(), backend=kinds, fullgraph=True)(torch.ones(1, 8, 4, 4)).shape)
print(torch.compile(lambda x: torch.relu(x.relu()), backend=kinds, fullgraph=True)(torch.ones(3)))
