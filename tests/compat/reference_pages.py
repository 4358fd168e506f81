"""Generator of pages in ``docs/reference``; ``python -m tests.compat.reference_pages`` writes all pages."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sardonyx.compat import onnxoptimizer, onnxsim, onnxslim
from sardonyx.compat.onnxruntime.quantization.quantize import OPTIONS, WITHOUT_EFFECT
from sardonyx.compat.parameters import Parameters, Refused
from sardonyx.ops.support import support_table
from sardonyx.rewrite.language import REGISTRY, Rule
from sardonyx.rewrite.pipeline import available_passes
from sardonyx.rewrite.sweep import SWEEPS
from tests.compat.onnxruntime.reference_page import page as onnxruntime_page
from tests.ops.differential import WITHOUT_GENERATOR
from tests.ops.disagreements import DISAGREEMENTS
from tests.suites import left_out
from tests.suites.wheel_flaws import FLAWS, RANDOM

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
_LEAST_EXACT_FIRST = ("approximates", "reassociates", "exact")

_PASSES_HEAD = """# Passes

<!-- Written by `python -m tests.compat.reference_pages`; do not edit. -->

`sardonyx passes` prints this list. A pass is a named group of rewrites; `passes=[...]` runs only the listed passes,
`skip=[...]` omits passes.

**Exactness** is the weakest promise of the pass's rewrites: *exact* is equal bits, *reassociates* another order of
sums, *approximates* a stated tolerance. **Runs** is *by default*, *when named*, or *partly* if some rewrites run only
when named. **From** is the lowest operator set at which a rewrite of the pass can fire.
"""

_COMPAT_HEAD = """# Drop-in modules

<!-- Written by `python -m tests.compat.reference_pages`; do not edit. -->

Modules with the names, signatures and result types of other packages. Change the import, and keep the code:

```python
from sardonyx.compat import onnxoptimizer   # optimize, get_available_passes, get_fuse_and_elimination_passes, main
from sardonyx.compat.onnxsim import simplify
from sardonyx.compat.onnxslim import slim
from sardonyx.compat import float16_converter   # convert_float_to_float16, convert_np_to_float16, …
```

`sardonyx.compat.install("onnxslim")`, before the first import, lets `import onnxslim` load the drop-in; `onnxsim`,
`onnxoptimizer` and `onnxconverter_common` (the float16 converter) likewise. Their other modules (`onnxslim.utils`,
`onnxconverter_common.onnx_ops`) are those of the installed package, if there is one. `onnxslim.cli`,
`onnxsim.onnx_simplifier` and `onnxconverter_common.float16` are Sardonyx's.

Every parameter works, or raises an error that names the parameter for any value but the default. As in the original
packages, results are not proved: `sardonyx.optimize` proves results, and reports the effect of each pass.
"""


_QUANTIZATION = """## onnxruntime.quantization 1.32

`sardonyx.compat.onnxruntime.quantization` has `quantize_static`, `quantize_dynamic`, `quantize` with its
configurations, `get_qdq_config`, `quant_pre_process`, `preprocess`, `create_calibrator` with its classes,
`QDQQuantizer`, `ONNXQuantizer`, `ONNXModel`, `TensorQuantOverridesHelper`, `registry` with the classes of operators,
`matmul_nbits_quantizer`, `qdq_loss_debug`, and the types and arithmetic of `quant_utils`. A program that runs by
`python -m sardonyx.compat.onnxruntime` imports these as `onnxruntime.quantization`. Other modules, such as
`static_quantize_runner`, `fusions` and `execution_providers.qnn`, are those of the installed package.

This drop-in follows ONNX Runtime's conventions, on which programs rely: the choice of nodes, the names of nodes and
initializers, scales from the largest magnitude, the tables of ranges, both formats, overrides of single tensors. Its
results are as accurate as ONNX Runtime's: `sardonyx.quantize` has Sardonyx's own placement and methods, which lose
less. Differences by design:

- Samples run on compiled code. Ranges of `MinMax` need constant memory; histograms hold at most 256 MiB of samples.
- `quant_pre_process` optimizes by Sardonyx's passes, which may merge more nodes than ONNX Runtime's basic level.
- `SmoothQuant` needs no neural-compressor: channels are rescaled by Sardonyx's estimate of the error.
- `RTN`, `k_quant`, `HQQ` and `GPTQ` of `matmul_nbits_quantizer` are Sardonyx's methods, with scales per block.
- Overrides of all tensors are checked, not only those of the first.

