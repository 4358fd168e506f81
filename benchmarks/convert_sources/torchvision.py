"""Networks of torchvision: one of each family, segmentation and detection, on small images."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from convert_sources.transformers import without_ties

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
SEGMENTATION = ["deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50", "fcn_resnet50", "lraspp_mobilenet_v3_large"]
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
ALL_SCORES = {"score_thresh": 0.0, "topk_candidates": 20, "detections_per_img": 20, "num_classes": 5}
"""Options by which networks with random weights detect something."""
ALL_BOXES = {
    "box_score_thresh": 0.0, "box_detections_per_img": 10, "rpn_pre_nms_top_n_test": 60, "rpn_post_nms_top_n_test": 40
}  # fmt: skip
"""The same options of networks with regions."""
OPTIONS: dict[str, dict[str, Any]] = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": SMALL | ALL_BOXES | {"num_classes": 5},
    "fcos_resnet50_fpn": SMALL | ALL_SCORES,
    "keypointrcnn_resnet50_fpn": SMALL | ALL_BOXES | {"num_classes": 2, "num_keypoints": 5},
    "maskrcnn_resnet50_fpn": SMALL | ALL_BOXES | {"num_classes": 5},
    "retinanet_resnet50_fpn": SMALL | ALL_SCORES,
    "ssd300_vgg16": ALL_SCORES,
    "ssdlite320_mobilenet_v3_large": ALL_SCORES,
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
    "mc3_18": (1, 3, 8, 64, 64),
    "r2plus1d_18": (1, 3, 8, 64, 64),
    "s3d": (1, 3, 16, 64, 64),
    "swin3d_t": (1, 3, 8, 64, 64),
    "mvit_v1_b": (1, 3, 16, 224, 224),
}
"""Networks of several images, with the shapes of these."""
DAMPING = 0.1
"""Factor of the weights that move boxes and of those that draw masks."""
SPREAD = 3.0
"""Factor of the weights that score boxes: scores of random weights are equal but for rounding errors."""
SPREADS = {"ssd300_vgg16": 0.003}
"""The factors of networks without normalization, whose scores are 0 or 1 otherwise."""


def _spread_scores(model: Any, spread: float) -> None:
    """Make random weights tell boxes apart, so that the order of scores is decided.

    Channels are divided by their root mean square over random images, without which the backbone's answers are almost
    zero, and the weights of layers that score boxes are multiplied; boxes are moved by less,
    and edges of masks are less steep, so that rounding errors remain small.
    """
    import torch

    norms = [part for part in model.backbone.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    for part in norms:
        part.momentum = None
        part.train()
    with torch.no_grad():
        if norms:
            model.backbone(torch.randn(4, 3, 96, 128))
        for part in norms:
            part.running_var += part.running_mean**2
            part.running_mean.zero_()
        for name, part in model.named_modules():
            if re.search(r"cls_logits|cls_score|classification_head", name) and hasattr(part, "weight"):
                part.weight.mul_(spread)
            elif name.endswith(("bbox_pred", "mask_fcn_logits")):
                part.weight.mul_(DAMPING)
    model.eval()


def cases() -> dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]]:
    """Return networks with example inputs, by name."""
    import torch
    import torchvision

    def build(name: str, shape: tuple[int, ...], count: int = 1) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
        def make() -> tuple[Any, tuple[Any, ...]]:
            torch.manual_seed(0)
            options: dict[str, Any] = {"weights_backbone": None} if name in (*SEGMENTATION, *DETECTION) else {}
            options |= OPTIONS.get(name, {})
            model = without_ties(torchvision.models.get_model(name, weights=None, **options).eval())
            if name in DETECTION:
                _spread_scores(model, SPREADS.get(name, SPREAD))
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
