"""Recurrent layers of the backend torch as single calls in captured programs, with any number of steps.

Keras writes a recurrent layer step by step in Python. While a model is captured, layers with torch's own activations
are torch's layers, and all others are a ``scan`` over the steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._higher_order_ops.scan import scan_op
from torch.fx.experimental.proxy_tensor import _ModuleStackTracer

from sardonyx.base.replaced_attributes import replaced


@contextlib.contextmanager
def whole_recurrences() -> Iterator[None]:
    """Replace the functions inside of the ``with`` statement."""
    from keras.src import backend

    with contextlib.ExitStack() as stack:
        for name, function in (("lstm", _lstm), ("gru", _gru), ("rnn", _rnn)):
            stack.enter_context(replaced(backend, name, function))
        for name in ("bidirectional_lstm", "bidirectional_gru"):
            if hasattr(backend, name):
                stack.enter_context(replaced(backend, name, _not_fused))
        yield


def _unsupported(name: str, reason: str) -> NotImplementedError:
    """Return the refusal that Keras expects of a backend's recurrent functions.

    ``backend.lstm``, ``gru`` and ``bidirectional_*`` are optional, faster forms: a layer of Keras catches
    `NotImplementedError` of them, and calls ``backend.rnn`` or one layer a direction instead. No other class is caught,
    so that these are no errors of this package, and no caller of a conversion sees them.
    """
    return NotImplementedError(f"{name}: {reason}; Keras computes the layer by its general form instead.")


def _not_fused(*_: Any, **__: Any) -> Any:
    """Let the caller compute both directions as layers of their own."""
    raise _unsupported("a bidirectional layer", "both directions are captured as layers of their own")


def _is_standard(activation: Any, recurrent_activation: Any, mask: Any) -> bool:
    import keras

    chosen = (keras.activations.get(activation), keras.activations.get(recurrent_activation))
    return mask is None and chosen == (keras.activations.tanh, keras.activations.sigmoid)


def _plain(*variables: Any) -> list[Any]:
    from keras.src.backend.torch.core import convert_to_tensor

    return [None if variable is None else convert_to_tensor(variable) for variable in variables]


def _lstm(
    inputs: Any, initial_state_h: Any, initial_state_c: Any, mask: Any, kernel: Any, recurrent_kernel: Any, bias: Any,
    activation: Any, recurrent_activation: Any, return_sequences: bool = False, go_backwards: bool = False,
    unroll: bool = False, **_: Any,
) -> Any:  # fmt: skip
    if not _is_standard(activation, recurrent_activation, mask):
        raise _unsupported("lstm", "expected tanh and sigmoid without a mask")
    kernel, recurrent_kernel, bias = _plain(kernel, recurrent_kernel, bias)
    x, h, c = (value.to(kernel.dtype) for value in _plain(inputs, initial_state_h, initial_state_c))
    weights = [kernel.T, recurrent_kernel.T]
    if bias is not None:
        weights += [bias, torch.zeros_like(bias)]
    x = torch.flip(x, [1]) if go_backwards else x
    outputs, h, c = torch.nn.modules.rnn._VF.lstm(
        x, (h.unsqueeze(0), c.unsqueeze(0)), weights, bias is not None, 1, 0.0, False, False, True
    )
    h, c = h.squeeze(0), c.squeeze(0)
    return h, outputs if return_sequences else h.unsqueeze(1), [h, c]


def _gru(
    inputs: Any, initial_state: Any, mask: Any, kernel: Any, recurrent_kernel: Any, bias: Any, activation: Any,
    recurrent_activation: Any, return_sequences: bool = False, go_backwards: bool = False, unroll: bool = False,
    time_major: bool = False, reset_after: bool = True, **_: Any,
) -> Any:  # fmt: skip
    if not _is_standard(activation, recurrent_activation, mask) or not reset_after or time_major:
        raise _unsupported("gru", "expected tanh and sigmoid without a mask, with reset_after, batch first")
    kernel, recurrent_kernel, bias = _plain(kernel, recurrent_kernel, bias)
    x, h = (value.to(kernel.dtype) for value in _plain(inputs, initial_state))
    weights = [_reset_first(kernel).T, _reset_first(recurrent_kernel).T]
    if bias is not None:
        weights += [_reset_first(row) for row in bias.unbind(0)]
    x = torch.flip(x, [1]) if go_backwards else x
    outputs, h = torch.nn.modules.rnn._VF.gru(x, h.unsqueeze(0), weights, bias is not None, 1, 0.0, False, False, True)
    h = h.squeeze(0)
    return h, outputs if return_sequences else h.unsqueeze(1), [h]


def _reset_first(weight: Any) -> Any:
    """Return weights of the gates update, reset, new in torch's order: reset, update, new."""
    update, reset, new = weight.chunk(3, -1)
    return torch.cat([reset, update, new], -1)


