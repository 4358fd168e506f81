"""Support table: versions, element types and tests of every registered operator."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import onnx

from sardonyx.ops.registry import Operator, all_operators
from sardonyx.ops.signatures import signature

_LEFT_THE_STANDARD = frozenset({"Affine", "Crop", "GivenTensorFill", "ImageScaler", "ParametricSoftplus", "ScaledTanh"})

_NO_SUITE_CASE = frozenset(
    {"ConcatFromSequence", "GlobalLpPool", "MaxRoiPool", "Multinomial", "RandomNormal", "RandomNormalLike",
     "RandomUniform", "SequenceErase", "SimplifiedLayerNormalization", "Gradient", *_LEFT_THE_STANDARD}
)  # fmt: skip
"""Operators of the standard (without ``ai.onnx.ml``) that have no node case in ONNX's backend suite."""

_COMPARED: dict[str, str] = {
    **dict.fromkeys(("CausalConvWithState", "LinearAttention", "SwiGLU"), "onnx.reference"),
    **dict.fromkeys(
        ("GlobalLpPool", "MaxRoiPool", "OneHot", "Scatter", "SimplifiedLayerNormalization"), "ONNX Runtime"
    ),
    **dict.fromkeys(("ImageDecoder", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceMap"), ""),
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        "type, shape and statistics",
    ),
    **dict.fromkeys(_LEFT_THE_STANDARD, "the formula of its documentation"),
    "Gradient": "derivatives by hand",
}
"""References of ``ai.onnx`` operators besides the suite, where they differ from both evaluators."""

_NO_KERNEL = frozenset(
    {"BiasSoftmax", "BiasSplitGelu", "GroupNorm", "Irfft", "PackedMultiHeadAttention", "QLinearReduceMean", "Rfft"}
)
"""Operators of ``com.microsoft`` without a CPU kernel in ONNX Runtime; a test checks this list."""

_TESTED = {
    "ai.onnx.ml": "scikit-learn, ONNX Runtime",
    "com.microsoft": "ONNX Runtime",
}


@dataclass(frozen=True)
class Support:
    """A row of the table.

    Attributes:
        domain: The operator's domain, ``ai.onnx`` written out.
        name: The operator's name.
        versions: Versions of the domain with a change of the operator; for non-standard operators those defined here.
        dtypes: Allowed element types of inputs at the newest version; empty if unknown.
        definition: ``core``, or ``host`` for Python over numpy.
        reason: Reason for a host operator; empty otherwise.
        tested: The references of the operator's tests.
    """

    domain: str
    name: str
    versions: tuple[int, ...]
    dtypes: tuple[str, ...]
    definition: str
    reason: str
    tested: str

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


def support_table() -> list[Support]:
    """Return a row for every registered operator, ordered by domain and name."""
    schemas: dict[tuple[str, str], list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        schemas.setdefault((schema.domain, schema.name), []).append(schema)
    definitions: dict[tuple[str, str], list[Operator]] = {}
    for operator in all_operators():
        definitions.setdefault((operator.domain, operator.name), []).append(operator)
    return [_row(versions, schemas.get(key, [])) for key, versions in definitions.items()]


def _row(definitions: list[Operator], schemas: list[onnx.defs.OpSchema]) -> Support:
    newest = definitions[-1]
    domain, name = newest.domain, newest.name
    return Support(
        domain=domain or "ai.onnx",
        name=name,
        versions=tuple(sorted(schema.since_version for schema in schemas)) or tuple(d.since for d in definitions),
        dtypes=_dtypes(newest, max((schema.since_version for schema in schemas), default=1)),
        definition="host" if newest.host_reason else "core",
        reason=newest.host_reason,
        tested=_tested(newest),
    )


def _tested(operator: Operator) -> str:
    domain, name = operator.domain, operator.name
    if operator.is_user_defined:
        return "your own tests"
    if domain == "com.microsoft" and name in _NO_KERNEL:
        return "compositions of other operators"
    if domain in _TESTED:
        return _TESTED[domain]
    suite = "" if name in _NO_SUITE_CASE else "ONNX backend suite"
    compared = _COMPARED.get(name, "" if domain else "onnx.reference, ONNX Runtime")
    return ", ".join(filter(None, (suite, compared)))


def _dtypes(operator: Operator, version: int) -> tuple[str, ...]:
    declared = None if operator.is_user_defined else signature(operator.domain, operator.name, version)
    texts = () if declared is None else [text for _, _, allowed in declared.inputs for text in allowed]
    return tuple(sorted({text[7:-1] for text in texts if text.startswith("tensor(")}))
