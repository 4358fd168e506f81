"""The inputs of a Keras model: names, declared shapes, examples that the model accepts; its answers by name."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from sardonyx.base.replaced_attributes import replaced
from sardonyx.convert.imported import Answers, Feeds, Options
from sardonyx.errors import EvaluationError, OptionError

TRIED_SIZES = (8, 32, 64, 16, 96, 128, 224, 256)
"""Values for sizes that a model declares as open, until it runs."""


@dataclass
class Signature:
    """A Keras model with its inputs as a list of arrays.

    Attributes:
        model: The model or layer.
        names: Names of the inputs, distinct identifiers.
        structure: The inputs as the model is called with them, an index of `arrays` at each leaf.
        arrays: Examples on which the model runs.
        open_axes: The axes that each input declares as open; None if the model declares no inputs.
        outputs: Names of the outputs.
        states: Recurrent layers that keep their states between calls, and the states before the conversion.
    """

    model: Any
    names: list[str]
    structure: Any
    arrays: list[np.ndarray]
    open_axes: list[tuple[int, ...]] | None
    outputs: list[str]
    states: list[tuple[Any, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        import keras

        layers = self.model._flatten_layers() if isinstance(self.model, keras.Layer) else ()
        for layer in layers:
            if getattr(layer, "stateful", False) and getattr(layer, "states", None) is not None:
                arrays = keras.tree.map_structure(keras.ops.convert_to_numpy, layer.states)
                self.states.append((layer, keras.tree.map_structure(np.array, arrays)))

    @property
    def notes(self) -> list[str]:
        """Return a remark for each layer that keeps its states."""
        return [
            f"the states of '{layer.name}' are constants: the model is that of the next call"
            for layer, _ in self.states
        ]

    def call(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the results of the model's next call, as a flat list; states are constants, and nothing is written."""
        with contextlib.ExitStack() as stack:
            for layer, arrays in self.states:
                stack.enter_context(replaced(layer, "stateful", False))
                initial = partial(_constant_state, arrays)
                stack.enter_context(replaced(layer, "get_initial_state", initial))
            return self._called(leaves)

    def _called(self, leaves: Sequence[Any]) -> list[Any]:
        import keras

        arguments = keras.tree.map_structure(lambda index: leaves[index], self.structure)
        options = dict(arguments[1])
        if getattr(self.model, "_call_has_training_arg", False):
            # Layers that change images at random do so by default.
            options.setdefault("training", False)
        results: list[Any] = keras.tree.flatten(self.model(*arguments[0], **options))
        return results

    def run(self, feeds: Feeds) -> Answers:
        """Return the model's answers.

        Raises:
            EvaluationError: Keras refuses the feeds.
        """
        import keras

        try:
            tensors = [keras.ops.convert_to_tensor(np.array(feeds[name])) for name in self.names]
            self._restore_states()
            results = [np.array(keras.ops.convert_to_numpy(value)) for value in self._called(tensors)]
        except Exception as error:  # Layers raise any exception.
            raise EvaluationError(f"{type(error).__name__}: {str(error)[:300]}", where="the source") from error
        finally:
            self._restore_states()
        return dict(zip(self.outputs, results, strict=True))

    def _restore_states(self) -> None:
        import keras

        for layer, arrays in self.states:
            for variable, array in zip(keras.tree.flatten(layer.states), keras.tree.flatten(arrays), strict=True):
                variable.assign(array)


def _constant_state(arrays: Any, batch_size: Any = None) -> Any:
    """Return the states that a layer has, in place of zeros."""
    import keras

    return keras.tree.map_structure(keras.ops.convert_to_tensor, arrays)


def signature_of(model: Any, options: Options) -> Signature:
    """Return a model with its inputs and examples.

    Raises:
        OptionError: Examples are missing, or the model refuses them.
    """
    import keras

    declared = getattr(model, "inputs", None) if isinstance(model, keras.Model) else None
    if options.examples:
        arguments, names = _caller_arguments(model, options.examples, declared)
        leaves = [np.asarray(leaf) for leaf in keras.tree.flatten(arguments)]
        structure = keras.tree.pack_sequence_as(arguments, list(range(len(leaves))))
        fits = declared is not None and len(declared) == len(leaves)
        names = [_name_of(one) for one in declared] if fits and declared is not None else names
        signature = Signature(model, _identifiers(names), structure, leaves, None, [])
        if fits and declared is not None:
            signature.open_axes = [_open_axes(one) for one in declared]
        _require_running(signature)
        return signature
    if not declared:
        raise OptionError(
            "the model declares no inputs, and example inputs are missing",
            where="example_inputs",
            remedy="Pass example inputs (`--sample x.npz`).",
        )
    names = _identifiers([_name_of(one) for one in declared])
    inputs = getattr(model, "_inputs_struct", None)
    inputs = list(declared) if inputs is None else inputs
    order = {id(one): index for index, one in enumerate(declared)}
    structure = keras.tree.map_structure(lambda one: order[id(one)], inputs)
    if isinstance(structure, list) and len(structure) == 1:
        structure = structure[0]
    axes = [_open_axes(one) for one in declared]
    error: OptionError | None = None
    for size in TRIED_SIZES:
        signature = Signature(
            model, names, ((structure,), {}), [_drawn(one, size, i) for i, one in enumerate(declared)], axes, []
        )
        try:
            _require_running(signature)
        except OptionError as refusal:
            error = refusal
            continue
        return signature
    assert error is not None
    raise error


