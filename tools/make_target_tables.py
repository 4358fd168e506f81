"""Write the tables of the operators that a runtime supports, by queries of the installed runtime.

    python tools/make_target_tables.py onnxruntime
    python tools/make_target_tables.py openvino
    python tools/make_target_tables.py native
    python tools/make_target_tables.py portable
    python tools/make_target_tables.py mnn

adds or replaces the installed version in ``src/sardonyx/model/check/targets/<target>.json``. Run the tool once for each
supported version (``PYTHONPATH`` may select another installation). The tables of targets without an installable package
(TensorRT, CoreML, TNN, the pre-built mobile package) are maintained by hand, from the documents in their ``source``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, defs, helper

TABLES = Path(__file__).parents[1] / "src" / "sardonyx" / "model" / "check" / "targets"
OPEN = 2**31 - 1
_BEYOND_OPSET = defs.onnx_opset_version() + 2
_BEYOND_IR = onnx.IR_VERSION + 2
_NO_RULE = re.compile("No conversion rule found|OpenVINO does not support the following ONNX operations")


def main() -> None:
    """Write the table of the installed version."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=list(_TABLES), help="an installed runtime, or the standard")
    target = parser.parse_args().target
    version, table = _TABLES[target]()
    path = TABLES / f"{target}.json"
    content = json.loads(path.read_text()) if path.exists() else {"target": target, "versions": {}}
    if target in ("native", "portable"):
        content["versions"] = {}
    content["versions"][version] = table
    ordered = sorted(content["versions"].items(), key=lambda item: [int(part) for part in item[0].split(".")])
    content["versions"] = dict(ordered)
    path.write_text(_compact(content))
    print(f"{path}: {target} {version}: {len(table['operators'])} operators, opset {table['opset']}, ir {table['ir']}")


def _onnxruntime() -> tuple[str, dict[str, Any]]:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    onnxruntime.set_default_logger_severity(4)
    kernels: dict[str, dict[tuple[int, int], dict[str, set[str]]]] = {}
    for kernel in state.get_all_opkernel_def():
        internal = kernel.domain.startswith("com.ms.internal") or kernel.op_name.startswith("Memcpy")
        if kernel.provider != "CPUExecutionProvider" or internal:
            continue
        name = _qualified(kernel.domain, kernel.op_name)
        types = kernels.setdefault(name, {}).setdefault(tuple(kernel.version_range), {})
        for variable, allowed in kernel.type_constraints.items():
            types.setdefault(variable, set()).update(_short(text) for text in allowed)
    operators = {
        name: [
            {
                "opsets": [since, None if until >= OPEN else until],
                "types": {variable: " ".join(sorted(types[variable])) for variable in sorted(types)},
            }
            for (since, until), types in sorted(ranges.items())
        ]
        for name, ranges in sorted(kernels.items())
    }

    def loads(model: onnx.ModelProto) -> bool:
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        except Exception as error:
            return "NOT_IMPLEMENTED" in str(error)
        return True

    newest = _newest_opset(loads)
    # A Constant becomes a weight before kernels are selected.
    operators["Constant"] = [{"opsets": [1, newest], "types": {}}]
    minor = ".".join(onnxruntime.__version__.split(".")[:2])
    table = {
        "source": f"kernel registry of onnxruntime {onnxruntime.__version__} (CPUExecutionProvider); "
        "opset and IR versions by loading models",
        "opset": {"": [1, newest], "ai.onnx.ml": [1, _newest_ml_opset(loads)]},
        "ir": [1, _newest_ir(loads)],
        "cast": {"float16": "float"},
        "operators": dict(sorted(operators.items())),
    }
    return minor, table


def _mnn() -> tuple[str, dict[str, Any]]:
    """Return the operators that MNN's native converter lists; see ``export/mnn.py``."""
    version = importlib.metadata.version("MNN")
    script = 'import _tools; _tools.mnnconvert(["mnnconvert", "-f", "ONNX", "--OP"])'
    listed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    known = {schema.name for schema in defs.get_all_schemas_with_history() if not schema.domain}
    operators = sorted(known & {line.strip() for line in (listed.stdout + listed.stderr).splitlines()})
    table = {
        "source": f"the operators that the ONNX converter of MNN {version} lists",
        "opset": {},
        "ir": [None, None],
        "operators": {name: [{"opsets": [1, None]}] for name in operators},
    }
    return version.rpartition(".")[0], table


