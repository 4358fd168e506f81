"""Derivatives of models as models: gradients, products with Jacobians and Hessians, gradients of each sample."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, cast, get_args

import onnx_ir as ir

from sardonyx.base.option_checks import require_instance, require_names
from sardonyx.core import language as L
from sardonyx.core.eval.trace import inline, trace
from sardonyx.core.export.export import to_model
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.core.transform import differentiation
from sardonyx.core.transform.differentiation import is_differentiable
from sardonyx.core.transform.simplify import simplify
from sardonyx.errors import OptionError
from sardonyx.model import Loadable, load
from sardonyx.rewrite.analysis.names import Names, value_names
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.pipeline import exact_passes
from sardonyx.train.step.forward import make_inputs, trace_graph
from sardonyx.train.trainable.parameters import find_parameters, select_parameters
from sardonyx.train.trainable.trainable_models import trainable_form

_TRAINING_DOMAIN = "ai.onnx.preview.training"

Kind = Literal["gradient", "vjp", "jvp", "hvp", "per-sample"]
"""Derivatives: of a sum, products with a vector from the left, from the right, with the Hessian, of each sample."""


def gradient(
    model: Loadable,
    of: str | None = None,
    wrt: str | Sequence[str] | None = None,
    *,
    kind: Kind = "gradient",
    form: Literal["portable", "operator"] = "portable",
) -> ir.Model:
    """Return a model that computes derivatives besides its outputs.

    The result has the inputs and outputs of the model, and an output ``NAME_gradient`` for each differentiated tensor.
    Its parameters have the names of those of the model, so that a session updates them and a second derivative names
    them.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``, which is not changed.
        of: The differentiated tensor; the first floating-point output by default. If it is no scalar, its sum is
            differentiated.
        wrt: Names of inputs, weights or inner tensors to differentiate by; all parameters by default.
        kind: ``"gradient"``; ``"vjp"``, with an input ``OF_cotangent`` of the type of ``of``; ``"jvp"``, with an input
            ``NAME_tangent`` for each tensor and the output ``OF_tangent``; ``"hvp"``, the product of the Hessian of the
            sum and the inputs ``NAME_tangent``; ``"per-sample"``, gradients of each sample along a new first axis,
            where the first axis of every input counts samples.
        form: ``"portable"`` writes standard nodes that every engine runs; ``"operator"`` adds one ``Gradient`` node of
            ai.onnx.preview.training.

    Raises:
        OptionError: A name is unknown, or a tensor is not of floating-point type.
        UnsupportedError: An operator between the tensors has no gradient; the message names the node.
        SardonyxError: The model cannot be read.

    Example:
        >>> saliency = sardonyx.gradient("model.onnx", of="score", wrt=["image"])
    """
    if kind not in get_args(Kind):
        raise OptionError(f"expected one of {', '.join(get_args(Kind))}, got {kind!r}.", where="kind")
    if form not in ("portable", "operator"):
        raise OptionError(f"expected 'portable' or 'operator', got {form!r}.", where="form")
    if of is not None:
        require_instance(of, str, "of", "the name of a tensor")
    work = trainable_form(load(model))
    names = list(
        dict.fromkeys(select_parameters(find_parameters(work), "*") if wrt is None else require_names(wrt, "wrt"))
    )
    if not names:
        raise OptionError("expected at least one tensor.", where="wrt")
    parts = _Parts.look_up(work, of, names)
    if form == "operator":
        if kind != "gradient":
            raise OptionError(f"the operator Gradient computes no {kind!r}.", where="form", remedy="Use 'portable'.")
        return _with_gradient_node(work, parts)
    return _portable(work, parts, kind)


class _Parts(NamedTuple):
    """The named tensors of a derivative.

    Attributes:
        of: The differentiated value.
        wrt: The values to differentiate by.
        outputs: Names of the model's own outputs.
    """

    of: ir.Value
    wrt: list[ir.Value]
    outputs: list[str]

    @classmethod
    def look_up(cls, model: ir.Model, of: str | None, wrt: Sequence[str]) -> _Parts:
        graph = model.graph
        values = {str(value.name): value for value in (*graph.inputs, *graph.initializers.values())}
        values |= {str(value.name): value for node in graph for value in node.outputs if value.name}
        outputs = [str(value.name) for value in graph.outputs]
        if of is None:
            floats = [value for value in graph.outputs if value.dtype is None or value.dtype.is_floating_point()]
            if not floats:
                raise OptionError("expected a model with a floating-point output.", where="of")
            of = str(floats[0].name)
        for option, name in (("of", of), *(("wrt", name) for name in wrt)):
            if name not in values:
                near = difflib.get_close_matches(name, values, n=3)
                remedy = f"Did you mean {' or '.join(near)}?" if near else "Name a tensor of the main graph."
                raise OptionError(f"unknown tensor {name!r} of the main graph.", where=option, remedy=remedy)
        return cls(values[of], [values[name] for name in wrt], outputs)


def _portable(model: ir.Model, parts: _Parts, kind: Kind) -> ir.Model:
    graph = model.graph
    # All parameters keep their names: the weights of the result can be updated, and differentiated again.
    named = [*(str(x.name) for x in parts.wrt), *(one.name for one in find_parameters(model))]
    weights = {name: graph.initializers[name].const_value for name in named if name in graph.initializers}
    make_inputs(model, list(weights))
    for value in (parts.of, *parts.wrt):
        if value not in graph.outputs:
            graph.outputs.append(value)
    order = [str(value.name) for value in graph.outputs]
    model = _without_known_sequences(model)
    graph = model.graph
    forward = trace_graph(model)
    inputs = [str(value.name) for value in graph.inputs]
    of, wrt = str(parts.of.name), [str(value.name) for value in parts.wrt]
    for option, name in (("of", of), *(("wrt", name) for name in wrt)):
        type = forward.results[order.index(name)].type
        if not is_differentiable(type):
            raise OptionError(f"expected a floating-point tensor, {name!r} is {type}.", where=option)
    derived = _Derivation(forward, inputs, order, of, wrt, weights)
    function, extra_inputs, extra_outputs = derived.function(kind, parts.outputs)
    fresh = Names(value_names(model))
    extra_inputs = [fresh.fresh(name) for name in extra_inputs]
    extra_outputs = [fresh.fresh(name) for name in extra_outputs]
    result = to_model(
        simplify(function), input_names=[*inputs, *extra_inputs], output_names=[*parts.outputs, *extra_outputs]
    )
    differentiated = {str(value.name) for value in parts.wrt}
    for name, tensor in weights.items():
        value = next(value for value in result.graph.inputs if value.name == name)
        result.graph.inputs.remove(value)
        if value.uses() or value in result.graph.outputs or name in differentiated:
            value.const_value = tensor
            result.graph.register_initializer(value)
    return result


def _without_known_sequences(model: ir.Model) -> ir.Model:
    """Return the model with tensors instead of sequences of known tensors, which have no gradient."""
    nodes = model.graph.all_nodes()
    if not any("Sequence" in node.op_type and not node.domain for node in nodes):
        return model
    return optimize(model, target="native", passes=exact_passes(), verify=False).model


class _Derivation:
    """Derivatives of a traced model.

    Args:
        forward: The model; its results include the differentiated tensors.
        inputs: Names of the inputs.
        results: Names of the results.
        of: The name of the differentiated tensor.
        wrt: Names of the tensors to differentiate by.
        weights: Names of the inputs that are weights of the model.
    """

    def __init__(
        self, forward: Function, inputs: Sequence[str], results: Sequence[str], of: str, wrt: Sequence[str],
        weights: Collection[str],
    ) -> None:  # fmt: skip
        self._forward, self._inputs, self._results, self._of, self._wrt = forward, inputs, results, of, wrt
        self._weights = frozenset(weights)
        self._types = [value.type for value in forward.inputs]

    def function(self, kind: Kind, outputs: Sequence[str]) -> tuple[Function, list[str], list[str]]:
        """Return the function for the outputs and derivatives, and the names of new inputs and outputs."""
        gradients = [f"{name}_gradient" for name in self._wrt]
        if kind == "gradient":
            return self._traced(self._gradients, [], outputs), [], gradients
        type = self._type_of(self._of)
        if kind == "vjp":
            return self._traced(self._products, [type], outputs), [f"{self._of}_cotangent"], gradients
        inner = [name for name in self._wrt if name not in self._inputs]
        if inner:
            raise OptionError(
                f"{kind!r} differentiates by inputs and weights, got the inner tensor {inner[0]!r}.", where="wrt"
            )
        if kind == "per-sample":
            return self._per_sample(outputs), [], gradients
        positions = [self._inputs.index(name) for name in self._wrt]
        derivative = differentiation.jvp if kind == "jvp" else differentiation.hessian_vector_product
        product = derivative(self._restricted(), positions)
        names = [f"{self._of}_tangent"] if kind == "jvp" else [f"{name}_product" for name in self._wrt]

        def compute(results: Sequence[Value], arguments: Sequence[Value], vectors: Sequence[Value]) -> list[Value]:
            return inline(product, [*arguments, *vectors])

        types = [self._types[i] for i in positions]
        return self._traced(compute, types, outputs), [f"{name}_tangent" for name in self._wrt], names  # type: ignore[arg-type]

    def _type_of(self, name: str) -> TensorType:
        return cast(TensorType, self._forward.results[self._results.index(name)].type)

    def _traced(self, compute: object, types: Sequence[TensorType], outputs: Sequence[str]) -> Function:
        count = len(self._types)

        def body(*values: Value) -> list[Value]:
            results = inline(self._forward, values[:count])
            own = [results[self._results.index(name)] for name in outputs]
            return [*own, *compute(results, values[:count], values[count:])]  # type: ignore[operator]

        return trace("derivatives", body, [*self._types, *types])

    def _sources(self, results: Sequence[Value], arguments: Sequence[Value]) -> list[Value]:
        by_name = dict(zip(self._results, results, strict=True)) | dict(zip(self._inputs, arguments, strict=True))
        return [by_name[name] for name in self._wrt]

    def _gradients(self, results: Sequence[Value], arguments: Sequence[Value], _: Sequence[Value]) -> list[Value]:
        y = cast(Tensor, results[self._results.index(self._of)])
        return differentiation.pull_back([y], [L.ones_like(y)], self._sources(results, arguments))

    def _products(self, results: Sequence[Value], arguments: Sequence[Value], v: Sequence[Value]) -> list[Value]:
        y = cast(Tensor, results[self._results.index(self._of)])
        cotangent = L.reshape(cast(Tensor, v[0]), y.shape)
        return differentiation.pull_back([y], [cotangent], self._sources(results, arguments))

    def _restricted(self) -> Function:
        """Return the function of the differentiated tensor alone."""
        index = self._results.index(self._of)
        return trace("restricted", lambda *values: [inline(self._forward, values)[index]], self._types)

    def _per_sample(self, outputs: Sequence[str]) -> Function:
        positions = [self._inputs.index(name) for name in self._wrt]
        weights = self._weights
        derived = differentiation.gradient(self._restricted(), positions)

        def compute(results: Sequence[Value], arguments: Sequence[Value], _: Sequence[Value]) -> list[Value]:
            batched = [cast(Tensor, x) for name, x in zip(self._inputs, arguments, strict=True) if name not in weights]
            if not batched or any(x.rank == 0 for x in batched):
                raise OptionError("expected inputs with an axis of samples.", where="kind")
            count = L.size_tensor([batched[0].shape[0]], ())

            def one(i: Tensor) -> tuple[None, list[Value], list[Value]]:
                sample = [
                    x if name in weights else L.take(cast(Tensor, x), L.reshape(i, (1,)), 0)
                    for name, x in zip(self._inputs, arguments, strict=True)
                ]
                gradients = [cast(Tensor, x) for x in inline(derived, sample)[1:]]
                rows: list[Value] = [
                    x if name in weights else L.squeeze(x, [0]) for name, x in zip(self._wrt, gradients, strict=True)
                ]
                return None, [], rows

            return list(L.loop(count, None, [], one)[1])

        return self._traced(compute, [], outputs)


def _with_gradient_node(model: ir.Model, parts: _Parts) -> ir.Model:
    graph = model.graph
    names = Names(value_names(model))
    others = [value for value in graph.inputs if value not in parts.wrt]
    node = ir.Node(
        _TRAINING_DOMAIN,
        "Gradient",
        [*parts.wrt, *others],
        [
            ir.AttrStrings("xs", [str(value.name) for value in parts.wrt]),
            ir.AttrStrings("zs", [str(value.name) for value in others]),
            ir.AttrString("y", str(parts.of.name)),
        ],
        num_outputs=len(parts.wrt),
        name="gradient",
    )
    for value, output in zip(parts.wrt, node.outputs, strict=True):
        output.name = names.fresh(f"{value.name}_gradient")
        output.type, output.shape = value.type, value.shape
        if output.type is None and value.const_value is not None:
            output.type, output.shape = (
                ir.TensorType(value.const_value.dtype),
                ir.Shape(value.const_value.numpy().shape),
            )
        graph.outputs.append(output)
    graph.append(node)
    graph.opset_imports[_TRAINING_DOMAIN] = 1
    return model
