"""Generator of the page of ONNX Runtime's public names, with their support in Sardonyx."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from sardonyx.compat import onnxruntime as ours
from sardonyx.compat.onnxruntime.unsupported import REASONS

_HEAD = """# ONNX Runtime's interface

<!-- Written by `python -m tests.compat.reference_pages`; do not edit. -->

Every public name of the module `onnxruntime` {version}, with its support in `sardonyx.compat.onnxruntime`. Usage:
[In place of ONNX Runtime](../how-to/in-place-of-onnxruntime.md). Refused names raise `NotImplemented` with the reason.

Entries of `add_session_config_entry` with an effect:

| entry | effect |
| --- | --- |
| `session.optimized_model_external_initializers_file_name` | file of the large initializers of the rewritten model |
| `session.optimized_model_external_initializers_min_size_in_bytes` | least bytes of an initializer in that file; 1024 |
| `session.record_ep_graph_assignment_info` | `1` lets `get_provider_graph_assignment_info` return the nodes |

With `ORT_LOAD_CONFIG_FROM_MODEL=1` in the environment, a session reads `session_options` from the model's metadata
entry `ort_config`, as ONNX Runtime does.
"""

_CLASSES = (
    "InferenceSession", "SessionOptions", "RunOptions", "OrtValue", "IOBinding", "NodeArg", "ModelMetadata",
    "SparseTensor", "OrtDevice", "OrtMemoryInfo",
)  # fmt: skip


_WITHOUT_EFFECT = frozenset(
    {
        "create_and_register_allocator", "create_and_register_allocator_v2", "disable_telemetry_events",
        "enable_telemetry_events", "preload_dlls", "set_default_logger_verbosity", "set_seed", "OrtArenaCfg",
    }
)  # fmt: skip

_SETTINGS_WITHOUT_EFFECT = frozenset(
    {
        "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode", "execution_order",
        "inter_op_num_threads", "log_verbosity_level", "use_per_session_threads", "add_run_config_entry",
        "only_execute_path_to_fetches", "disable_fallback", "synchronize_inputs",
        "synchronize_outputs", "release_captured_graph", "clear_ep_context_data_read_func",
    }
)  # fmt: skip


def page() -> str:
    """Return the page, from the installed module."""
    import onnxruntime as real

    lines = [_HEAD.format(version=real.__version__), "## The module\n", "| name | here | note |", "| --- | --- | --- |"]
    for name in names_of_package(real):
        lines.append(_row(name, hasattr(ours, name), name, name in _WITHOUT_EFFECT, getattr(ours, name, None)))
    for kind in _CLASSES:
        lines += [f"\n## {kind}\n", "| name | here | note |", "| --- | --- | --- |"]
        subject = _instance(kind)
        for name in (name for name in dir(getattr(real, kind)) if not name.startswith("_")):
            member = inspect.getattr_static(subject if isinstance(subject, type) else type(subject), name, None)
            without_effect = name in _SETTINGS_WITHOUT_EFFECT
            lines.append(_row(f"{kind}.{name}", hasattr(subject, name), name, without_effect, member))
    lines += ["\n## capi.onnxruntime_pybind11_state\n", "| exception | here | note |", "| --- | --- | --- |"]
    theirs = real.capi.onnxruntime_pybind11_state
    for name in dir(theirs):
        if isinstance(getattr(theirs, name), type) and issubclass(getattr(theirs, name), Exception):
            exception = getattr(ours.capi.onnxruntime_pybind11_state, name, None)
            lines.append(_row(name, exception is not None, name, False, exception))
    return "\n".join(lines) + "\n"


def names_of_package(package: ModuleType) -> list[str]:
    """Return the public names; of modules only ``capi``, because other modules appear once imported."""
    names = [name for name in dir(package) if not name.startswith("_")]
    return [name for name in names if name == "capi" or not inspect.ismodule(getattr(package, name))]


def _instance(kind: str) -> Any:
    """Return a class, or an instance of a class whose attributes exist on instances only."""
    if kind == "OrtMemoryInfo":
        return ours.OrtMemoryInfo("Cpu", ours.OrtAllocatorType.ORT_ARENA_ALLOCATOR)
    if kind in ("NodeArg", "ModelMetadata"):
        import onnx

        model = onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 18]> n (float x) => (float y) { y = Neg(x) }'
        )
        session = ours.InferenceSession(model.SerializeToString())
        return session.get_inputs()[0] if kind == "NodeArg" else session.get_modelmeta()
    return getattr(ours, kind)


def _row(name: str, exists: bool, shown: str, without_effect: bool, member: Any) -> str:
    if name in REASONS:
        return f"| `{shown}` | refused | {REASONS[name]} |"
    if not exists:
        return f"| `{shown}` | missing | |"
    note = ""
    if not isinstance(member, str) and not inspect.ismodule(member):
        note = (inspect.getdoc(member) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|").rstrip(".")
        note = "" if note.startswith(("str(", "int(", "bool(")) else note
    return f"| `{shown}` | {'accepted, no effect' if without_effect else 'implemented'} | {note} |"
