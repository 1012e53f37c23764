"""Small networks of timm, transformers and torchvision with random weights, and their batches."""

from __future__ import annotations

import copy
import sys
import warnings

import torch

from cputrain import Split
from cputrain.bench.networks.definitions import import_torchvision_models
from cputrain.split.outputs import leaves_of
from tests.torchvision_folder import FOLDER

IMAGE = 64

TIMM = (
    "resnet18", "resnet50", "resnext50_32x4d", "seresnet18", "resnest14d", "res2net50_14w_8s",
    "densenet121", "efficientnet_b0", "mobilenetv2_050", "mobilenetv3_small_050", "ghostnet_050",
    "regnetx_002", "mnasnet_small", "convnext_atto", "vit_tiny_patch16_224",
    "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "mobilevit_xxs",
    "mobilevitv2_050", "levit_128s", "fastvit_t8", "poolformer_s12", "mixer_s16_224",
    "coat_lite_tiny", "edgenext_xx_small", "efficientformer_l1", "hrnet_w18_small", "dla34",
    "vgg11_bn", "xcit_nano_12_p16_224",
)  # fmt: skip

TORCHVISION = (
    "alexnet", "vgg11", "resnet34", "squeezenet1_1", "densenet121", "googlenet", "mobilenet_v2",
    "mobilenet_v3_small", "mnasnet0_5", "shufflenet_v2_x0_5", "efficientnet_b0", "regnet_y_400mf",
    "convnext_tiny", "lraspp_mobilenet_v3_large", "vit_b_32",
)  # fmt: skip

SMALL = {
    "vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip

TRANSFORMERS = {
    "BertForSequenceClassification": ("BertConfig", SMALL),
    "DistilBertForSequenceClassification": (
        "DistilBertConfig",
        {"vocab_size": 61, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    ),
    "RobertaForSequenceClassification": ("RobertaConfig", SMALL | {"pad_token_id": 1}),
    "AlbertForSequenceClassification": ("AlbertConfig", SMALL | {"embedding_size": 8}),
    "ElectraForSequenceClassification": ("ElectraConfig", SMALL | {"embedding_size": 8}),
    "GPT2LMHeadModel": (
        "GPT2Config", {"vocab_size": 61, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    ),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SMALL),
    "OPTForCausalLM": (
        "OPTConfig", SMALL | {"ffn_dim": 32, "word_embed_proj_dim": 16},
    ),
    "LlamaForCausalLM": ("LlamaConfig", SMALL | {"num_key_value_heads": 1}),
    "MistralForCausalLM": ("MistralConfig", SMALL | {"num_key_value_heads": 1}),
    "MixtralForCausalLM": (
        "MixtralConfig", SMALL | {"num_key_value_heads": 1, "num_local_experts": 2},
    ),
    "MambaForCausalLM": (
        "MambaConfig",
        {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
    ),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"vocab_size": 61, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2,
         "decoder_start_token_id": 0},
    ),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        {"vocab_size": 61, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
         "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
         "decoder_ffn_dim": 32, "num_mel_bins": 8, "max_source_positions": 16,
         "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
         "decoder_start_token_id": 1},
    ),
    "ViTForImageClassification": (
        "ViTConfig",
        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 32, "image_size": 32, "patch_size": 8},
    ),
}  # fmt: skip

NAMES = (
    *(f"timm/{name}" for name in TIMM),
    *(f"transformers/{name}" for name in TRANSFORMERS),
    *(f"torchvision/{name}" for name in TORCHVISION),
)


def _images(count: int, size: int = IMAGE) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(count, 3, size, size)}


def make(name: str):
    """Return a model, and what makes the arguments of a call with so many samples."""
    library, _, kind = name.partition("/")
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    models = import_torchvision_models()
    if library == "timm":
        import timm

        size = (
            224
            if any(one in kind for one in ("224", "levit", "efficientformer", "coat"))
            else IMAGE
        )
        return timm.create_model(kind, num_classes=5), lambda count: _images(count, size)
    if library == "torchvision":
        group = models
        options = {"num_classes": 5}
        if kind == "lraspp_mobilenet_v3_large":
            group = models.segmentation
            options["weights_backbone"] = None
        if kind == "googlenet":
            options["init_weights"] = False
        size = {"vit_b_32": 224, "alexnet": 96, "googlenet": 96}.get(kind, IMAGE)
        model = getattr(group, kind)(**options)
        return model, lambda count: {None: torch.randn(count, 3, size, size)}
    import transformers

    config_kind, options = TRANSFORMERS[kind]
    config = getattr(transformers, config_kind)(**options)
    model = getattr(transformers, kind)(config)

    def batch(count: int) -> dict[str, torch.Tensor]:
        if kind.startswith("ViT"):
            return {"pixel_values": torch.randn(count, 3, 32, 32)}
        ids = torch.randint(3, 61, (count, 11))
        if kind.startswith("Whisper"):
            return {"input_features": torch.randn(count, 8, 32), "decoder_input_ids": ids}
        if kind.startswith("T5"):
            return {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
        return {"input_ids": ids}

    return model, batch


def call(name: str, batch, count: int, *, exactly: bool = True):
    """Return positional and keyword arguments of a call, in float64 where they are numbers."""
    options = {
        key: value.double() if exactly and value.is_floating_point() else value
        for key, value in batch(count).items()
    }
    first = next(iter(options))
    if first in (None, "x"):
        return (options.pop(first),), options
    return (), options


def compare(name: str, count: int = 6):
    """Return why a model is not divided, or how far a step is from the whole batch's."""
    torch.manual_seed(0)
    model, batch = make(name)
    exactly = "Mixtral" not in name  # its kernel has no float64
    model = (model.double() if exactly else model).train()
    divided = copy.deepcopy(model)
    split = Split(divided, replicas=2)
    args, options = call(name, batch, count, exactly=exactly)
    outputs = []
    for one in (model, split):
        torch.manual_seed(1)
        outputs.append(_learning(one(*args, **options)))
    if split.why_not:
        return split.why_not, 0.0
    weights = [torch.randn_like(output) for output in outputs[0]]
    for each in outputs:
        sum((one * weight).sum() for one, weight in zip(each, weights, strict=True)).backward()
    gradients = [
        (one.grad, other.grad)
        for one, other in zip(model.parameters(), divided.parameters(), strict=True)
        if one.grad is not None
    ]
    largest = max(float(one.norm()) for one, _ in gradients)
    apart = [
        float((one - other).norm()) / max(float(one.norm()), 1e-3 * largest)
        for one, other in gradients
    ]
    pairs = zip((*outputs[0], *model.buffers()), (*outputs[1], *divided.buffers()), strict=True)
    apart += [
        float((one - other).detach().double().norm())
        / max(float(one.detach().double().norm()), 1.0)
        for one, other in pairs
    ]
    return "", max(apart)


def _learning(output) -> list[torch.Tensor]:
    leaves = leaves_of(output)[0]
    return [one for one in leaves if isinstance(one, torch.Tensor) and one.requires_grad]


def table() -> str:
    """Return what became of each network, as Markdown."""
    lines = [
        "| network | batch divided | farthest from the whole, float64 |",
        "| --- | --- | ---: |",
    ]
    for name in NAMES:
        reason, apart = compare(name)
        lines.append(f"| {name} | {'no: ' + reason if reason else 'yes'} | {apart:.1e} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(table())