def _caller_arguments(
    model: Any, examples: Any, declared: Any
) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], list[str]]:
    """Return the caller's examples as arguments of the model, with names of their leaves."""
    if isinstance(examples, Mapping):
        names = [str(name) for name in examples]
        if declared is not None and {_name_of(one) for one in declared} == set(names):
            ordered = [examples[_name_of(one)] for one in declared]
            inputs = getattr(model, "_inputs_struct", None)
            whole: Any = dict(examples) if isinstance(inputs, dict) else ordered if len(ordered) > 1 else ordered[0]
            return ((whole,), {}), names
        if all(name.startswith("arr_") for name in names):
            return _positional(list(examples.values()), declared)
        return ((), dict(examples)), names
    return _positional(list(examples), declared)


def _positional(values: list[Any], declared: Any) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], list[str]]:
    import keras

    if declared is not None and len(values) == len(declared) > 1:
        return ((values,), {}), [_name_of(one) for one in declared]
    count = len(keras.tree.flatten(values))
    return (tuple(values), {}), [f"x{index}" if count > 1 else "x" for index in range(count)]


def _open_axes(declared: Any) -> tuple[int, ...]:
    return tuple(axis for axis, size in enumerate(declared.shape) if size is None)


def _name_of(declared: Any) -> str:
    """Return the name of the layer that declares an input."""
    history = getattr(declared, "_keras_history", None)
    return str(declared.name if history is None else history.operation.name)


def _identifiers(names: Sequence[str]) -> list[str]:
    """Return names as distinct identifiers."""
    result: list[str] = []
    for name in names:
        base = re.sub(r"\W", "_", name)
        base = base if base.isidentifier() else f"x_{base}"
        number, unique = 1, base
        while unique in result:
            number += 1
            unique = f"{base}_{number}"
        result.append(unique)
    return result


def _drawn(declared: Any, size: int, seed: int) -> np.ndarray:
    """Return an example for a declared input; open sizes are 2 for the batch, else `size`.

    Raises:
        OptionError: The element type cannot be drawn.
    """
    shape = [(2 if axis == 0 else size) if n is None else int(n) for axis, n in enumerate(declared.shape)]
    generator = np.random.default_rng(seed)
    dtype = str(declared.dtype)
    if dtype == "bool":
        return np.asarray(generator.integers(0, 2, shape) > 0)
    if dtype.startswith(("int", "uint")):
        return generator.integers(0, 2, shape).astype(dtype)
    if dtype == "bfloat16":
        import ml_dtypes

        return generator.standard_normal(shape).astype(ml_dtypes.bfloat16)
    if not dtype.startswith("float"):
        raise OptionError(
            f"no example can be drawn for the input '{declared.name}' of type {dtype}",
            where="example_inputs",
            remedy="Pass example inputs; texts need the layers of TensorFlow.",
        )
    return generator.standard_normal(shape).astype(dtype)


def _require_running(signature: Signature) -> None:
    """Run the model on its examples, and name the outputs.

    Raises:
        OptionError: The model refuses the examples.
    """
    import keras

    try:
        tensors = [keras.ops.convert_to_tensor(array) for array in signature.arrays]
        count = len(signature.call(tensors))
    except Exception as error:  # Layers raise any exception.
        shapes = {name: list(array.shape) for name, array in zip(signature.names, signature.arrays, strict=True)}
        raise OptionError(
            f"the model refuses the inputs {shapes}: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
            where="example_inputs",
            remedy="Pass inputs that the model accepts.",
        ) from error
    names = list(getattr(signature.model, "output_names", None) or ())
    if len(names) != count or len(set(names)) != count:
        names = [f"output_{index}" for index in range(count)] if count > 1 else ["output"]
    inputs = set(signature.names)
    signature.outputs = [f"{name}_output" if name in inputs else name for name in names]
