"""The numbers and operators that each target accepts; ``check --target`` reads the same table of operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import onnx
import onnx_ir as ir

from sardonyx.compress.quantization.scheme import TYPES, Granularity, Scheme, named_scheme
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model.check.target_check import supports_node
from sardonyx.model.check.targets import Target, find_target

Form = Literal["qdq", "qoperator"]
"""Quantized nodes as float operators between QuantizeLinear and DequantizeLinear, or as operators on integers."""

VENDOR = "com.microsoft"


@dataclass(frozen=True)
class QuantizationTarget:
    """The preferences of a target.

    Attributes:
        name: The target.
        activations: The default type of activations.
        is_symmetric: True if the target has no zero points.
        modes: The modes that the target executes.
        vendor: True if the target executes operators of ``com.microsoft``.
        saturates: True if the target may add products of 8 bits in saturating 16 bits; see ``saturation.py``.
        convolves_integers: True if convolutions of integers, with ranges of each call, are as fast as static ones.
        computes_constants: True if the target computes a transposition of integers once, when it loads a model;
            TensorRT reads weights from constants alone.
        whole_blocks: True if blocks must divide the axis of a weight.
        folds_recurrent_weights: True if weights of recurrent layers may be integers beside integers of activations,
            without which OpenVINO computes these weights when it loads a model, as its layers require.
        reads_filter_scales: True if QLinearConv may have a scale for each filter. OpenVINO 2026.4 reads these as the
            scales of channels, and computes other numbers if there are as many.
        reads_joined_signed: True if convolutions may read joined int8 activations. OpenVINO 2026.4 computes other
            numbers for a convolution of a Concat of int8, of any scales and zero points; of uint8 the same.
        least_static_bits: Fewest bits of weights beside integers of activations. ONNX Runtime 1.32 fuses products by 2
            bits to QLinearMatMul, and then refuses the type.
    """

    name: str
    activations: str = "uint8"
    is_symmetric: bool = False
    modes: tuple[str, ...] = ("static", "dynamic", "weights")
    vendor: bool = False
    saturates: bool = False
    convolves_integers: bool = False
    computes_constants: bool = True
    whole_blocks: bool = False
    folds_recurrent_weights: bool = True
    reads_filter_scales: bool = True
    reads_joined_signed: bool = True
    least_static_bits: int = 2

    @property
    def table(self) -> Target:
        """The operators and element types that the target accepts, by the table of ``check --target``."""
        table = find_target(self.name)
        assert table is not None
        return table

    def accepts(self, op_type: str, types: Mapping[int, str], opset: int, domain: str = "", inputs: int = 3) -> bool:
        """Return True if the target runs an operator.

        Args:
            op_type: The operator.
            types: The element types of inputs, in lower case, by index.
            opset: The operator set of the standard domain.
            domain: The domain of the operator.
            inputs: The number of inputs.
        """
        node = onnx.helper.make_node(op_type, [f"i{n}" for n in range(inputs)], ["y"], domain=domain)
        named = {f"i{number}": name for number, name in types.items()}
        return supports_node(node, {"": opset, VENDOR: 1}, named, self.table)

    def stores(self, dtype: ir.DataType, opset: int) -> bool:
        """Return True if DequantizeLinear of the target accepts a type."""
        name = dtype.name.lower()
        return self.accepts("DequantizeLinear", {0: name, 1: "float", 2: name}, opset)


TARGETS: Mapping[str, QuantizationTarget] = {
    target.name: target
    for target in (
        QuantizationTarget("portable", saturates=True),
        QuantizationTarget("onnxruntime", vendor=True, saturates=True, least_static_bits=4),
        QuantizationTarget(
            "openvino",
            saturates=True,
            whole_blocks=True,
            folds_recurrent_weights=False,
            reads_filter_scales=False,
            reads_joined_signed=False,
        ),
        QuantizationTarget(
            "tensorrt",
            "int8",
            is_symmetric=True,
            modes=("static", "weights"),
            computes_constants=False,
            whole_blocks=True,
        ),
        QuantizationTarget("native", convolves_integers=True),
    )
}
"""The targets by name."""


def quantization_target(name: str) -> QuantizationTarget:
    """Return a target.

    Raises:
        OptionError: Unknown target.
    """
    if name not in TARGETS:
        raise OptionError(f"expected one of {', '.join(TARGETS)}, got {name!r}.", where="target")
    return TARGETS[name]


def choose_scheme(
    scheme: str | Scheme, target: QuantizationTarget, weights: str | None, activations: str | None,
    granularity: Granularity | None, block: int, symmetric: bool | None, reduced: bool | None,
) -> tuple[Scheme, Literal["weights"] | None]:  # fmt: skip
    """Return the scheme of the options for a target, and ``"weights"`` if the options quantize weights alone.

    Raises:
        OptionError: An option is impossible.
    """
    quantizes_activations = True
    changes: dict[str, Any] = {}
    if isinstance(scheme, Scheme):
        base = scheme
    else:
        base, quantizes_activations = named_scheme(scheme)
        changes["block"] = block
        if base.activations == "uint8":
            changes["activations"] = target.activations
        changes["symmetric_activations"] = base.symmetric_activations or target.is_symmetric
        if target.is_symmetric and symmetric is None:
            changes["symmetric"] = True
    if weights is not None:
        named, quantizes_activations = named_scheme(weights, "weights")
        base = replace(named, activations=base.activations, symmetric_activations=base.symmetric_activations)
    if activations is not None:
        changes["activations"], quantizes_activations = activations, True
    if granularity is not None:
        changes["granularity"] = granularity
    if symmetric is not None:
        changes["symmetric"] = symmetric
    changes["whole_blocks"] = base.whole_blocks or target.whole_blocks
    chosen = replace(base, reduced=bool(reduced) or base.reduced, **changes)
    if reduced is None and target.saturates and TYPES[chosen.activations].bits == 8 and not isinstance(scheme, Scheme):
        chosen = replace(chosen, exact_sums=True)
    return chosen, None if quantizes_activations else "weights"


def require_accepted(target: QuantizationTarget, scheme: Scheme, mode: str, opset: int) -> None:
    """Refuse a scheme whose numbers the target does not execute.

    Args:
        target: The target.
        scheme: The scheme.
        mode: The mode.
        opset: The operator set of the quantized model.

    Raises:
        OptionError: The target has no such mode, or no zero points.
        UnsupportedError: The target does not read the operator set or a type.
    """
    if mode not in target.modes:
        raise OptionError(f"{target.name} executes {', '.join(target.modes)}, got {mode!r}.", where="mode")
    if target.is_symmetric and not scheme.symmetric:
        raise OptionError(f"{target.name} has no zero points.", where="symmetric", remedy="Use symmetric weights.")
    table = target.table
    low, high = table.opsets.get("", (None, None))
    if high is not None and opset > high:
        raise UnsupportedError(
            f"the types need operator set {opset}, and {target.name} reads at most {high}.",
            where="target",
            remedy="Choose other types or another target.",
        )
    if mode == "dynamic":
        return
    if mode == "static" and scheme.weight_type.bits < target.least_static_bits:
        raise UnsupportedError(
            f"{target.name} multiplies no integers by weights of {scheme.weight_type.bits} bits.",
            where="weights",
            remedy=f"Use at least {target.least_static_bits} bits, or the mode 'weights'.",
        )
    kinds = {scheme.weight_type} | ({scheme.activation_type} if mode == "static" else set())
    refused = [kind.name for kind in kinds if not target.stores(kind.dtype, max(opset, low or 1))]
    if refused:
        raise UnsupportedError(
            f"{target.name} does not dequantize {', '.join(sorted(refused))} in operator set {opset}.",
            where="target",
            remedy="Choose other types or another target.",
        )


def refused_nodes(model: ir.Model, target: QuantizationTarget, known: Iterable[str] = ()) -> list[str]:
    """Return the nodes of a model, by name, that the target does not run; nodes of `known` names are not looked at."""
    table = target.table
    skipped = set(known)
    opsets = {domain or "": version for domain, version in model.opset_imports.items()} | {VENDOR: 1}
    verdicts: dict[object, bool] = {}
    refused = []
    for node in model.graph.all_nodes():
        if node.name in skipped or any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in _own(node)):
            continue
        types = tuple("" if v is None or v.dtype is None else v.dtype.name.lower() for v in node.inputs)
        key = node.domain, node.op_type, types
        if key not in verdicts:
            proto = onnx.helper.make_node(
                node.op_type, [f"i{n}" for n in range(len(types))], [f"o{n}" for n in range(len(node.outputs))],
                domain=node.domain,
            )  # fmt: skip
            named = {f"i{number}": name for number, name in enumerate(types) if name}
            verdicts[key] = supports_node(proto, opsets, named, table)
        if not verdicts[key]:
            refused.append(str(node.name))
    return refused


def _own(node: ir.Node) -> list[ir.Attr]:
    return list(node.attributes.values())
