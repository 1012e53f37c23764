"""Transformers' models on the device: no operator runs on the CPU, and calls are replayed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cputrain.opencl import fallbacks, reset_fallbacks
from cputrain.opencl.graphs.replayed import ReplayedCall
from cputrain.runtime.root_forward import within_call

transformers = pytest.importorskip("transformers", reason="needs transformers")

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32}

TOKENS = torch.randint(100, (2, 16), generator=torch.Generator().manual_seed(1))


def gpt2() -> Any:
    config = transformers.GPT2Config(
        n_embd=32, n_head=2, n_layer=2, vocab_size=100, n_positions=32, use_cache=False,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), {"input_ids": TOKENS, "labels": TOKENS}


def gpt2_with_cache() -> Any:
    model, batch = gpt2()
    model.config.use_cache = True
    return model, batch


def bert() -> Any:
    config = transformers.BertConfig(intermediate_size=64, vocab_size=100, **SIZES)
    return transformers.BertForMaskedLM(config), {"input_ids": TOKENS, "labels": TOKENS}


def vit() -> Any:
    config = transformers.ViTConfig(
        intermediate_size=64, image_size=32, patch_size=8, num_labels=5, **SIZES
    )
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    batch = {"pixel_values": images, "labels": torch.tensor([1, 4])}
    return transformers.ViTForImageClassification(config), batch


def llama() -> Any:
    config = transformers.LlamaConfig(
        intermediate_size=64, vocab_size=100, num_key_value_heads=1, use_cache=False, **SIZES
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": TOKENS, "labels": TOKENS}


def lora() -> Any:
    peft = pytest.importorskip("peft", reason="needs PEFT")
    model, batch = llama()
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    return peft.get_peft_model(model, config), batch


def losses(
    make: Any, device: str, *, has_dropout: bool = False, dtypes: tuple[Any, ...] = (None,)
) -> list[float]:
    """Losses of steps, each under autocast to the next of the dtypes."""
    torch.manual_seed(0)
    model, batch = make()
    model.train(has_dropout)
    model.to(device)
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-2)
    values = []
    for step in range(7 * len(dtypes)):
        optimizer.zero_grad()
        dtype = dtypes[step % len(dtypes)]
        with torch.autocast(device, dtype, enabled=dtype is not None):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        values.append(loss.item())
    return values


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")
@pytest.mark.parametrize("make", [gpt2, gpt2_with_cache, bert, vit, llama, lora])
def test_it_trains_as_on_the_cpu_without_it(make, monkeypatch):
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")
    calls = []
    original = ReplayedCall.run
    monkeypatch.setattr(ReplayedCall, "run", lambda self: calls.append(1) or original(self))
    reset_fallbacks()
    values = losses(make, "ocl")
    assert fallbacks() == []
    assert calls
    assert values == pytest.approx(losses(make, "cpu"), rel=1e-4)
    replayed = losses(make, "ocl", has_dropout=True)
    with within_call():
        assert losses(make, "ocl", has_dropout=True) == replayed


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")
@pytest.mark.parametrize("make", [gpt2, vit, lora])
@pytest.mark.parametrize("dtypes", [(torch.float16,), (None, torch.bfloat16)])
def test_it_trains_under_autocast_as_on_the_cpu_and_without_replay(make, dtypes, monkeypatch):
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")
    calls = []
    original = ReplayedCall.run
    monkeypatch.setattr(ReplayedCall, "run", lambda self: calls.append(1) or original(self))
    reset_fallbacks()
    values = losses(make, "ocl", dtypes=dtypes)
    assert fallbacks() == []
    assert calls
    with within_call():
        assert losses(make, "ocl", dtypes=dtypes) == values
    assert values == pytest.approx(losses(make, "cpu", dtypes=dtypes), rel=0.05, abs=0.05)
