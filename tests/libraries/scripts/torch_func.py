"""torch.func, checkpoints and hooks on models that are trained meanwhile; copies and pickles."""

import copy
import gc
import hashlib
import io
import pickle
import weakref

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from torch.utils.checkpoint import checkpoint


def random_state():
    return hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:8]


torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(),
    nn.Linear(6 * 36, 2),
)  # fmt: skip
x, y = torch.randn(8, 3, 8, 8), torch.randint(2, (8,))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)


def loss_of(params, sample, target):
    return nn.functional.cross_entropy(functional_call(net, params, (sample[None],)), target[None])


def train():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    print("loss", loss.item(), random_state())


for step in range(4):
    params = {name: value.detach() for name, value in net.named_parameters()}
    per_sample = vmap(grad(loss_of), (None, 0, 0), randomness="different")(params, x, y)
    for name, value in per_sample.items():
        print("per sample", name, tuple(value.shape), value.dtype, value.abs().sum().item())
    train()

nets = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(3)]
stacked, buffers = stack_module_state(nets)
base, rows = copy.deepcopy(nets[0]).to("meta"), torch.randn(5, 4)
outputs = vmap(lambda p, b: functional_call(base, (p, b), (rows,)))(stacked, buffers)
print("ensemble", tuple(outputs.shape), outputs.sum().item())
print("hessian", hessian(lambda row: nets[0](row).sum())(rows[0]).norm().item())
print("jacobian", jacrev(nets[1])(rows[0]).norm().item(), jvp(nets[2], (rows,), (rows,))[1].sum())

for reentrant in (False, True):
    loss = checkpoint(net, x.clone().requires_grad_(), use_reentrant=reentrant).sum()
    loss.backward()
    print("checkpoint", loss.item(), random_state())

seen = []
handles = [
    net.register_full_backward_hook(lambda m, i, o: seen.append(tuple(o[0].shape))),
    net.register_forward_pre_hook(lambda m, a: seen.append("before")),
    net[0].register_forward_hook(lambda m, a, o: seen.append((tuple(o.shape), str(o.dtype)))),
    nn.modules.module.register_module_forward_hook(lambda m, a, o: seen.append(type(m).__name__)),
]
train()
features = []
handles.append(net[2].register_forward_hook(lambda m, a, o: features.append(o.detach().numpy())))
train()
print(seen, features[0].shape, features[0].dtype)
for handle in handles:
    handle.remove()
train()

for wrong in (torch.randn(2, 4, 8, 8), torch.randn(8, 3, 8, 9)):
    try:
        net(wrong)
    except RuntimeError as error:
        print(type(error), error)

net.eval()
copied, pickled = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
file = io.BytesIO()
torch.save(net, file)
file.seek(0)
loaded = torch.load(file, weights_only=False)
print([value.stride() for value in loaded.state_dict().values()])
for other in (copied, pickled, loaded):
    same = torch.allclose(other(x), net(x), atol=1e-2)
    print("same", same, sorted(vars(other)) == sorted(vars(net)))
alive = weakref.ref(net), weakref.ref(net[0].weight)
del net, optimizer, copied, params, loss, handles, handle, other
gc.collect()
print("alive", [reference() is not None for reference in alive], random_state())
print(nn.Module.__call__.__qualname__, nn.Module.__call__.__module__, torch.Tensor.view.__name__)
