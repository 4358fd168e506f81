"""Folders with ``config.json`` and safetensors: a small checkpoint of every family and variant.

The configurations are those of the tests of checkpoints; the installed transformers draws and writes the weights, and
answers in the proof.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.convert.weights.logits import CASES


def cases() -> dict[str, Callable[[], tuple[str, None]]]:
    """Return folders by name of the configuration."""
    return {name: functools.partial(_source, *case) for name, case in CASES.items()}


def _source(kind: str, fields: dict[str, Any]) -> tuple[str, None]:
    return _folder(kind, fields), None


def _folder(kind: str, fields: dict[str, Any]) -> str:
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    from sardonyx.convert.weights.architecture import FAMILIES

    torch.manual_seed(0)
    source: Any = AutoModel if FAMILIES[kind].is_encoder else AutoModelForCausalLM
    model = source.from_config(AutoConfig.for_model(kind, **fields), dtype=torch.float32)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 0.5 if weight.ndim == 1 else 0.0, 0.2)
    folder = Path(tempfile.mkdtemp(prefix="sardonyx-checkpoint-"))
    model.save_pretrained(folder)
    return str(folder)
