"""Sardonyx: check, optimize, compress, compile, run and edit ONNX models.

The names in ``__all__`` are the stable Python API. Each name is imported on first use, so that ``import sardonyx`` and
``sardonyx --help`` remain fast.
"""

from __future__ import annotations

from sardonyx.base.deferred_imports import defer_imports, deferred

with deferred(("ipaddress",)):  # For addresses in URLs, which the module of paths imports.
    import pathlib as _pathlib  # noqa: F401

from sardonyx.base.hooks import register_hook
from sardonyx.base.installed_onnx import require_onnx
from sardonyx.base.lazy_names import lazy_names

__version__ = "0.1.0"

require_onnx()
defer_imports()
# Sessions compress models when they load them; compression is above the runtime.
register_hook("compress_at_load", "sardonyx.compress.at_load", "compress_at_load")
# Sessions learn from streams; training is above the runtime.
register_hook("learner", "sardonyx.train.online.learner", "learner_of")
# Files are opened below, and encryption is above.
register_hook("open_encrypted", "sardonyx.trust.encryption.reader", "open_encrypted")
register_hook("sealed_store", "sardonyx.trust.encryption.sealed_store", "sealed_store")
register_hook("verify_on_load", "sardonyx.trust.signing.policy", "verify_on_load")
register_hook("export_findings", "sardonyx.export.checking", "export_findings")
register_hook("export_targets", "sardonyx.export.targets", "target_names")
register_hook("encrypt_compiled", "sardonyx.trust.encryption.files", "encrypt_compiled")

PUBLIC_NAMES = {
    "sardonyx.compress.evidence": ["metric"],
    "sardonyx.compress.float16": ["auto_mixed_precision", "convert_bfloat16", "convert_float16"],
    "sardonyx.compress.clustering": ["cluster"],
    "sardonyx.compress.factorization": ["factorize"],
    "sardonyx.compress.pruning": ["prune"],
    "sardonyx.compress.quantization": ["quantize"],
    "sardonyx.compress.search": ["Budget", "compress"],
    "sardonyx.convert.conversion": ["Converted", "convert"],
    "sardonyx.distributed.split": ["split"],
    "sardonyx.distributed.tensor_parallel": ["split_tensors"],
    "sardonyx.errors": ["SardonyxError"],
    "sardonyx.export.exporting": ["Exported", "convert_to"],
    "sardonyx.model": ["load", "save", "to_proto"],
    "sardonyx.model.check": ["check"],
    "sardonyx.ops": ["host_operator", "operator"],
    "sardonyx.report.accuracy": ["compare"],
    "sardonyx.report.bench": ["bench"],
    "sardonyx.report.diff": ["diff"],
    "sardonyx.report.listing": ["list_nodes", "list_weights"],
    "sardonyx.report.non_finite": ["non_finite"],
    "sardonyx.report.reduction": ["reduce"],
    "sardonyx.report.summary": ["summary"],
    "sardonyx.rewrite.analysis.inference": ["infer_shapes"],
    "sardonyx.rewrite.language": ["Refusal", "rule"],
    "sardonyx.rewrite.opset": ["convert_opset"],
    "sardonyx.rewrite.optimize": ["Optimized", "optimize"],
    "sardonyx.rewrite.reshape_inputs": ["make_dynamic", "set_batch", "set_input_shapes"],
    "sardonyx.rewrite.surgery": ["extract", "merge", "rename"],
    "sardonyx.runtime.dlpack_value": ["Value"],
    "sardonyx.runtime.node": ["Node"],
    "sardonyx.runtime.options": ["SessionOptions"],
    "sardonyx.runtime.run_options": ["RunOptions"],
    "sardonyx.runtime.session": ["Session"],
    "sardonyx.runtime.shortcuts": ["compile", "explain", "profile", "run"],
    "sardonyx.train.gradient": ["gradient"],
    "sardonyx.trust.encryption": ["add_key", "decrypt", "encrypt"],
}
"""The public names, by module; source of ``__init__.pyi``, which ``tools/make_api_stub.py`` writes."""

__all__ = sorted(name for names in PUBLIC_NAMES.values() for name in names)

__getattr__ = lazy_names(__name__, PUBLIC_NAMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
