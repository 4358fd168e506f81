"""Functions of torch that torch.export refuses, replaced by equal programs while a program is captured.

Each reads values of tensors: to check them, or for the shape of a result that few programs use.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._higher_order_ops.scan import scan

from sardonyx.base.replaced_attributes import replaced
from sardonyx.convert.torch import detectors, mapped_functions, open_arguments, quantized_modules
from sardonyx.convert.torch.connectionist import connectionist_loss


@contextlib.contextmanager
def equal_functions() -> Iterator[None]:
    """Replace the functions inside of the ``with`` statement."""
    with contextlib.ExitStack() as stack:
        for owner, name, function in (
            (torch.linalg, "lstsq", _least_squares),
            (torch, "histogram", _histogram),
            (torch, "cov", _covariance),
            (torch.Tensor, "cov", _covariance),
            (torch, "corrcoef", _correlation),
            (torch.Tensor, "corrcoef", _correlation),
            *((owner, name, function) for owner in (torch, torch.Tensor) for name, function in _COMPARISONS.items()),
            (torch.nn.functional, "one_hot", _one_hot),
            (torch.nn.functional, "gaussian_nll_loss", _gaussian_loss),
            (torch.nn.functional, "ctc_loss", connectionist_loss),
            *((torch, function.__name__, equal) for function, equal in quantized_modules.FUNCTIONS.items()),
            (torch, "dequantize", lambda x: x),
            (torch.Tensor, "dequantize", lambda x: x),
            (torch.Tensor, "int_repr", quantized_modules.codes_of),
        ):
            stack.enter_context(replaced(owner, name, function))
        for owner, name, function in (*open_arguments.replacements(), *mapped_functions.replacements()):
            stack.enter_context(replaced(owner, name, function))
        stack.enter_context(mapped_functions.open_tangents())
        attention = sys.modules.get("torch.nn.attention.flex_attention")
        if attention is not None:
            # Without a compiler, which captures nothing inside of another capture. Versions of torch lack some names.
            operators = sys.modules.get("torch._higher_order_ops.flex_attention")
            plain = getattr(operators, "math_attention", None)
            for name, value in (("_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True), ("flex_attention_hop", plain)):
                if value is not None and hasattr(attention, name):
                    stack.enter_context(replaced(attention, name, value))
        for package, name, equal in _EXTENSIONS:
            *path, last = name.split(".")
            holder: Any = sys.modules.get(package)
            for part in path:
                holder = getattr(holder, part, None)
            if hasattr(holder, last):
                stack.enter_context(replaced(holder, last, equal))
        yield


def recursive_filter(waveform: Any, a_coeffs: Any, b_coeffs: Any) -> Any:
    """Return the filter of torchaudio over the last axis as a scan: its own loop is a custom operator.

    Args:
        waveform: ``[batch, filters, samples]``.
        a_coeffs: Coefficients of the outputs ``[filters, order + 1]``, the latest first.
        b_coeffs: Coefficients of the inputs ``[filters, order + 1]``.
    """
    filters, order = a_coeffs.shape[0], a_coeffs.shape[1] - 1
    inputs = (b_coeffs / a_coeffs[:, :1]).flip(1).unsqueeze(1)
    past = (a_coeffs / a_coeffs[:, :1])[:, 1:].flip(1)
    padded = torch.nn.functional.pad(waveform, (order, 0))
    driven = torch.nn.functional.conv1d(padded, inputs, groups=filters)
    if order == 0:
        return driven

    def step(outputs: Any, value: Any) -> tuple[Any, Any]:
        latest = value - (outputs * past).sum(-1)
        return torch.cat([outputs[..., 1:], latest.unsqueeze(-1)], -1), latest.clone()

    start = waveform.new_zeros(waveform.shape[0], filters, order)
    return scan(step, start, driven.movedim(-1, 0))[1].movedim(0, -1)


def _least_squares(a: Any, b: Any, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Return the solution alone: the shape of the residuals depends on the rank, which torch refuses to capture."""
    is_vector = b.ndim == a.ndim - 1
    solution = torch.linalg.pinv(a, rtol=rcond) @ (b.unsqueeze(-1) if is_vector else b)
    nothing = a.new_empty(0)
    return torch.return_types.linalg_lstsq(
        (solution.squeeze(-1) if is_vector else solution, nothing, nothing.long(), nothing)
    )


