"""The context in which torch captures a program: the module and its examples are afterwards as they were."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._functorch import eager_transforms
from torch.autograd import forward_ad
from torch.export import _trace
from torch.utils import _pytree as pytree

from sardonyx.base.replaced_attributes import replaced


@contextlib.contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Put all parts of a module into evaluation mode, and restore their modes."""
    # Frozen TorchScript has no modes.
    modes = [(part, part.training) for part in module.modules() if getattr(part, "training", False)]
    for part, _ in modes:
        part.training = False
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings of torch, and its print of the graph of a refused program; errors remain exceptions."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch.fx", "torch._dynamo", "torch.onnx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        # The name in torch's module alone: what the program itself prints is printed.
        with warnings.catch_warnings(), replaced(_trace, "print", lambda *_, **__: None, is_new=True):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def unmarked(examples: Any) -> Iterator[None]:
    """Leave torch's marks of open axes as they are; a refused capture adds its own, which the next would obey."""
    tensors = [leaf for leaf in pytree.tree_leaves(examples) if isinstance(leaf, torch.Tensor)]
    before = [{name: copy.copy(mark) for name, mark in vars(leaf).items() if "_dynamo" in name} for leaf in tensors]
    try:
        yield
    finally:
        for leaf, marks in zip(tensors, before, strict=True):
            for name in [name for name in vars(leaf) if "_dynamo" in name]:
                delattr(leaf, name)
            for name, mark in marks.items():
                setattr(leaf, name, mark)


@contextlib.contextmanager
def unchanged_transforms() -> Iterator[None]:
    """Leave the transforms of ``torch.func`` that are active unchanged; a refused capture keeps those it was in."""
    functions = torch._C._functorch
    depth, level = functions.get_dynamic_layer_stack_depth(), forward_ad._current_level
    nesting = eager_transforms.JVP_NESTING
    try:
        yield
    finally:
        functions.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        eager_transforms.JVP_NESTING = nesting
        while forward_ad._current_level > level:
            forward_ad.exit_dual_level()
        if level < 0:
            _leave_forward_gradients()


def _leave_forward_gradients() -> None:
    """Leave the level of forward gradients that nodes of a refused program entered; torch does not tell the level."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:  # There is one level at most.
        level = 0
    torch._C._exit_dual_level(level=level)