ONNX Runtime's own tests of the module (`onnxruntime/test/python/quantization` of its repository, at the revision
whose `VERSION_NUMBER` is 1.30.0) run in place, with the real package and with Sardonyx:

    python -m pytest onnxruntime/test/python/quantization
    python -m sardonyx.compat.onnxruntime -m pytest onnxruntime/test/python/quantization

Of the 309 tests that pass with onnxruntime 1.32.0, 302 pass with Sardonyx. Two of the others compare a scale to the
last bit, two find fewer nodes to fuse since Sardonyx's passes have removed some, two have models that their operator
set does not permit, and one looks for operators that only ONNX Runtime's own optimizer writes.

"""

_NNCF = """
## nncf

`sardonyx.compat.nncf` has `quantize(model, Dataset, …)` and `compress_weights(model, mode, group_size,
ignored_scope)` for `onnx.ModelProto`, with `Dataset`, `IgnoredScope` (names, patterns, types) and the enumerations.
`preset=PERFORMANCE` has symmetric activations. `model_type`, `target_device` and `fast_bias_correction` need no
choice: the placement follows from the graph, and biases are always corrected. `advanced_parameters`, `ratio` below
1, and options of compression with data are refused by name. `quantize_with_accuracy_control` does not exist;
`sardonyx.compress` keeps budgets.
"""


def _promise(rules: Iterable[Rule]) -> str:
    promises = {str(rule.exactness.value) for rule in rules}
    return next(promise for promise in _LEAST_EXACT_FIRST if promise in promises)


def _runs(rules: list[Rule]) -> str:
    targets = {target for rule in rules for target in rule.targets}
    if all(rule.targets for rule in rules):
        when = f"for {', '.join(sorted(targets))}"
        return when if any(rule.default for rule in rules) else f"when named, {when}"
    if all(rule.default for rule in rules):
        return "by default"
    return "partly" if any(rule.default for rule in rules) else "when named"


def _rules(name: str) -> list[Rule]:
    return [*REGISTRY.get(name, ()), *([SWEEPS[name].rule] if name in SWEEPS else [])]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def passes_page() -> str:
    """Return the page of passes."""
    theirs = set(onnxoptimizer.ORIGINAL_PASSES)
    rows = []
    for name in available_passes():
        rules = _rules(name)
        effect = " ".join(dict.fromkeys(rule.description for rule in rules))
        opset = min(rule.opset for rule in rules)
        peer = "yes" if name in theirs else ""
        rows.append((f"`{name}`", effect, _promise(rules), _runs(rules), str(opset) if opset > 1 else "", peer))
    differences = [(f"`{name}`", text) for name, text in sorted(onnxoptimizer.DIFFERENCES.items())]
    return (
        f"{_PASSES_HEAD}\n"
        + _table(("pass", "what it does", "exactness", "runs", "from", "in onnxoptimizer"), rows)
        + "\n## Differences from onnxoptimizer 0.4.2\n\n"
        "Passes of the same name have the same meaning, with these differences. In general: a rewrite also removes "
        "nodes without remaining readers; a pass runs to its own fixed point, in bodies and model-local functions "
        "too; shapes are inferred, not only read.\n\n" + _table(("pass", "difference"), differences)
    )


def _parameters(function: Any, parameters: Parameters) -> str:
    signature = inspect.signature(function).parameters
    rows = []
    for name, support in parameters.items():
        default = signature[name].default if name in signature else None
        shown = "" if default is inspect.Parameter.empty else f"`{default!r}`"
        if isinstance(support, Refused):
            also = "".join(f", `{value!r}`" for value in support.accepted)
            rows.append((f"`{name}`", shown, f"only {shown}{also}", support.reason))
        else:
            rows.append((f"`{name}`", shown, "works", support.note))
    return _table(("parameter", "default", "here", "note"), rows)


def compat_page() -> str:
    """Return the page of drop-in modules."""
    return (
        f"{_COMPAT_HEAD}\n"
        "## onnxoptimizer 0.4.2\n\n" + _parameters(onnxoptimizer.optimize, onnxoptimizer.PARAMETERS) + "\n"
        "Errors have the classes of the original: `ValueError` for a model that is not a `ModelProto`, `TypeError` "
        "for passes that are not a list of names, `RuntimeError` for an unknown pass, `IndexError` for a node that "
        "reads an undefined tensor. All are `SardonyxError` too. [Passes](passes.md) lists the passes and their "
        "differences.\n\n"
        "## onnxsim 0.8.1\n\n" + _parameters(onnxsim.simplify, onnxsim.PARAMETERS) + "\n"
        "## onnxslim 0.1.98\n\n" + _parameters(onnxslim.slim, onnxslim.PARAMETERS) + "\n"
        "Fusion patterns (`skip_fusion_patterns`) correspond to these passes:\n\n"
        + _table(
            ("pattern", "passes"),
            ((f"`{name}`", ", ".join(f"`{label}`" for label in passes)) for name, passes in onnxslim.PATTERNS.items()),
        )
        + "\n"
        + _QUANTIZATION
        + _table(
            ("option of `extra_options`", "here"),
            [(f"`{name}`", f"applies: {subject}") for name, subject in sorted(OPTIONS.items())]
            + [(f"`{name}`", "warns, no effect") for name in sorted(WITHOUT_EFFECT)]
            + [("others", "warn, no effect")],
        )
        + _NNCF
    )


_OPERATORS_HEAD = """# Operators