def _rnn(
    step_function: Callable[..., Any], inputs: Any, initial_states: Any, go_backwards: bool = False, mask: Any = None,
    constants: Sequence[Any] | None = None, unroll: bool = False, input_length: Any = None, time_major: bool = False,
    zero_output_for_mask: bool = False, return_all_outputs: bool = True,
) -> Any:  # fmt: skip
    """Compute a layer of any cell: states and outputs keep their values at masked steps."""
    import keras

    tree = keras.tree
    fixed = tuple(_plain(*(constants or ())))

    def rows(value: Any) -> Any:
        value = value if time_major else value.transpose(0, 1)
        return torch.flip(value, [0]) if go_backwards else value

    leaves = [rows(leaf) for leaf in tree.flatten(inputs)]
    steps = [*leaves] if mask is None else [*leaves, rows(mask.bool())]
    states = _plain(*tree.flatten(initial_states))
    count = len(states)

    def step(*values: Any) -> list[Any]:
        current, row = values[: len(start)], values[len(start) : len(start) + len(steps)]
        held = values[len(start) + len(steps) :]
        own = tree.pack_sequence_as(initial_states, list(current[:count]))
        with keras.StatelessScope(list(zip(variables, held[len(fixed) :], strict=True))), _untracked_modules():
            output, after = step_function(
                tree.pack_sequence_as(inputs, list(row[: len(leaves)])), (*own, *held[: len(fixed)])
            )
        outputs, after = tree.flatten(output), tree.flatten(after)
        if mask is not None:
            earlier = [torch.zeros_like(value) for value in outputs] if zero_output_for_mask else current[count:]
            outputs = [torch.where(_aligned(row[-1], y), y, last) for y, last in zip(outputs, earlier, strict=True)]
            after = [torch.where(_aligned(row[-1], y), y, last) for y, last in zip(after, current, strict=False)]
        carried = [*after, *(outputs if carries_output else ())]
        return [value.clone() for value in (*carried, *outputs)]

    carries_output = mask is not None and not zero_output_for_mask
    start = list(states)
    with _recorder() as recorder:
        shape, _ = step_function(
            tree.pack_sequence_as(inputs, [leaf[0] for leaf in leaves]),
            (*tree.pack_sequence_as(initial_states, states), *fixed),
        )
    variables = recorder.variables
    if carries_output:
        start += [torch.zeros_like(value) for value in tree.flatten(shape)]
    # `scan` itself would compile the step by Dynamo, which refuses Keras's cells.
    results = scan_op(step, start, steps, (*fixed, *(_plain(variable.value)[0].clone() for variable in variables)))
    final, collected = results[:count], results[len(start) :]
    outputs = [value if return_all_outputs else value[-1:] for value in collected]
    last = [value[-1] for value in collected]
    if not time_major:
        outputs = [value.transpose(0, 1) for value in outputs]
    return (
        tree.pack_sequence_as(shape, last),
        tree.pack_sequence_as(shape, outputs),
        tree.pack_sequence_as(initial_states, list(final)),
    )


def _untracked_modules() -> Any:
    """Let modules be called without a record of their names: those of the step belong to the tracer outside."""
    return replaced(_ModuleStackTracer, "call_module", lambda _, m, forward, args, kwargs: forward(*args, **kwargs))


def _recorder() -> Any:
    """Return a scope of Keras that lists the variables read inside of it."""
    import keras

    class Recorder(keras.StatelessScope):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.variables: list[Any] = []

        def get_current_value(self, variable: Any) -> None:
            if all(variable is not other for other in self.variables):
                self.variables.append(variable)

    return Recorder()


def _aligned(mask: Any, value: Any) -> Any:
    """Return a mask of rows with the rank of a value."""
    return mask.reshape(mask.shape[0], *([1] * (value.dim() - 1)))
