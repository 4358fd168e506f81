"""Checks of the IR version and opset imports of a model and its functions."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto, defs

from sardonyx.model.check.codes import finding
from sardonyx.model.check.commands import Commands
from sardonyx.model.check.findings import Finding, Location
from sardonyx.model.check.scopes import canonical_domain, qualified, scopes

ONNX_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training")

_TYPE_NEEDS_IR = {
    "BFLOAT16": 4,
    "FLOAT8E4M3FN": 9,
    "FLOAT8E4M3FNUZ": 9,
    "FLOAT8E5M2": 9,
    "FLOAT8E5M2FNUZ": 9,
    "UINT4": 10,
    "INT4": 10,
    "FLOAT4E2M1": 11,
    "FLOAT8E8M0": 12,
    "UINT2": 13,
    "INT2": 13,
    "FLOAT6E2M3": 14,
    "FLOAT6E3M2": 14,
}


def check_imports(model: onnx.ModelProto, commands: Commands) -> Iterator[Finding]:
    """Report invalid versions and domains that are not imported.

    Args:
        model: The message.
        commands: Builds the command lines of the remedies.

    Yields:
        The findings.
    """
    if model.ir_version < 1:
        yield finding("ir-version", f"the IR version is {model.ir_version}.", Location(item="ir_version"))
    elif model.ir_version > onnx.IR_VERSION:
        yield finding(
            "ir-version",
            f"the IR version is {model.ir_version}; onnx {onnx.__version__} knows at most {onnx.IR_VERSION}.",
            Location(item="ir_version"),
            remedy="Update onnx, or write an older IR version.",
            command=commands.convert_ir(onnx.IR_VERSION),
        )
    yield from _check_import_list(model.opset_import, "", commands)
    for function in model.functions:
        name = f"function {qualified(function.domain, function.name)}, "
        yield from _check_import_list(function.opset_import, name, commands)
    yield from _check_used_domains(model)
    yield from _check_ir_features(model, commands)


def _check_import_list(imports: object, prefix: str, commands: Commands) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    for entry in imports:  # type: ignore[attr-defined]
        domain, version = canonical_domain(entry.domain), entry.version
        shown = domain or "ai.onnx"
        where = Location(item=f"{prefix}opset import {shown}")
        if domain in seen:
            same = seen[domain] == version
            yield finding(
                "opset-redundant" if same else "opset-duplicate",
                f"the domain is imported as version {seen[domain]} and as version {version}.",
                where,
            )
        seen.setdefault(domain, version)
        newest = defs.onnx_opset_version() if domain == "" else None
        if version < 1:
            yield finding("opset-missing", f"the version is {version}.", where)
        elif newest is not None and version > newest:
            yield finding(
                "opset-unknown",
                f"the version is {version}; onnx {onnx.__version__} knows at most {newest}.",
                where,
                command=commands.convert_opset(newest),
            )


def _check_used_domains(model: onnx.ModelProto) -> Iterator[Finding]:
    custom: dict[str, int] = {}
    local = {canonical_domain(function.domain) for function in model.functions}
    known, has_asked = frozenset(ONNX_DOMAINS), False
    for scope in scopes(model):
        missing: set[str] = set()
        for node in scope.graph.node:
            domain = canonical_domain(node.domain)
            if domain not in scope.opsets and not (domain == "" and model.ir_version < 3) and domain not in missing:
                missing.add(domain)
                yield finding(
                    "opset-missing", f"no opset import names the domain {domain or 'ai.onnx'!r}.", scope.at(node)
                )
            if domain not in known and not has_asked:
                known, has_asked = known | _schema_domains(), True  # Registered by other code; a list of milliseconds.
            if domain not in known and domain not in local:
                custom[qualified(domain, node.op_type)] = custom.get(qualified(domain, node.op_type), 0) + 1
    for name, count in sorted(custom.items()):
        yield finding(
            "operator-custom",
            f"{count} node{'s' if count > 1 else ''} of a domain unknown to onnx: not checked.",
            Location(item=f"operator {name}"),
        )


def _schema_domains() -> frozenset[str]:
    return frozenset(schema.domain for schema in defs.get_all_schemas())


def _check_ir_features(model: onnx.ModelProto, commands: Commands) -> Iterator[Finding]:
    if model.functions and 0 < model.ir_version < 8:
        yield finding(
            "ir-too-old",
            f"model functions exist since IR version 8; the model has {model.ir_version}.",
            Location(item="ir_version"),
            command=commands.convert_ir(8),
        )
    elements: set[int] = set()
    for scope in scopes(model):
        if isinstance(scope.graph, onnx.GraphProto):
            elements.update(tensor.data_type for tensor in scope.graph.initializer)
            elements.update(v.type.tensor_type.elem_type for v in (*scope.graph.input, *scope.graph.output))
    names = {TensorProto.DataType.Name(element) for element in elements if element in TensorProto.DataType.values()}
    for name in sorted(names):
        needed = _TYPE_NEEDS_IR.get(name, 0)
        if 0 < model.ir_version < needed:
            yield finding(
                "ir-too-old",
                f"{name.lower()} exists since IR version {needed}; the model has {model.ir_version}.",
                Location(item="ir_version"),
                command=commands.convert_ir(needed),
            )
