"""Variables and tables: handles are resolved while a file is translated, and values flow from call to call."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.convert.tflite.translation import Call, tflite


def _key(c: Call) -> str:
    """Return the key of the variable or table that input 0 is the handle of."""
    key = c.scope.translation.handles.get(c.stored(0))
    if key is None:
        raise c.unsupported("a handle that is an input of the file, expected one that the file creates")
    return key


def _variable(c: Call, key: str) -> ir.Value:
    value = c.scope.translation.variables.get(key)
    if value is None:
        raise c.invalid(f"variable '{key}' is read before a value is assigned to it")
    return value


@tflite("VAR_HANDLE")
def var_handle(c: Call) -> None:
    """Resolve a variable by container and name."""
    container, name = c.option("container", ""), c.option("shared_name", "")
    key = f"{container}/{name}" if container else str(name) or "variable"
    c.scope.define_stored(c.record.outputs[0], c.scope.handle(key))


@tflite("CALL_ONCE")
def call_once(c: Call) -> None:
    """Translate the initialization, which assigns the first values of variables."""
    c.scope.translation.inline(int(c.option("init_subgraph_index")), [], c.scope, c.where, is_initialization=True)


@tflite("READ_VARIABLE")
def read_variable(c: Call) -> None:
    """Return a variable's current value."""
    c.scope.define_stored(c.record.outputs[0], _variable(c, _key(c)))


@tflite("ASSIGN_VARIABLE")
def assign_variable(c: Call) -> None:
    """Make a value the current one of a variable."""
    translation, key = c.scope.translation, _key(c)
    translation.variables[key] = c.stored(1)
    if not translation.is_initialization:
        translation.notes[f"variable '{key}' has its first value again at the beginning of each call"] = None


@tflite("HASHTABLE")
def hashtable(c: Call) -> None:
    """Resolve a table by its number."""
    c.scope.define_stored(c.record.outputs[0], c.scope.handle(f"table {int(c.option('table_id'))}"))


@tflite("HASHTABLE_IMPORT")
def hashtable_import(c: Call) -> None:
    """Store the contents of a table."""
    keys, values = c.array(1), c.array(2)
    if keys is None or values is None:
        raise c.unsupported("contents of a table that are computed, expected constants")
    if keys.size != values.size:
        raise c.invalid(f"{keys.size} keys, expected {values.size} (one for each value)")
    c.scope.translation.tables[_key(c)] = keys.reshape(-1), values.reshape(-1)


@tflite("HASHTABLE_FIND")
def hashtable_find(c: Call) -> ir.Value:
    """Translate a look-up; a key that the table lacks has the default value."""
    keys, values = c.scope.translation.tables.get(_key(c), (np.zeros(0), np.zeros(0)))
    default = c.array(2)
    if default is None:
        raise c.unsupported("a default value that is computed, expected a constant")
    c.scope.translation.domains["ai.onnx.ml"] = 2
    contents = {
        f"keys_{_kind(c, 1)}s": _items(keys),
        f"values_{_kind(c, 2)}s": _items(values),
        f"default_{_kind(c, 2)}": _items(default)[0],
    }
    return c.node("LabelEncoder", c.stored(1), domain="ai.onnx.ml", **contents)


def _kind(c: Call, number: int) -> str:
    kinds = {"STRING": "string", "INT64": "int64", "FLOAT32": "float"}
    name = c.tensor(number).type
    if name not in kinds:
        raise c.unsupported(f"a table of {name}, expected {', '.join(kinds)}")
    return kinds[name]


def _items(array: np.ndarray) -> list[object]:
    return [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in array.reshape(-1).tolist()]


@tflite("HASHTABLE_SIZE")
def hashtable_size(c: Call) -> ir.Value:
    """Return the number of keys of a table."""
    keys, _ = c.scope.translation.tables.get(_key(c), (np.zeros(0), np.zeros(0)))
    return c.constant([len(np.unique(keys.astype(str)))], np.int64)