_SCALES = ("float", "float16", "bfloat16")

_NARROW = ("int8", "uint8", "int16", "uint16", "int32", "int4", "uint4", "int2", "uint2", "float8e4m3fn", "float8e5m2",
           "float4e2m1")  # fmt: skip
"""Types of stored weights."""


def _dequantized(kind: str) -> onnx.ModelProto:
    """Return a model that dequantizes a stored weight."""
    stored = onnx.TensorProto(name="w", data_type=onnx.TensorProto.DataType.Value(kind.upper()), dims=[4])
    stored.raw_data = bytes(4 * 4 if kind == "int32" else 4 * 2 if kind.endswith("16") else 4 if "8" in kind else
                            1 if kind.endswith("2") else 2)  # fmt: skip
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["y"]), helper.make_node("Add", ["x", "y"], ["z"])]
    x, z = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xz")
    scale = helper.make_tensor("s", onnx.TensorProto.FLOAT, [], [1.0])
    graph = helper.make_graph(nodes, "g", [x], [z], [stored, scale])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def _openvino() -> tuple[str, dict[str, Any]]:
    import openvino

    core = openvino.Core()
    operators: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.onnx"

        def complaint(model: onnx.ModelProto) -> str:
            onnx.save(model, path)
            try:
                core.read_model(path)
            except Exception as error:
                return str(error)
            return ""

        for name, domain, versions in _schemas():
            known = [v for v in versions if not _NO_RULE.search(complaint(_probe(name, domain, v)))]
            if known:
                entry: dict[str, Any] = {"opsets": [1, None]}
                if known != versions:
                    entry["opsets"] = [min(known), None]
                if name.startswith("Sequence") or name == "ConcatFromSequence":
                    entry["restriction"] = "Supported only in certain patterns."
                operators[_qualified(domain, name)] = [entry]
        entry = operators["DequantizeLinear"][0]
        entry["types"] = " ".join(sorted({*_SCALES, *(t for t in _NARROW if not complaint(_dequantized(t)))}))
        for name in _contributed():
            if _has_rule(complaint, _contributed_probe(name)):
                operators[f"com.microsoft::{name}"] = [{"opsets": [1, None]}]
        version = re.match(r"\d+\.\d+", openvino.__version__)
        assert version is not None
        table = {
            "source": f"ONNX frontend of openvino {openvino.__version__}: operators with a conversion rule",
            "opset": {"": [1, _newest_opset(lambda model: not complaint(model))]},
            "ir": [1, _newest_ir(lambda model: not complaint(model))],
            "operators": operators,
        }
    return version.group(), table


def _native() -> tuple[str, dict[str, Any]]:
    """Return the operators of this package's own engine, from its registry."""
    from sardonyx.ops.support import support_table

    rows = sorted((_qualified(row.domain, row.name), min(row.versions)) for row in support_table())
    table = {
        "source": "registry of operators of this package",
        "opset": {"": [1, defs.onnx_opset_version()]},
        "ir": [1, int(onnx.IR_VERSION)],
        "operators": {name: [{"opsets": [since, None]}] for name, since in rows},
    }
    return "1", table


def _portable() -> tuple[str, dict[str, Any]]:
    """Return the operators of the standard, which every conforming engine runs."""
    rows = sorted((_qualified(domain, name), min(versions)) for name, domain, versions in _schemas())
    table = {
        "source": f"operators of the standard, onnx {onnx.__version__}",
        "opset": {"": [1, defs.onnx_opset_version()]},
        "ir": [1, int(onnx.IR_VERSION)],
        "operators": {name: [{"opsets": [since, None]}] for name, since in rows},
    }
    return "1", table


