"""Networks of torchvision: one of each family, segmentation and detection, on small images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CLASSIFIERS = [
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "efficientnet_v2_s",
    "googlenet",
    "inception_v3",
    "maxvit_t",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "regnet_y_400mf",
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "shufflenet_v2_x0_5",
    "squeezenet1_0",
    "swin_t",
    "swin_v2_t",
    "vgg11_bn",
    "vit_b_16",
    "wide_resnet50_2",
]
SEGMENTATION = ["deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"]
DETECTION = [
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "fcos_resnet50_fpn",
    "keypointrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn",
    "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
]
SMALL = {"min_size": 96, "max_size": 128}
"""Sizes to which detectors resize images."""
OPTIONS = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": SMALL,
    "fcos_resnet50_fpn": SMALL,
    "keypointrcnn_resnet50_fpn": SMALL,
    "maskrcnn_resnet50_fpn": SMALL,
    "retinanet_resnet50_fpn": SMALL,
    "googlenet": {"init_weights": False},
    "inception_v3": {"init_weights": False},
    "vit_b_16": {"image_size": 64},
}
"""Options of networks by name."""
IMAGES = {"inception_v3": 96, "maxvit_t": 224}
"""Sizes of images, where 64 is too small."""
OTHERS = {
    "raft_small": (1, 3, 128, 128),
    "r3d_18": (1, 3, 8, 64, 64),
    "swin3d_t": (1, 3, 8, 64, 64),
    "mvit_v1_b": (1, 3, 16, 224, 224),
}
"""Networks of several images, with the shapes of these."""


def cases() -> dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]]:
    """Return networks with example inputs, by name."""
    import torch
    import torchvision

    def build(name: str, shape: tuple[int, ...], count: int = 1) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
        def make() -> tuple[Any, tuple[Any, ...]]:
            torch.manual_seed(0)
            options: dict[str, Any] = {"weights_backbone": None} if name in (*SEGMENTATION, *DETECTION) else {}
            options |= OPTIONS.get(name, {})
            model = torchvision.models.get_model(name, weights=None, **options).eval()
            inputs = tuple(torch.rand(*shape) for _ in range(count))
            return model, ([inputs[0][0]],) if name in DETECTION else inputs

        return make

    result = {}
    for name in CLASSIFIERS:
        result[name] = build(name, (2, 3, IMAGES.get(name, 64), IMAGES.get(name, 64)))
    for name in SEGMENTATION:
        result[name] = build(name, (2, 3, 64, 96))
    for name in DETECTION:
        result[name] = build(name, (1, 3, 100, 120))
    for name, shape in OTHERS.items():
        result[name] = build(name, shape, 2 if name == "raft_small" else 1)
    return result
