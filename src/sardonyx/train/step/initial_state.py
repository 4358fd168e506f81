"""The state of training before the first step, and the zeros of the weights that it begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from sardonyx.core.ir.types import TensorType
from sardonyx.errors import OptionError
from sardonyx.train.step.step import Step


def initial_state(step: Step, model: ir.Model) -> list[np.ndarray]:
    """Return the tensors of the state, in the order of :attr:`.Step.state`.

    The arrays are read-only views where possible: of the weights of the model, and of one number.

    Args:
        step: The functions of a step.
        model: The model whose weights are trained.
    """
    arrays = []
    for one in step.state:
        if one.initial is not None:
            arrays.append(_filled(one.type, one.initial))
            continue
        tensor = model.graph.initializers[one.name.partition(":")[2]].const_value
        assert tensor is not None
        arrays.append(tensor.numpy().astype(one.type.dtype.numpy(), copy=False))
    return arrays


def positions_with_zeros(model: ir.Model, names: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of matrices with zeros.

    Args:
        model: The model.
        names: The trained weights.

    Raises:
        OptionError: No weight has a zero.
    """
    positions = []
    for position, name in enumerate(names):
        tensor = model.graph.initializers[name].const_value
        if tensor is not None and len(tensor.shape) > 1 and not tensor.numpy().all():
            positions.append(position)
    if not positions:
        raise OptionError("no trained weight has a zero.", where="keep_zeros", remedy="Prune the model first.")
    return tuple(positions)


def _filled(type: TensorType, value: float) -> np.ndarray:
    return np.broadcast_to(np.array(value, type.dtype.numpy()), cast("tuple[int, ...]", type.shape))