def _has_rule(complaint: Callable[[onnx.ModelProto], str], model: onnx.ModelProto) -> bool:
    """Return True if the frontend has a rule for a probe; a child process asks, because some rules crash."""
    child = os.fork()
    if child == 0:
        os._exit(1 if _NO_RULE.search(complaint(model)) else 0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) != 1


def _schemas() -> Iterator[tuple[str, str, list[int]]]:
    versions: dict[tuple[str, str], set[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.deprecated and schema.domain in ("", "ai.onnx.ml"):
            versions.setdefault((schema.name, schema.domain), set()).add(schema.since_version)
    for (name, domain), since in sorted(versions.items()):
        yield name, domain, sorted(since)


def _contributed() -> list[str]:
    """Return the operators of onnxruntime's domain, from its table: two packages conflict in a process."""
    versions = json.loads((TABLES / "onnxruntime.json").read_text())["versions"].values()
    names = {name for table in versions for name in table["operators"] if name.startswith("com.microsoft::")}
    return sorted(name.removeprefix("com.microsoft::") for name in names)


def _contributed_probe(name: str) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, 2, 3, 4]) for value in "xy")
    node = helper.make_node(name, ["x"], ["y"], domain="com.microsoft")
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "probe", [x], [y]), opset_imports=imports, ir_version=8)


def _probe(name: str, domain: str, version: int) -> onnx.ModelProto:
    schema = defs.get_schema(name, max_inclusive_version=version, domain=domain)
    inputs = [f"x{index}" for index in range(max(schema.min_input, 1 if schema.max_input else 0))]
    outputs = [f"y{index}" for index in range(max(schema.min_output, 1))]
    node = helper.make_node(name, inputs, outputs, domain=domain)
    graph = helper.make_graph(
        [node],
        "probe",
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, 2, 3, 4]) for value in inputs],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, None) for value in outputs],
    )
    imports = [helper.make_opsetid("", max(version, 13) if domain else version)]
    if domain:
        imports.append(helper.make_opsetid(domain, version))
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def _relu(opset: int, ir_version: int = 8, ml: int | None = None) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "probe", [x], [y])
    imports = [helper.make_opsetid("", opset)]
    if ml is not None:
        imports.append(helper.make_opsetid("ai.onnx.ml", ml))
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def _newest_opset(loads: Any) -> int | None:
    newest = max(opset for opset in range(7, _BEYOND_OPSET + 1) if loads(_relu(opset)))
    return newest if newest < _BEYOND_OPSET else None


def _newest_ml_opset(loads: Any) -> int:
    return max(opset for opset in range(1, 10) if loads(_relu(13, ml=opset)))


def _newest_ir(loads: Any) -> int | None:
    newest = max(version for version in range(3, _BEYOND_IR + 1) if loads(_relu(13, version)))
    return newest if newest < _BEYOND_IR else None


def _qualified(domain: str, name: str) -> str:
    return f"{domain}::{name}" if domain not in ("", "ai.onnx") else name


def _short(text: str) -> str:
    return text.removeprefix("tensor(").removesuffix(")") if text.startswith("tensor(") else text


def _compact(content: dict[str, Any]) -> str:
    """Return JSON with one operator per line: small, and readable in a diff."""
    lines = ["{", f' "target": {json.dumps(content["target"])},', ' "versions": {']
    versions = list(content["versions"].items())
    for index, (version, table) in enumerate(versions):
        lines.append(f"  {json.dumps(version)}: {{")
        lines += [f"   {json.dumps(key)}: {json.dumps(value)}," for key, value in table.items() if key != "operators"]
        lines.append('   "operators": {')
        rows = [f"    {json.dumps(name)}: {json.dumps(entries)}" for name, entries in table["operators"].items()]
        lines += [row + "," for row in rows[:-1]] + rows[-1:]
        lines += ["   }", "  }" + ("," if index + 1 < len(versions) else "")]
    return "\n".join([*lines, " }", "}", ""])


_TABLES: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "onnxruntime": _onnxruntime, "openvino": _openvino, "mnn": _mnn, "native": _native, "portable": _portable,
}  # fmt: skip


if __name__ == "__main__":
    main()