def _histogram(x: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False) -> Any:
    """Return a histogram from operators that torch captures."""
    if isinstance(bins, int):
        low, high = range or (x.min(), x.max())
        bins = low + (high - low) * torch.linspace(0, 1, bins + 1, dtype=x.dtype)
    flat = x.reshape(-1, 1)
    is_last = torch.arange(bins.shape[0] - 1) == bins.shape[0] - 2
    inside = (flat >= bins[:-1]) & ((flat < bins[1:]) | (is_last & (flat == bins[1:])))
    counts = (inside * (1 if weight is None else weight.reshape(-1, 1))).sum(0).to(x.dtype)
    if density:
        counts = counts / (counts.sum() * bins.diff())
    return torch.return_types.histogram((counts, bins))


def _covariance(x: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """Return the covariance of rows, or of one row with itself; the weights are not checked."""
    rows = x.unsqueeze(0) if x.ndim < 2 else x
    if fweights is None and aweights is None:
        centered = rows - rows.mean(1, keepdim=True)
        result = centered @ centered.mT.conj() / (rows.shape[1] - correction)
    else:
        weights = torch.ones_like(rows[0]) if fweights is None else fweights.to(rows.dtype)
        if aweights is not None:
            weights = weights * aweights
        total = weights.sum()
        lost = correction if aweights is None else correction * (weights * aweights).sum() / total
        centered = rows - (rows * weights).sum(1, keepdim=True) / total
        result = (centered * weights) @ centered.mT.conj() / (total - lost)
    return result.squeeze() if x.ndim < 2 else result


def _correlation(x: Any) -> Any:
    """Return the correlation of rows."""
    covariance = _covariance(x)
    if covariance.ndim == 0:
        return covariance / covariance
    deviation = covariance.diagonal().sqrt()
    return (covariance / deviation[:, None] / deviation[None]).clamp(-1, 1)


def _equal(input: Any, other: Any) -> Any:
    """Return a tensor that is True if two tensors are equal: a branch on it is recorded, one on a bool is refused."""
    return (input == other).all() if tuple(input.shape) == tuple(other.shape) else torch.tensor(False)


def _all_close(input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """Return a tensor that is True if all elements of two tensors are close."""
    return torch.isclose(input, other, rtol, atol, equal_nan).all()


_COMPARISONS = {"equal": _equal, "allclose": _all_close}

_own_one_hot = torch.nn.functional.one_hot


def _one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """Return one-hot vectors; the number of classes, if it is not fixed, is counted."""
    if num_classes != -1:
        return _own_one_hot(tensor, num_classes)
    count = tensor.max().item() + 1
    torch._check(count >= 0)
    return (tensor.unsqueeze(-1) == torch.arange(count)).long()


def _gaussian_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    """Return the loss without the check of the variances."""
    if not isinstance(var, torch.Tensor):
        var = var * torch.ones_like(input)
    if var.dim() == input.dim() - 1:
        var = var.unsqueeze(-1)
    var = var.clamp(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


_EXTENSIONS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("torchvision.ops.boxes", "batched_nms", detectors.batched_suppression),
    ("torchvision.ops", "batched_nms", detectors.batched_suppression),
    ("torchvision.ops.poolers", "_infer_scale", detectors.power_of_two),
    ("torchvision.models.detection._utils", "_topk_min", detectors.least_count),
    ("torchvision.models.detection._utils", "BoxCoder.decode", detectors.decoded_boxes),
    ("torchvision.models.detection.roi_heads", "paste_masks_in_image", detectors.pasted_masks),
    ("torchvision.models.detection.transform", "_resize_image_and_masks", detectors.resized_image),
    ("torchvision.models.detection.transform", "GeneralizedRCNNTransform.batch_images", detectors.batched_images),
    ("torchvision.models.detection.transform", "paste_masks_in_image", detectors.pasted_masks),
    ("torchvision.models.detection.roi_heads", "heatmaps_to_keypoints", detectors.keypoints),
    ("torchaudio.functional.filtering", "_lfilter", recursive_filter),
)
"""Functions of packages beside torch, if these are loaded: package, name, equal function."""
