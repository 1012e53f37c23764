"""Names of the networks that are compared; torchvision, which defines them, must be installed."""

from __future__ import annotations

from cputrain.errors import NotFound

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


def select_networks(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the named networks, by default all.

    Raises:
        NotFound: There is no such network.
    """
    for name in names:
        if name not in NETWORKS:
            raise NotFound(
                f"the network {name}", f"must be one of {', '.join(NETWORKS)}",
                do="Name none to run all.",
            )  # fmt: skip
    return names or NETWORKS
