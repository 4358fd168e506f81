"""The page of every name of ONNX Runtime's interface: what the module itself offers, and what is here."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from sardonyx.compat import onnxruntime as ours
from sardonyx.compat.onnxruntime.unsupported import REASONS

_HEAD = """# ONNX Runtime's interface

<!-- Written by `python -m tests.compat.reference_pages`; do not edit. -->

Every public name of the module `onnxruntime` {version}, as `sardonyx.compat.onnxruntime` has it. How to use it:
[In place of ONNX Runtime](../how-to/in-place-of-onnxruntime.md). What is refused raises `NotImplemented` and says why.
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

_KEPT = frozenset(
    {
        "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode", "execution_order",
        "inter_op_num_threads", "log_verbosity_level", "use_per_session_threads", "add_session_config_entry",
        "add_run_config_entry", "only_execute_path_to_fetches", "disable_fallback", "synchronize_inputs",
        "synchronize_outputs", "release_captured_graph", "clear_ep_context_data_read_func",
    }
)  # fmt: skip


def page() -> str:
    """The page; it needs the module itself."""
    import onnxruntime as real

    lines = [_HEAD.format(version=real.__version__), "## The module\n", "| name | here | note |", "| --- | --- | --- |"]
    for name in names_of_package(real):
        lines.append(_row(name, hasattr(ours, name), name, name in _WITHOUT_EFFECT, getattr(ours, name, None)))
    for kind in _CLASSES:
        lines += [f"\n## {kind}\n", "| name | here | note |", "| --- | --- | --- |"]
        made = _made(kind)
        for name in (each for each in dir(getattr(real, kind)) if not each.startswith("_")):
            found = inspect.getattr_static(made if isinstance(made, type) else type(made), name, None)
            lines.append(_row(f"{kind}.{name}", hasattr(made, name), name, name in _KEPT, found))
    lines += ["\n## capi.onnxruntime_pybind11_state\n", "| exception | here | note |", "| --- | --- | --- |"]
    theirs = real.capi.onnxruntime_pybind11_state
    for name in dir(theirs):
        if isinstance(getattr(theirs, name), type) and issubclass(getattr(theirs, name), Exception):
            found = getattr(ours.capi.onnxruntime_pybind11_state, name, None)
            lines.append(_row(name, found is not None, name, False, found))
    return "\n".join(lines) + "\n"


def names_of_package(package: ModuleType) -> list[str]:
    """Its public names; of the modules in it ``capi`` alone is its own, others are there once somebody imports them."""
    names = [name for name in dir(package) if not name.startswith("_")]
    return [name for name in names if name == "capi" or not inspect.ismodule(getattr(package, name))]


def _made(kind: str) -> Any:
    """A class, or one of its kind where attributes are made with it."""
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


def _row(name: str, is_there: bool, shown: str, without_effect: bool, found: Any) -> str:
    if name in REASONS:
        return f"| `{shown}` | refused | {REASONS[name]} |"
    if not is_there:
        return f"| `{shown}` | missing | |"
    note = ""
    if not isinstance(found, str) and not inspect.ismodule(found):
        note = (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|").rstrip(".")
        note = "" if note.startswith(("str(", "int(", "bool(")) else note
    return f"| `{shown}` | {'taken, changes no result' if without_effect else 'implemented'} | {note} |"
