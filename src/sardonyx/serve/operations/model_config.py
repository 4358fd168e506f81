"""The configuration of a served model in the form of Triton's model configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sardonyx.serve.models.ensemble import ServedEnsemble
from sardonyx.serve.models.interface import Tensor
from sardonyx.serve.models.model import ServedModel
from sardonyx.serve.models.served import Served
from sardonyx.serve.protocol.messages import message_class


def described_config(model: Served) -> dict[str, Any]:
    """Return the configuration as JSON of HTTP: all fields by their names, 64-bit numbers as numbers.

    Fields of ``config.pbtxt`` are returned as written; others are derived from the model.
    """
    from google.protobuf import json_format

    written = dict(model.config or {})
    derived: dict[str, Any] = {
        "name": model.name, "platform": model.platform, "version_policy": {"latest": {"num_versions": 1}}
    }  # fmt: skip
    if isinstance(model, ServedModel):
        derived |= _derived(model, written)
    elif isinstance(model, ServedEnsemble):
        derived |= _derived_ensemble(model)
    fields = {**derived, **{key: value for key, value in written.items() if value not in ("", [])}}
    return _plain(json_format.ParseDict(fields, message_class("ModelConfig")(), ignore_unknown_fields=True))


def _derived(model: ServedModel, written: Mapping[str, Any]) -> dict[str, Any]:
    interface = model.revision.interface
    rows = int(written.get("max_batch_size", model.max_rows if model.max_rows > 1 else 0))
    return {
        "backend": "sardonyx", "max_batch_size": rows, "input": _tensors(interface.inputs, rows),
        "output": _tensors(interface.outputs, rows),
        **({"dynamic_batching": {}} if rows and not model.is_stateful else {}),
        "default_model_filename": "model.onnx",
        "instance_group": [{"name": model.name, "kind": "KIND_CPU", "count": 1}],
    }  # fmt: skip


def _derived_ensemble(model: ServedEnsemble) -> dict[str, Any]:
    rows = model.row_limit
    inputs, outputs = model.tensors()
    steps = [
        {
            "model_name": step.model, "model_version": int(step.version or -1), "input_map": dict(step.inputs),
            "output_map": dict(step.outputs),
        }
        for step in model.ensemble.steps
    ]  # fmt: skip
    return {
        "max_batch_size": rows, "input": _tensors(inputs, rows), "output": _tensors(outputs, rows),
        "ensemble_scheduling": {"step": steps},
    }  # fmt: skip


def _tensors(tensors: Mapping[str, Tensor], rows: int) -> list[dict[str, Any]]:
    return [
        {
            "name": tensor.name, "data_type": _type(tensor.datatype.name), "dims": tensor.sizes[1 if rows else 0 :],
            **({"optional": True} if tensor.is_optional else {}),
        }
        for tensor in tensors.values()
    ]  # fmt: skip


def _type(name: str) -> str:
    return "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}"


def _plain(message: Any) -> dict[str, Any]:
    """Return all fields of a message, except messages and alternatives that are not set."""
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values[field.name] = {
                key: _value(value[key], field.message_type.fields_by_name["value"]) for key in sorted(value)
            }
        elif field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
            values[field.name] = [_value(part, field) for part in value]
        elif not field.has_presence or message.HasField(field.name):
            values[field.name] = _value(value, field)
    return values


def _value(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return _plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return value
