"""torchvision: transforms of its second version, tv_tensors, MixUp and CutMix in collate_fn."""

import numpy as np
import torch
from batches import seed, show
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate

schemas = torch.library.Library("torchvision", "FRAGMENT")
for operator in ("nms", "qnms"):  # its wheel may be for another torch
    schemas.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from torchvision import tv_tensors
from torchvision.transforms import v2


class Pictures(Dataset):
    def __init__(self, transform):
        noise = np.random.default_rng(0)
        self.pixels = noise.integers(0, 255, (24, 36, 40, 3), dtype=np.uint8)
        self.transform = transform

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, row):
        return self.transform(Image.fromarray(self.pixels[row])), row % 6


class Boxes(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, row):
        image = tv_tensors.Image(torch.full((3, 20, 30), row, dtype=torch.uint8))
        boxes = tv_tensors.BoundingBoxes(
            [[1, 2, 10, 12], [row, row, row + 5, row + 5]], format="XYXY", canvas_size=(20, 30)
        )
        return v2.RandomHorizontalFlip()(image, {"boxes": boxes})


def main():
    transform = v2.Compose([
        v2.RandomResizedCrop(16, antialias=True), v2.RandomHorizontalFlip(), v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3),
    ])  # fmt: skip
    mix = v2.RandomChoice([v2.MixUp(num_classes=6), v2.CutMix(num_classes=6)])
    for workers in (0, 2):
        seed(3)
        loader = DataLoader(
            Pictures(transform),
            batch_size=5,
            shuffle=True,
            num_workers=workers,
            collate_fn=lambda samples: mix(*default_collate(samples)),
        )
        show(f"mixed {workers}", loader)
        plain = DataLoader(Pictures(transform), batch_size=5, num_workers=workers)
        show(f"plain {workers}", plain)
        boxes = DataLoader(Boxes(), batch_size=3, num_workers=workers, collate_fn=list)
        show(f"boxes {workers}", boxes)


if __name__ == "__main__":
    main()
