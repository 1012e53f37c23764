"""Train a vision transformer of timm on random images, with AdamW.

    python cputrain/bench/timm_vit.py --model vit_small_patch16_224 --steps 4

The model has random weights. Nothing is downloaded.
"""

import argparse
import json
import time

import timm
import torch


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--steps", type=int, default=4, help="timed steps (default: 4)")
    parser.add_argument("--batch", type=int, default=16, help="images in a batch (default: 16)")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = timm.create_model(options.model, num_classes=100, drop_rate=0.1).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loss_function = torch.nn.CrossEntropyLoss()
    losses, seconds = [], []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        images = torch.randn(options.batch, *model.default_cfg["input_size"])
        labels = torch.randint(100, (options.batch,))
        begin = time.perf_counter()
        loss = loss_function(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    result = {
        "losses": losses, "seconds_per_step": seconds[1:], "samples_per_step": options.batch,
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
