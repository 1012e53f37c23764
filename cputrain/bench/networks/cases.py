"""Names of the networks that are compared; torchvision, which defines them, must be installed."""

from __future__ import annotations

NETWORKS = (
    "alexnet", "resnet18", "resnet50", "vgg16", "densenet161", "googlenet", "squeezenet1_0",
    "inception_v3", "shufflenet_v2_x1_0", "mobilenet_v2", "mobilenet_v3_large",
    "mobilenet_v3_small", "resnext50_32x4d", "wide_resnet50_2", "mnasnet1_0", "efficientnet_b0",
    "efficientnet_b4", "regnet_y_400mf",
)  # fmt: skip
"""Networks compared by default."""

CASES = dict.fromkeys(NETWORKS, "as defined by torchvision")
"""Description of each network."""

IMAGE_SIZE = 224
"""Height and width of images in pixels."""
