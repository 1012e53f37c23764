"""Whatever reads and writes models: checkpoints, safetensors, TensorBoard, traces, a profile."""

import hashlib
import os

import torch
import torch.distributed.checkpoint as dcp
import torch.fx
import torchmetrics
from safetensors.torch import load_file, load_model, save_file, save_model
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.tensorboard import SummaryWriter


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 36, 4)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).view(x.size(0), -1))


torch.manual_seed(0)
model, other = Net(), Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x, y = torch.randn(8, 3, 8, 8), torch.randint(4, (8,))


def train():
    loss = nn.functional.cross_entropy(model.train()(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item(), hashlib.sha256(torch.get_rng_state().numpy()).hexdigest()[:8])
    return loss.item()


def show(tag, state):
    for name, value in sorted(state.items()):
        print(tag, name, value.dtype, value.stride(), value.double().sum().item())


with SummaryWriter("board") as writer:
    for step in range(4):
        writer.add_scalar("loss", train(), step)
        writer.add_histogram("weight", model.conv.weight, step)
    writer.add_graph(model, x)
board = EventAccumulator("board")
board.Reload()
print(board.Tags()["scalars"], len(board.Scalars("loss")), len(board.Graph().node))

save_file(model.state_dict(), "model.safetensors")
show("safetensors", load_file("model.safetensors"))
save_model(model, "whole.safetensors")
print(load_model(other, "whole.safetensors"))
dcp.save({"model": model.state_dict()}, checkpoint_id="dcp", no_dist=True)
state = {"model": Net().state_dict()}
dcp.load(state, checkpoint_id="dcp", no_dist=True)
show("dcp", state["model"])
torch.save({"model": model, "optimizer": optimizer}, "whole.pt")
whole = torch.load("whole.pt", weights_only=False)
show("whole", whole["model"].state_dict())
print([value.stride() for entry in whole["optimizer"].state.values() for value in entry.values()])

graph = torch.fx.symbolic_trace(model)
print(graph.code)
train()
program = torch.export.export(model.eval(), (x,))
print([str(node.target) for node in program.graph.nodes])
train()
scripted, traced = torch.jit.script(model.eval()), torch.jit.trace(model, x)
print(scripted.code, [str(node.kind()) for node in traced.inlined_graph.nodes()])
for one in (graph.eval(), program.module(), scripted, traced):
    print("same", tuple(one(x).shape), one(x).dtype)
train()
with profile(activities=[ProfilerActivity.CPU]) as profiled, record_function("mine"):
    train()
names = {event.key for event in profiled.key_averages()}
wanted = ("aten::conv2d", "aten::addmm", "aten::batch_norm", "aten::cross_entropy_loss", "mine")
print([name in names for name in wanted], sorted(name for name in names if "Optimizer" in name))
with FlopCounterMode(display=False) as counter:
    model(x).sum().backward()
print("flops", counter.get_total_flops(), sorted(counter.get_flop_counts()))
train()
accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=4)
print("accuracy", accuracy(model(x).softmax(1), y).dtype, accuracy.compute().shape)
compiled = torch.compile(model, backend="eager")
train()
print(tuple(compiled(x).shape), sorted(compiled.state_dict())[:2], sorted(os.listdir("dcp")))
