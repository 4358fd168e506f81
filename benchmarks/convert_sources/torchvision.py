"""Networks of torchvision: one of each family, segmentation and detection."""

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
OTHERS = ["raft_small", "r3d_18", "swin3d_t", "mvit_v1_b"]


def cases() -> dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]]:
    """Return networks with example inputs, by name."""
    import torch
    import torchvision

    def build(name: str, shape: tuple[int, ...], count: int = 1) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
        def make() -> tuple[Any, tuple[Any, ...]]:
            torch.manual_seed(0)
            options = {"weights_backbone": None} if name in (*SEGMENTATION, *DETECTION) else {}
            options |= {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
            model = torchvision.models.get_model(name, weights=None, **options).eval()
            inputs = tuple(torch.rand(*shape) for _ in range(count))
            return model, ([inputs[0][0]],) if name in DETECTION else inputs

        return make

    result = {}
    for name in CLASSIFIERS:
        result[name] = build(name, (2, 3, 299, 299) if name == "inception_v3" else (2, 3, 224, 224))
    for name in SEGMENTATION:
        result[name] = build(name, (2, 3, 128, 160))
    for name in DETECTION:
        result[name] = build(name, (1, 3, 200, 240))
    for name in OTHERS:
        result[name] = build(
            name, (1, 3, 16, 224, 224) if name != "raft_small" else (1, 3, 128, 128), 1 + (name == "raft_small")
        )
    return result
