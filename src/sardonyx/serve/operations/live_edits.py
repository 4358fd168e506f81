"""Edits of a served model: weights, graph edits, undo, history, explanation, profile."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.errors import MissingDependencyError, ModelFileError, RequestError
from sardonyx.runtime.session import Session
from sardonyx.serve.protocol.datatypes import DATATYPES, Datatype, shortened
from sardonyx.serve.protocol.limits import elements_of, require_bytes

if TYPE_CHECKING:
    from sardonyx.runtime.live.transaction import Edit
    from sardonyx.runtime.node import Node

VERBS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "add_node": (("node",), ()),
    "remove_node": (("name",), ()),
    "replace_node": (("name", "node"), ()),
    "rewire": (("node", "input", "tensor"), ()),
    "insert_after": (("tensor", "op"), ("name", "domain", "attributes")),
    "add_output": (("tensor",), ()),
    "remove_output": (("name",), ()),
    "add_input": (("name",), ("dtype", "shape")),
    "remove_input": (("name",), ()),
    "add_weight": (("name", "array"), ()),
    "set_weight": (("name", "array"), ()),
    "attach": (("model", "at"), ("name",)),
    "detach": (("name",), ()),
}
"""The verbs of an edit, with their required and optional arguments."""

_CHANGES = 1000
"""Limit of the changes of one edit."""

_PROFILE_RUNS = 1000

_SAFETENSORS = {
    "F64": "FP64", "F32": "FP32", "F16": "FP16", "BF16": "BF16", "I64": "INT64", "I32": "INT32", "I16": "INT16",
    "I8": "INT8", "U64": "UINT64", "U32": "UINT32", "U16": "UINT16", "U8": "UINT8", "BOOL": "BOOL",
    "F8_E4M3": "FP8E4M3FN", "F8_E5M2": "FP8E5M2",
}  # fmt: skip


def safetensors_weights(data: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file.

    Raises:
        RequestError: The bytes are not a safetensors file.
        MissingDependencyError: safetensors is not installed.
    """
    try:
        from safetensors import deserialize
    except ImportError as error:
        raise MissingDependencyError(
            "weights in this format require safetensors.", remedy='Install it: pip install "sardonyx[serve]".'
        ) from error
    try:
        entries = deserialize(data)  # type: ignore[no-untyped-call]
    except Exception as error:  # The library has one error class, which it does not always use.
        raise RequestError(f"the body is not a safetensors file: {str(error)[:200]}") from error
    return {name: _weight(name, entry["dtype"], entry["shape"], entry["data"]) for name, entry in entries}


def _weight(name: str, dtype: str, shape: list[int], data: bytes) -> np.ndarray:
    datatype = DATATYPES.get(_SAFETENSORS.get(dtype, ""))
    if datatype is None:
        raise RequestError(f"unknown element type {shortened(dtype)}.", where=name[:64])
    require_bytes(shape, datatype, len(data), name[:64])
    return np.frombuffer(bytes(data), datatype.dtype).reshape(shape)


