"""The connectionist temporal classification loss as a program that torch.export captures.

Source: A. Graves et al., "Connectionist temporal classification" (2006), the forward variables.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._higher_order_ops.scan import scan


def connectionist_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Return the loss; see ``torch.nn.functional.ctc_loss``."""
    is_single = log_probs.dim() == 2
    if is_single:
        log_probs = log_probs.unsqueeze(1)
        targets = targets.unsqueeze(0) if targets.dim() == 1 else targets
    steps, last = torch.as_tensor(input_lengths).reshape(-1), torch.as_tensor(target_lengths).reshape(-1).long()
    padded = targets.long() if targets.dim() == 2 else _rows(targets.long(), last)
    padded = padded.clamp(0, log_probs.shape[-1] - 1)  # Padding of rows may be any number.
    loss = -_log_likelihood(log_probs, _with_blanks(padded, blank), steps, last, blank)
    if zero_infinity:
        loss = torch.where(torch.isinf(loss), 0.0, loss)
    if reduction == "mean":
        return (loss / last.clamp(min=1).to(loss.dtype)).mean()
    return loss.sum() if reduction == "sum" else loss.squeeze(0) if is_single else loss


def _rows(targets: Any, lengths: Any) -> Any:
    """Return targets that stand one behind the other as rows; positions behind a row's end are never read."""
    starts = lengths.cumsum(0) - lengths
    at = starts[:, None] + torch.arange(targets.shape[0])
    return targets[at.clamp(max=targets.shape[0] - 1)]


def _with_blanks(targets: Any, blank: int) -> Any:
    """Return rows with a blank before, between and behind the labels."""
    blanks = torch.full_like(targets, blank)
    pairs = torch.stack([blanks, targets], -1).flatten(1)
    return torch.cat([pairs, torch.full_like(targets[:, :1], blank)], 1)


def _log_likelihood(log_probs: Any, labels: Any, steps: Any, lengths: Any, blank: int) -> Any:
    before = torch.cat([torch.full_like(labels[:, :2], blank), labels[:, :-2]], 1)
    may_skip = (labels != blank) & (labels != before)
    start = torch.full(labels.shape, -math.inf, dtype=log_probs.dtype)
    start = torch.cat([torch.zeros_like(start[:, :1]), start[:, 1:]], 1)
    nothing = torch.full((1, 1), -math.inf, dtype=log_probs.dtype)

    def step(alpha: Any, at: Any) -> Any:
        number, row = at
        last = torch.cat([nothing.expand(alpha.shape[0], 1), alpha[:, :-1]], 1)
        skipped = torch.cat([nothing.expand(alpha.shape[0], 2), alpha[:, :-2]], 1)
        skipped = torch.where(may_skip, skipped, -math.inf)
        most = torch.maximum(torch.maximum(alpha, last), skipped)
        offset = torch.where(torch.isinf(most), 0.0, most)
        total = (alpha - offset).exp() + (last - offset).exp() + (skipped - offset).exp()
        new = total.log() + offset + row.gather(1, labels)
        return torch.where((number < steps)[:, None], new, alpha), number.clone()

    numbers = torch.arange(log_probs.shape[0])
    alpha, _ = scan(step, start, (numbers, log_probs))
    end = 2 * lengths[:, None]
    final = alpha.gather(1, end).squeeze(1)
    other = torch.where(lengths > 0, alpha.gather(1, (end - 1).clamp(min=0)).squeeze(1), -math.inf)
    most = torch.maximum(final, other)
    offset = torch.where(torch.isinf(most), 0.0, most)
    return ((final - offset).exp() + (other - offset).exp()).log() + offset
