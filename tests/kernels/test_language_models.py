"""Models of transformers train as under python where attention, GELU and loss are in blocks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cputrain.kernels import build
from tests.launch.programs import launch, plain, script
from tests.selected import cases

pytestmark = [
    pytest.mark.skipif(build.find_compiler() is None, reason="there is no C compiler"),
    pytest.mark.filterwarnings("ignore"),
]

SCRIPT = """
import json, sys, torch, transformers
torch.manual_seed(0)
VOCABULARY, LENGTH = 16384, 160
common = dict(vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=8)
def gpt2(**options):
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=8, **options
    )
    return transformers.GPT2LMHeadModel(config)
def lora():
    from peft import LoraConfig, get_peft_model
    options = LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM",
                         fan_in_fan_out=True, lora_dropout=0.1)
    return get_peft_model(gpt2(), options)
MODELS = {
    "gpt2": gpt2,
    "padded": gpt2,
    "accumulated": gpt2,
    "clipped": gpt2,
    "eager": lambda: gpt2(attn_implementation="eager"),
    "lora": lora,
    "checkpointed": gpt2,
    "bert": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(intermediate_size=128, **common)),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(intermediate_size=128, attention_dropout=0.1, **common)),
    "opt": lambda: transformers.OPTForCausalLM(
        transformers.OPTConfig(ffn_dim=128, word_embed_proj_dim=64, **common)),
}
name = sys.argv[1]
model = MODELS[name]().train()
if name == "checkpointed":
    model.gradient_checkpointing_enable({"use_reentrant": False})
params = [param for param in model.parameters() if param.requires_grad]
optimizer = torch.optim.AdamW(params, lr=1e-3)
numbers = []
for step in range(4):
    tokens = torch.randint(VOCABULARY, (4, LENGTH))
    batch = dict(input_ids=tokens, labels=tokens.masked_fill(tokens % 7 == 0, -100))
    if name == "padded":
        lengths = torch.tensor([[160], [90], [40], [7]])
        batch["attention_mask"] = (torch.arange(LENGTH) < lengths).long()
    output = model(**batch)
    numbers.append(output.loss.item())
    numbers.append(output.logits.detach().abs().mean().item())
    (output.loss / (2 if name == "accumulated" else 1)).backward()
    if name == "accumulated" and step % 2 == 0:
        continue
    if name == "clipped":
        numbers.append(torch.nn.utils.clip_grad_norm_(params, 1.0).item())
    optimizer.step()
    optimizer.zero_grad()
print(json.dumps(numbers))
print(torch.rand(1).item())
"""

NAMES = ("gpt2", "padded", "accumulated", "clipped", "eager", "lora", "checkpointed", "bert",
         "llama", "opt")  # fmt: skip


@pytest.mark.parametrize("name", cases(NAMES, ("lora",)))
def test_losses_and_random_numbers_are_those_of_python(tmp_path: Path, name: str) -> None:
    path = str(script(tmp_path, SCRIPT))
    expected = plain(tmp_path, path, name)
    assert expected.returncode == 0, expected.stderr
    done = launch(tmp_path, "--threads", "2", path, name)
    assert done.returncode == 0, done.stderr
    numbers, drawn = done.stdout.splitlines()
    wanted, last = expected.stdout.splitlines()
    assert json.loads(numbers) == pytest.approx(json.loads(wanted), rel=1e-4)
    assert drawn == last
    assert "by kernels in C" in done.stderr
    assert ("GELU in chunks" in done.stderr) == (
        name not in {"bert", "llama", "opt", "checkpointed"}
    )


def test_the_loss_is_in_blocks_below_a_memory_limit_too(tmp_path: Path) -> None:
    path = str(script(tmp_path, SCRIPT))
    expected = launch(tmp_path, "--threads", "2", path, "lora")
    done = launch(tmp_path, "--threads", "2", "--memory-limit", "4G", path, "lora")
    assert done.returncode == 0, done.stderr
    numbers, wanted = (json.loads(run.stdout.splitlines()[0]) for run in (done, expected))
    assert numbers == pytest.approx(wanted, rel=1e-5)
    assert "cross entropy and dropout by kernels in C" in done.stderr