def update_weights(session: Session, weights: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Set weights as one edit.

    Raises:
        EditError: A weight is unknown.
        SardonyxError: The model cannot run with the weights; it is unchanged.
    """
    if not weights:
        raise RequestError("expected at least one weight.")
    session.update_weights(weights)
    return {"revision": session.revision, "weights": len(weights)}


def edit(session: Session, changes: object) -> dict[str, Any]:
    """Apply changes as one edit.

    Args:
        session: The session.
        changes: Objects with a ``verb`` and its arguments by name.

    Raises:
        RequestError: A change is malformed.
        SardonyxError: An edit is impossible; the model is unchanged.
    """
    if not isinstance(changes, Sequence) or isinstance(changes, str) or not changes:
        raise RequestError("expected a list of changes.")
    if len(changes) > _CHANGES:
        raise RequestError(f"expected at most {_CHANGES} changes, got {len(changes)}.", kind="too_large")
    parsed = [_parsed(change, index) for index, change in enumerate(changes)]
    with session.edit() as draft:
        for apply in parsed:
            apply(draft)
    return {"revision": session.revision, "changes": len(parsed)}


def _parsed(change: object, index: int) -> Callable[[Edit], Any]:
    where = f"change {index}"
    if not isinstance(change, Mapping) or change.get("verb") not in VERBS:
        verb = change.get("verb") if isinstance(change, Mapping) else change
        raise RequestError(f"unknown verb {shortened(verb)}.", where=where, remedy=f"Verbs: {', '.join(VERBS)}.")
    verb = str(change["verb"])
    required, optional = VERBS[verb]
    arguments = {key: value for key, value in change.items() if key != "verb"}
    if missing := [key for key in required if key not in arguments]:
        raise RequestError(f"{verb} requires {', '.join(missing)}.", where=where)
    if unknown := [key for key in arguments if key not in (*required, *optional)]:
        raise RequestError(f"unknown argument {shortened(unknown[0])} of {verb}.", where=where)
    values = {key: _argument(verb, key, value, f"{where}, {key}") for key, value in arguments.items()}
    attributes = values.pop("attributes", {})

    def apply(draft: Edit) -> Any:
        try:
            return getattr(draft, verb)(**values, **attributes)
        except ModelFileError as error:
            if verb != "attach":
                raise
            raise RequestError(f"the model cannot be read: {error.problem}", where=where) from error

    return apply


def _argument(verb: str, key: str, value: Any, where: str) -> Any:
    match key:
        case "node" if verb != "rewire":
            return _node(value, where)
        case "array":
            return _array(value, where)
        case "attributes":
            return _attributes(value, where)
        case "model":
            return _model(value, where)
        case "input":
            if not isinstance(value, (int, str)) or isinstance(value, bool):
                raise RequestError("expected an index or a name.", where=where)
            return value
        case "at" if isinstance(value, Mapping):
            return {_text(name, where): _text(tensor, where) for name, tensor in value.items()}
        case "shape":
            if value is not None and not isinstance(value, list):
                raise RequestError("expected a list of sizes.", where=where)
            return value
        case _:
            return _text(value, where)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"expected a text, got {shortened(value)}.", where=where)
    return value


def _node(value: object, where: str) -> Node:
    from sardonyx.runtime.node import Node

    if not isinstance(value, Mapping):
        raise RequestError("expected an object with op_type, inputs and outputs.", where=where)
    known = {"op_type", "inputs", "outputs", "name", "domain", "attributes"}
    if unknown := set(value) - known:
        raise RequestError(f"unknown field {shortened(sorted(map(str, unknown))[0])}.", where=where)
    for field in ("inputs", "outputs"):
        names = value.get(field)
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise RequestError("expected a list of names.", where=f"{where}, {field}")
    name = value.get("name")
    return Node(
        _text(value.get("op_type"), where), value.get("inputs"), value.get("outputs"),
        None if name is None else _text(name, where), _text(value.get("domain", ""), where),
        **_attributes(value.get("attributes", {}), where),
    )  # fmt: skip


def _attributes(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise RequestError("expected an object of attributes.", where=where)
    reserved = {"self", "tensor", "op", "name", "domain", "op_type", "inputs", "outputs"}
    if clash := reserved & set(value):
        raise RequestError(f"the attribute {sorted(clash)[0]!r} has the name of an argument.", where=where)
    return {
        str(name): _array(attribute, where) if isinstance(attribute, Mapping) else attribute
        for name, attribute in value.items()
    }


def _array(value: object, where: str) -> np.ndarray:
    """Return an array from its fields ``datatype``, ``shape`` and ``data`` (flat numbers)."""
    if not isinstance(value, Mapping) or not isinstance(value.get("data"), list):
        raise RequestError("expected an object with datatype, shape and data.", where=where)
    datatype = DATATYPES.get(str(value.get("datatype", "FP32")))
    shape = value.get("shape", [len(value["data"])])
    if datatype is None or not isinstance(shape, list):
        raise RequestError("expected a datatype of the protocol and a list of sizes.", where=where)
    return _flat_array(value["data"], datatype, shape, where)


_ELEMENTS: dict[str, tuple[type, ...]] = {
    "f": (int, float), "V": (int, float), "c": (int, float), "i": (int,), "u": (int,), "b": (bool,), "O": (str,),
}  # fmt: skip
"""Types of JSON for the elements of arrays, by the kind of their numpy type."""


def _flat_array(data: list[Any], datatype: Datatype, shape: list[int], where: str) -> np.ndarray:
    count = elements_of(shape, where)
    if len(data) != count:
        raise RequestError(f"expected {count} elements for shape {shape}, got {len(data)}.", where=where)
    kinds = _ELEMENTS[datatype.dtype.kind] if datatype.name not in ("INT4", "UINT4") else (int,)
    if any(type(element) not in kinds for element in data):
        raise RequestError(f"expected elements of type {datatype.name}.", where=where)
    try:
        with np.errstate(over="ignore"):
            array = np.array(data, dtype=datatype.dtype).reshape(shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"expected elements of type {datatype.name}.", where=where) from error
    # Numbers of JSON are finite, and only floats take one beyond their range.
    if array.dtype.kind in "fV" and not np.isfinite(array.astype(np.float64)).all():
        raise RequestError(f"a number is beyond the range of {datatype.name}.", where=where)
    return array


def _model(value: object, where: str) -> bytes:
    """Return the bytes of a model; a path is refused, because nothing of a request becomes a path."""
    try:
        return base64.b64decode(_text(value, where), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError("expected the bytes of a model in base64.", where=where) from error


def undo(session: Session) -> dict[str, Any]:
    """Undo the latest edit.

    Raises:
        EditError: No edit can be undone.
    """
    commit = session.undo()
    return {"revision": session.revision, "undone": {"number": commit.number, "changes": list(commit.changes)}}


def history(session: Session) -> dict[str, Any]:
    """Return the committed edits that are not undone, oldest first."""
    commits = [{"number": c.number, "changes": list(c.changes), "time": c.time} for c in session.history]
    return {"revision": session.revision, "history": commits}


def explanation(session: Session) -> dict[str, Any]:
    """Return the kernels of the model with their nodes, and the ways in which it answers."""
    from sardonyx.compiler.explain import explain
    from sardonyx.report.kernels import explanation_data, node_names

    answerers = [asdict(note) for note in session.answerers]
    program = session.program
    if program is None:
        return {"revision": session.revision, "compiled": False, "reason": session.not_compiled, "answerers": answerers}
    data = explanation_data(explain(program, {}), node_names(session.model))
    return {"revision": session.revision, "compiled": True, **data, "answerers": answerers}


def profile(session: Session, runs: int) -> dict[str, Any]:
    """Measure the model kernel by kernel on random inputs.

    Raises:
        RequestError: The number of runs is out of range.
    """
    if not 1 <= runs <= _PROFILE_RUNS:
        raise RequestError(f"expected 1 to {_PROFILE_RUNS} runs, got {runs}.", where="runs")
    from sardonyx.report.kernels import node_names, profile_data

    data = profile_data(session.profile(runs=runs), node_names(session.model))
    return {"revision": session.revision, **data}
