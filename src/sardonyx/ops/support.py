"""The support table: every operator of the registry, with its versions, element types, and how it is tested."""

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
"""Operators of the standard's domains but ``ai.onnx.ml`` for which ONNX's backend suite has no node case."""

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
"""What operators of ``ai.onnx`` are compared with beside the suite, where that is not both evaluators."""

_NO_KERNEL = frozenset(
    {"BiasSoftmax", "BiasSplitGelu", "GroupNorm", "Irfft", "PackedMultiHeadAttention", "QLinearReduceMean", "Rfft"}
)
"""Operators of ``com.microsoft`` that ONNX Runtime does not run on a processor; a test looks whether that is so."""

_TESTED = {
    "ai.onnx.ml": "scikit-learn, ONNX Runtime",
    "com.microsoft": "ONNX Runtime",
}


@dataclass(frozen=True)
class Support:
    """A row of the table.

    Attributes:
        domain: The operator's domain; ``ai.onnx`` written out.
        name: Its name.
        versions: Versions of the domain that changed it; of definitions here where the standard has none.
        dtypes: Element types that its inputs may have at the newest version; empty where nobody says.
        definition: ``core``, or ``host`` for Python over numpy.
        reason: Why it is a host operator; empty otherwise.
        tested: What it is compared with.
    """

    domain: str
    name: str
    versions: tuple[int, ...]
    dtypes: tuple[str, ...]
    definition: str
    reason: str
    tested: str

    def as_dict(self) -> dict[str, Any]:
        """The row as plain data."""
        return asdict(self)


def support_table() -> list[Support]:
    """Every operator of the registry, by domain and name."""
    schemas: dict[tuple[str, str], list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        schemas.setdefault((schema.domain, schema.name), []).append(schema)
    definitions: dict[tuple[str, str], list[Operator]] = {}
    for each in all_operators():
        definitions.setdefault((each.domain, each.name), []).append(each)
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
    if operator.user:
        return "your own tests"
    if domain == "com.microsoft" and name in _NO_KERNEL:
        return "compositions of other operators"
    if domain in _TESTED:
        return _TESTED[domain]
    suite = "" if name in _NO_SUITE_CASE else "ONNX backend suite"
    compared = _COMPARED.get(name, "" if domain else "onnx.reference, ONNX Runtime")
    return ", ".join(filter(None, (suite, compared)))


def _dtypes(operator: Operator, version: int) -> tuple[str, ...]:
    found = None if operator.user else signature(operator.domain, operator.name, version)
    taken = () if found is None else [text for _, _, allowed in found.inputs for text in allowed]
    return tuple(sorted({text[7:-1] for text in taken if text.startswith("tensor(")}))
