"""Recurrent layers and packed sequences as single calls in captured programs.

torch.export writes a recurrent layer step by step, for a fixed number of steps, and refuses packed sequences. While a
program is captured, the functions behind these layers are operators whose results have open sizes;
:mod:`.operators.recurrent` translates these operators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

from sardonyx.base.replaced_attributes import replaced

_LAYERS = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
"""Recurrent layers, with the number of states."""


_SIMULATED = (
    "fake_quantize_per_tensor_affine_cachemask",
    "fake_quantize_per_channel_affine_cachemask",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
)
"""Operators of simulated quantization, whose shapes torch does not infer."""


@contextlib.contextmanager
def whole_layers() -> Iterator[None]:
    """Replace the functions inside of the ``with`` statement."""
    operators = _define_operators()
    functions = torch.nn.modules.rnn._VF
    with contextlib.ExitStack() as stack:
        for name in _LAYERS:
            stack.enter_context(replaced(functions, name, _dispatching(name, operators)))
        packing = torch.nn.utils.rnn._VF
        stack.enter_context(replaced(packing, "_pack_padded_sequence", operators.pack_padded.default))
        stack.enter_context(replaced(packing, "_pad_packed_sequence", operators.pad_packed.default))
        for layer in (torch.nn.RNNBase, torch.nn.LSTM):
            # The check compares sizes that are read from tensors; the module has passed it with the examples.
            stack.enter_context(replaced(layer, "check_forward_args", lambda *_: None))
        yield


def _dispatching(name: str, operators: Any) -> Callable[..., Any]:
    """Return a function with the arguments of torch's: the second is the batch sizes if sequences are packed."""
    plain, packed = getattr(operators, name).default, getattr(operators, f"{name}_packed").default

    def function(x: Any, second: Any, *rest: Any) -> Any:
        if _LAYERS[name] == 2:
            is_packed = isinstance(second, torch.Tensor)
            states: Sequence[Any] = rest[0] if is_packed else second
        else:
            is_packed = isinstance(rest[0], torch.Tensor)
            states = [rest[0] if is_packed else second]
        states = list(states)
        return packed(x, second, states, *rest[1:]) if is_packed else plain(x, states, *rest)

    return function


@cache
def _define_operators() -> Any:
    library = torch.library.Library("sardonyx", "DEF")
    _libraries.append(library)
    for name, count in _LAYERS.items():
        results = ", ".join(["Tensor"] * (1 + count))
        options = "Tensor[] params, bool biases, int layers, float dropout, bool train, bool bidirectional"
        library.define(f"{name}(Tensor x, Tensor[] states, {options}, bool batch_first) -> ({results})")
        library.define(f"{name}_packed(Tensor x, Tensor batch_sizes, Tensor[] states, {options}) -> ({results})")
        own = getattr(torch._VF, name)
        library.impl(name, _plain_kernel(own, count), "CompositeExplicitAutograd")
        library.impl(f"{name}_packed", _packed_kernel(own, count), "CompositeExplicitAutograd")
        torch.library.register_fake(f"sardonyx::{name}", _plain_fake, lib=library)
        torch.library.register_fake(f"sardonyx::{name}_packed", _packed_fake, lib=library)
    library.define("pack_padded(Tensor x, Tensor lengths, bool batch_first) -> (Tensor, Tensor)")
    library.impl("pack_padded", torch._VF._pack_padded_sequence, "CompositeExplicitAutograd")
    torch.library.register_fake("sardonyx::pack_padded", _pack_fake, lib=library)
    library.define(
        "pad_packed(Tensor x, Tensor batch_sizes, bool batch_first, Scalar padding, SymInt total) -> (Tensor, Tensor)"
    )
    library.impl("pad_packed", torch._VF._pad_packed_sequence, "CompositeExplicitAutograd")
    torch.library.register_fake("sardonyx::pad_packed", _pad_fake, lib=library)
    simulated = torch.library.Library("aten", "IMPL", "Meta")
    _libraries.append(simulated)
    for name in _SIMULATED:
        simulated.impl(name, lambda x, *_: (torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)))
    return torch.ops.sardonyx


_libraries: list[Any] = []
"""The library of operators, which ends with its last reference."""


def _plain_kernel(own: Callable[..., Any], count: int) -> Callable[..., Any]:
    def kernel(x: Any, states: Sequence[Any], *rest: Any) -> Any:
        return own(x, list(states) if count == 2 else states[0], *rest)

    return kernel


def _packed_kernel(own: Callable[..., Any], count: int) -> Callable[..., Any]:
    def kernel(x: Any, batch_sizes: Any, states: Sequence[Any], *rest: Any) -> Any:
        return own(x, batch_sizes, list(states) if count == 2 else states[0], *rest)

    return kernel


def _plain_fake(
    x: Any, states: Sequence[Any], params: Any, biases: bool, layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    torch._check(x.shape[-1] == params[0].shape[-1])  # Replaces the module's own check.
    features = states[0].shape[-1] * (2 if bidirectional else 1)
    return x.new_empty(*x.shape[:-1], features), *[torch.empty_like(state) for state in states]


def _packed_fake(
    x: Any, batch_sizes: Any, states: Sequence[Any], params: Any, biases: bool, layers: int, dropout: float,
    train: bool, bidirectional: bool,
) -> Any:  # fmt: skip
    return _plain_fake(x, states, params, biases, layers, dropout, train, bidirectional, False)


def _pack_fake(x: Any, lengths: Any, batch_first: bool) -> Any:
    context = torch.library.get_ctx()
    rows, steps = context.new_dynamic_size(), context.new_dynamic_size()
    return x.new_empty(rows, *x.shape[2:]), lengths.new_empty(steps)


def _pad_fake(x: Any, batch_sizes: Any, batch_first: bool, padding: Any, total: Any) -> Any:
    context = torch.library.get_ctx()
    batch = context.new_dynamic_size()
    steps = total if isinstance(total, torch.SymInt) or total > 0 else batch_sizes.shape[0]
    leading = (batch, steps) if batch_first else (steps, batch)
    return x.new_empty(*leading, *x.shape[1:]), batch_sizes.new_empty(batch)