<!-- Written by `python -m tests.compat.reference_pages`; do not edit. -->

`sardonyx ops` prints this list of operators, which sessions run, shape inference supports, and folding computes. A
*core* operator is written over the primitives of Core; a *host* operator is Python over numpy, for the stated reason.
**Versions** are the versions of the domain that changed the operator; all are implemented. **Element types** are the
types of the inputs at the newest version.
"""


def operators_page() -> str:
    """Return the support table, a section per domain."""
    rows = [row for row in support_table() if row.tested != "your own tests"]
    sections = [_OPERATORS_HEAD]
    for domain in sorted({row.domain for row in rows}):
        members = [row for row in rows if row.domain == domain]
        hosts = sum(row.definition == "host" for row in members)
        sections.append(
            f"## {domain}\n\n{len(members)} operators, {hosts} of them host operators.\n\n"
            + _table(
                ("operator", "versions", "element types", "definition", "tested with"),
                (
                    (
                        f"`{row.name}`",
                        ", ".join(map(str, row.versions)),
                        ", ".join(row.dtypes),
                        f"host: {row.reason}" if row.reason else row.definition,
                        row.tested,
                    )
                    for row in members
                ),
            )
        )
    return "\n".join(sections)


_DIFFERENCES_HEAD = """# Differences

<!-- Written by `python -m tests.compat.reference_pages`; do not edit. -->

Cases of public suites that are skipped or judged differently, and disagreements with other evaluators, with reasons.
"""


def differences_page() -> str:
    """Return the page of skipped cases, and of disagreements with other evaluators."""
    wheels = [(f"`{RANDOM}`", "all", "random values: types and shapes are compared")]
    wheels += [(f"`{flaw.cases}`", ", ".join(flaw.versions), flaw.reason) for flaw in FLAWS]
    others = [(_listed(entry.operators), entry.evaluator, entry.reason) for entry in DISAGREEMENTS]
    sections = (
        ("ONNX backend suite", ("cases", "skipped because"), _reasons(left_out.BACKEND)),
        ("Node data of older wheels of onnx", ("cases", "wheels", "error in the data"), wheels),
        ("Node cases traced at open sizes", ("cases", "skipped because"), _reasons(left_out.TRACED)),
        ("Node cases exported from Core", ("cases", "skipped because"), _reasons(left_out.EXPORTED)),
        ("Trained models", ("model", "judged differently because"), _reasons(left_out.JUDGED_APART)),
        ("Random models", ("operator", "not generated because"), _reasons(WITHOUT_GENERATOR)),
        ("Other evaluators", ("operators", "evaluator", "difference"), others),
    )
    return "\n".join(
        [_DIFFERENCES_HEAD, *(f"## {title}\n\n{_table(columns, rows)}" for title, columns, rows in sections)]
    )


def _reasons(table: Mapping[str, str]) -> list[tuple[str, ...]]:
    return [(f"`{name}`", reason) for name, reason in table.items()]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


PAGES = {
    "passes.md": passes_page,
    "compat.md": compat_page,
    "operators.md": operators_page,
    "differences.md": differences_page,
    "onnxruntime.md": onnxruntime_page,
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
