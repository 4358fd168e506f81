"""Filetests of rewrite rules: graphs before and after a rule, and graphs that the rule refuses, in ONNX's text form.

A file ``cases/<pass>.txt`` holds the cases of one pass, under a heading for each rule::

    opset 18

    ## fuse_mish/mish: x * tanh(softplus(x)) == Mish(x)

    before:
    (float[N, 4] x) => (float[N, 4] y) {
        s = Softplus (x)
        t = Tanh (s)
        y = Mul (x, t)
    }
    after:
    (float[N, 4] x) => (float[N, 4] y) {
        y = Mish (x)
    }

    refused: other readers
    (float[N, 4] x) => (float[N, 4] y, float[N, 4] t) {
        s = Softplus (x)
        t = Tanh (s)
        y = Mul (x, t)
    }

The lines between graphs:

- ``opset 18``, ``target onnxruntime``: before the first heading for the whole file, after a heading for its rule.
- ``before:`` and ``after:``: the rule alone makes the second of the first.
- ``refused: text``: the rule leaves the graph unchanged, and the reason that it gives contains the text.
- ``unchanged: why``: the rule leaves the graph unchanged and gives no reason.
- ``never refuses: why``: stands for the refused case of a rule that has none.
- ``feeds: N = 1, x = [1.5, 2.5]``: sizes of symbols and elements of inputs with which the next ``before`` and ``after``
  are computed; the others are seeded.
- ``not computed: why``: the next ``before`` and ``after`` are compared in structure only.
- ``whole file: why``: the graphs of the rule are compared as files, with all names, weights, descriptions, metadata and
  imports, instead of in structure.
- ``never applies: why``: stands for the ``before`` and ``after`` of a pass that changes nothing.
- ``# …``: a comment.

A graph may follow the header of a model, ``<producer_name: "pytorch", opset_import: ["" : 18, "my.domain" : 1]>``; what
the header leaves out is as without a header. Descriptions and metadata of values and nodes are the annotations of
``docs/reference/text.md``, ``#@ doc_string: "a weight"``.

Author cases by writing graphs on one line, ``before:`` without ``after:``, and ``refused: ?``; then complete the file
and read it::

    python -m tests.rewrite.case_files complete tests/rewrite/cases/fuse_mish.txt
    python -m tests.rewrite.case_files print fuse_mish/mish before.txt
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from sardonyx import model as model_io
from sardonyx.model import text
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.evaluate import ReferenceRunner
from sardonyx.rewrite.language import REGISTRY, Rule
from sardonyx.rewrite.rewrite_context import Settings
from sardonyx.rewrite.sweep import SWEEPS, Sweep
from tests.rewrite.fuzz import assert_equal
from tests.rewrite.generators import target_of

CASES = Path(__file__).parent / "cases"

NO_REASON = "no reason: write 'unchanged: why' instead, or let the rule give one"
"""The completion of ``refused: ?`` if the rule refuses the graph silently; a test fails on this text."""

_KEYWORDS = (
    "before", "after", "refused", "unchanged", "never refuses", "never applies", "feeds", "not computed", "whole file",
)  # fmt: skip
_LINE = re.compile(rf"^(## |opset |target |(?:{'|'.join(_KEYWORDS)}):)\s*(.*)$")


@dataclass
class Case:
    """One graph to which a rule is applied.

    Attributes:
        rule: Label of the rule, ``pass/rule``.
        opset: Version of the default operator set.
        target: The target in force.
        before: Text of the graph.
        after: Text of the rewritten graph; None where the rule leaves the graph unchanged.
        refused: Text that the reason of the refusal contains; None where no refusal is expected.
        feeds: Sizes by symbol and elements by input; None where the graphs are not computed.
        whole: True if the graphs are compared as files.
        line: The line of the file at which the case begins.
    """

    rule: str
    opset: int
    target: str
    before: str = ""
    after: str | None = None
    refused: str | None = None
    feeds: dict[str, Any] | None = field(default_factory=dict)
    whole: bool = False
    line: int = 0


@dataclass
class CaseFile:
    """The cases of one pass, and why rules have no refused case, or no case in which the rule applies."""

    cases: list[Case]
    never_refuses: dict[str, str]
    never_applies: dict[str, str]
    rules: list[str]


def files() -> list[Path]:
    """Return all case files."""
    return sorted(CASES.glob("*.txt"))


def read(path: Path) -> CaseFile:
    """Read a case file.

    Raises:
        ValueError: a line is not where it belongs, with its number.
    """
    return parse(path.read_text(encoding="utf-8"), str(path))


def parse(source: str, name: str = "<text>") -> CaseFile:
    """Parse the text of a case file; see ``read``."""
    parsed = CaseFile([], {}, {}, [])
    defaults: dict[str, str] = {"opset": "18"}
    options: dict[str, str] = {}
    rule = ""
    feeds: dict[str, Any] | None = {}
    whole = False
    graph: list[str] | None = None
    commit: Callable[[str], None] | None = None

    def finish() -> None:
        if commit is not None and graph is not None:
            commit("\n".join(graph).strip())

    for number, line in enumerate(source.splitlines(), 1):
        match = _LINE.match(line)
        if match is None:
            if graph is not None:
                graph.append(line)
            elif line.strip() and not line.startswith("#"):
                raise ValueError(f"{name}:{number}: expected a heading or a keyword, got {line!r}")
            continue
        finish()
        graph, commit = None, None
        keyword, rest = match[1].strip().rstrip(":"), match[2].strip()
        if keyword == "##":
            rule, options, feeds, whole = rest.split(":")[0].strip(), {}, {}, False
            parsed.rules.append(rule)
        elif keyword in ("opset", "target"):
            (options if rule else defaults)[keyword] = rest
        elif not rule:
            raise ValueError(f"{name}:{number}: expected a heading, '## pass/rule: equation'")
        elif keyword == "never refuses":
            parsed.never_refuses[rule] = rest
        elif keyword == "never applies":
            parsed.never_applies[rule] = rest
        elif keyword == "whole file":
            whole = True
        elif keyword == "feeds":
            feeds = {pair.targets[0].id: ast.literal_eval(pair.value) for pair in _assignments(rest)}
        elif keyword == "not computed":
            feeds = None
        elif keyword == "after":
            case, graph = parsed.cases[-1], []

            def set_after(body: str, case: Case = case) -> None:
                case.after = body

            commit = set_after
        else:
            setting = defaults | options
            case = Case(rule, int(setting["opset"]), setting.get("target", ""), feeds=feeds, whole=whole, line=number)
            case.refused = rest if keyword == "refused" else None
            parsed.cases.append(case)
            feeds, graph = {}, []

            def set_before(body: str, case: Case = case, unchanged: bool = keyword != "before") -> None:
                case.before = body
                if unchanged:
                    case.after = body

            commit = set_before
    finish()
    return parsed


def _assignments(source: str) -> Iterator[Any]:
    for part in re.split(r",\s*(?=[A-Za-z_]\w*\s*=)", source):
        yield ast.parse(part.strip()).body[0]


# -- graphs ------------------------------------------------------------------------------------------------------------


def model_of(graph: str, opset: int) -> onnx.ModelProto:
    """Parse a graph of a case (a header may precede the graph, and functions may follow) into a model."""
    header = ""
    if graph.startswith("<"):
        header, graph = graph[1:].split(">", 1)
        graph = graph.strip()
    domains = {"com.microsoft", "ai.onnx.ml"} & set(re.findall(r"com\.microsoft|ai\.onnx\.ml", graph))
    domains |= set(re.findall(r'domain: "([^"]+)"', graph))
    imports = ", ".join([f'"" : {opset}', *(f'"{domain}" : 1' for domain in sorted(domains))])
    named = graph if re.match(r"\w", graph) else f"g {graph}"
    items = [header] if header else []
    items += ["ir_version: 10"] if "ir_version" not in header else []
    items += [f"opset_import: [{imports}]"] if "opset_import" not in header else []
    return text.parse(f"<{', '.join(items)}>\n{named}")


def text_of(proto: onnx.ModelProto) -> str:
    """Print a model as a graph of a case, with short names for inner values."""
    tidy = onnx.ModelProto()
    tidy.CopyFrom(proto)
    _shorten_names(tidy)
    printed = text.print_model(tidy)
    printed = re.sub(r"^.*?\n>\n\w+ ", "", printed, count=1, flags=re.DOTALL)
    printed = re.sub(r"(\w+): (?:int|float|string|graph|tensor)s? = (?!\[\])", r"\1 = ", printed)
    printed = re.sub(r"(\w),(?=\w+[\],])", r"\1, ", printed)
    printed = re.sub(r" *\n", "\n", printed).replace("   ", "    ").strip()
    head, _, body = printed.partition("\n{\n")
    signature, _, weights = head.partition("\n<\n")
    if weights:
        signature += "\n<" + re.sub(r"\s+", " ", weights.removesuffix("\n>").strip()) + ">"
    return f"{signature} {{\n{body}" if body else printed


def _shorten_names(proto: onnx.ModelProto) -> None:
    graph = proto.graph
    del graph.value_info[:]
    graph.ClearField("doc_string")
    graph.name = "g"
    read = {name for inner in _graphs(graph) for node in inner.node for name in node.input}
    read.update(value.name for inner in _graphs(graph) for value in inner.output)
    unread = [tensor for tensor in graph.initializer if tensor.name not in read]
    for tensor in unread:
        graph.initializer.remove(tensor)
    fixed = {value.name for value in (*graph.input, *graph.output)}
    renamed: dict[str, str] = {}

    def short(name: str, prefix: str) -> str:
        if not name or name in fixed or re.fullmatch(r"\w+", name):
            return name
        if name not in renamed:
            renamed[name] = next(f"{prefix}{i}" for i in itertools.count(1) if f"{prefix}{i}" not in renamed.values())
        return renamed[name]

    def visit(inner: onnx.GraphProto) -> None:
        for tensor in inner.initializer:
            tensor.name = short(tensor.name, "c")
            _write_out(tensor)
        for node in inner.node:
            node.ClearField("name")
            node.output[:] = [short(name, node.op_type[0].lower()) for name in node.output]
            node.input[:] = [renamed.get(name, name) for name in node.input]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    visit(attribute.g)
                if attribute.HasField("t"):
                    _write_out(attribute.t)
        for value in inner.output:
            value.name = renamed.get(value.name, value.name)
        del inner.value_info[:]

    visit(graph)


def _write_out(tensor: onnx.TensorProto) -> None:
    """Store the elements in the field of their type, which is printed without an annotation."""
    if tensor.HasField("raw_data"):
        elements = onnx.numpy_helper.to_array(tensor).reshape(-1)
        tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, elements))


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def whole_text(proto: onnx.ModelProto) -> list[str]:
    """Return the lines of a model as a file, with all names, weights, descriptions and metadata."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for graph in _graphs(copy.graph):
        for tensor in graph.initializer:
            _write_out(tensor)
    # The comment on how the file encodes an absent domain is not part of the model.
    return [line for line in text.print_model(copy).splitlines() if not line.startswith("#@ defaults")]


def canonical(proto: onnx.ModelProto) -> list[str]:
    """Return lines that are equal for models that differ only in the names of inner values and the order of nodes."""
    graph = proto.graph
    lines = [f"input {_declared(value)}" for value in graph.input]
    lines += _Canonical({}, "").lines(graph, named=True)
    for function in sorted(proto.functions, key=lambda f: (f.domain, f.name)):
        body = helper.make_graph(
            list(function.node),
            "",
            [helper.make_empty_tensor_value_info(name) for name in function.input],
            [helper.make_empty_tensor_value_info(name) for name in function.output],
        )
        lines += [f"function {function.domain}.{function.name}", *_Canonical({}, "").lines(body, named=False)]
    return lines


def _declared(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type
    dims = [dim.dim_param or dim.dim_value for dim in kind.shape.dim]
    return f"{value.name}: {helper.tensor_dtype_to_string(kind.elem_type)} {dims}" if kind.elem_type else value.name


class _Canonical:
    """Names the values of a graph by the order in which its outputs need them."""

    def __init__(self, outer: Mapping[str, Callable[[], str]], prefix: str) -> None:
        self._resolve: dict[str, Callable[[], str]] = dict(outer)
        self._tokens: dict[str, str] = {}
        self._prefix = prefix
        self._lines: list[str] = []
        self._count = 0

    def lines(self, graph: onnx.GraphProto, *, named: bool) -> list[str]:
        self._tokens.update({t.name: _literal(t) for t in graph.initializer})
        for i, value in enumerate(graph.input):
            token = value.name if named else f"{self._prefix}input{i}"
            default = self._tokens.get(value.name)
            self._tokens[value.name] = token if default is None else f"{token} (default {default})"
        for node in graph.node:
            for name in node.output:
                self._tokens.pop(name, None)
                self._resolve[name] = lambda node=node, name=name: self._emit(node, name)  # type: ignore[misc]
        for i, value in enumerate(graph.output):
            label = _declared(value) if named else str(i)
            token = self._token(value.name)
            self._lines.append(f"output {label} = {token}")
        dead = [node.op_type for node in graph.node if not any(name in self._tokens for name in node.output)]
        self._lines += [f"dead {op_type}" for op_type in sorted(dead)]
        return self._lines

    def _token(self, name: str) -> str:
        if not name:
            return "_"
        if name not in self._tokens:
            self._tokens[name] = self._resolve[name]() if name in self._resolve else name
        return self._tokens[name]

    def _emit(self, node: onnx.NodeProto, name: str) -> str:
        inputs = [self._token(i) for i in node.input]
        while inputs and inputs[-1] == "_":
            inputs.pop()
        attributes = [f"{a.name}={self._attribute(a)}" for a in sorted(node.attribute, key=lambda a: a.name)]
        result = f"%{self._prefix}{self._count}"
        self._count += 1
        for i, output in enumerate(node.output):
            if output:
                self._tokens[output] = f"{result}.{i}"
        domain = f"{node.domain}." if node.domain not in ("", "ai.onnx") else ""
        self._lines.append(f"{result} = {domain}{node.op_type} <{', '.join(attributes)}> ({', '.join(inputs)})")
        return self._tokens[name]

    def _attribute(self, attribute: onnx.AttributeProto) -> str:
        if attribute.ref_attr_name:
            return f"@{attribute.ref_attr_name}"
        value = helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            return _literal(value)
        if isinstance(value, onnx.GraphProto):
            outer = {name: lambda name=name: self._token(name) for name in {*self._resolve, *self._tokens}}  # type: ignore[misc]
            inner = _Canonical(outer, f"{self._prefix}b")
            return "{" + "; ".join(inner.lines(value, named=False)) + "}"
        return repr(list(value) if not isinstance(value, (int, float, str, bytes)) else value)


def _literal(tensor: onnx.TensorProto) -> str:
    array = onnx.numpy_helper.to_array(tensor)
    return f"{array.dtype}{list(array.shape)}{{{', '.join(map(repr, array.reshape(-1).tolist()))}}}"


# -- running -----------------------------------------------------------------------------------------------------------


def rule_of(label: str) -> Rule | Sweep:
    """Return the registered rule or sweep of this label.

    Raises:
        LookupError: no such rule.
    """
    name = label.split("/")[0]
    for rule in REGISTRY.get(name, ()):
        if rule.label == label:
            return rule
    if name in SWEEPS and SWEEPS[name].rule.label == label:
        return SWEEPS[name]
    raise LookupError(f"no rule is registered as '{label}'")


def rewrite(case: Case) -> tuple[onnx.ModelProto, Engine, onnx.ModelProto]:
    """Apply the rule of a case alone; returns the model before, the engine and the model after."""
    before = model_of(case.before, case.opset)
    rule = rule_of(case.rule)
    selection = pipeline.Selection((rule,), ()) if isinstance(rule, Rule) else pipeline.Selection((), (rule,))
    model = model_io.from_proto(before)
    settings = Settings(target=case.target or target_of(case.rule))
    engine = pipeline.transform(model, selection, settings)
    pipeline.finish(engine, selection)
    return before, engine, model_io.to_proto(model)


def compute(case: Case, before: onnx.ModelProto, after: onnx.ModelProto, engine: Engine) -> None:
    """Compute both models on the same inputs by the reference interpreter.

    Raises:
        AssertionError: an output differs.
    """
    assert case.feeds is not None
    feeds = _feeds(before, case.feeds)
    left = {value.name for value in after.graph.input}
    expected = ReferenceRunner(before).run(feeds)
    actual = ReferenceRunner(after).run({name: array for name, array in feeds.items() if name in left})
    exact = all(applied.exactness == "exact" for applied in engine.applied)
    assert_equal(expected, actual, exact=exact)


def _feeds(proto: onnx.ModelProto, stated: Mapping[str, Any]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes: dict[str, int] = {}
    feeds: dict[str, np.ndarray] = {}
    weights = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name in weights and value.name not in stated:
            continue
        kind = value.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if value.name in stated:
            feeds[value.name] = np.asarray(stated[value.name], dtype)
            continue
        shape = []
        for i, dim in enumerate(kind.shape.dim):
            symbol = dim.dim_param or f"{value.name}:{i}"
            size = dim.dim_value if dim.HasField("dim_value") else sizes.setdefault(symbol, 2 + len(sizes) % 3)
            shape.append(int(stated.get(symbol, size)))
        if dtype.kind in "iub":
            feeds[value.name] = rng.integers(0, 2, shape).astype(dtype)
        elif dtype.kind == "O":
            feeds[value.name] = np.array([f"s{i}" for i in range(int(np.prod(shape)))], object).reshape(shape)
        else:
            feeds[value.name] = np.asarray(rng.standard_normal(shape)).astype(dtype)
    return feeds


def reasons(engine: Engine, label: str) -> list[str]:
    """Return the reasons that a rule gave for its refusals."""
    return [reason for (rule, _), reason in engine.refused.items() if rule == label]


# -- authoring ---------------------------------------------------------------------------------------------------------


def complete(path: Path) -> None:
    """Write the missing ``after:`` graphs and the reasons for ``refused: ?``; lay out graphs written on one line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for case in reversed(read(path).cases):
        at = case.line - 1
        if sum(bool(line) and not line.startswith("#") for line in case.before.splitlines()) == 1:
            lines[at + 1 : at + 2] = text_of(model_of(case.before, case.opset)).splitlines()
        if case.after is None:
            _, engine, after = rewrite(case)
            end = next((i for i in range(at + 1, len(lines)) if _LINE.match(lines[i])), len(lines))
            while not lines[end - 1].strip() or lines[end - 1].startswith("#"):
                end -= 1
            fired = text_of(after) if engine.applied else f"NOT APPLIED: {reasons(engine, case.rule)}"
            lines[end:end] = ["after:", *fired.splitlines()]
        elif lines[at].startswith("refused: ?"):
            _, engine, _ = rewrite(case)
            lines[at] = f"refused: {'; '.join(reasons(engine, case.rule)) or NO_REASON}"
            if engine.applied:
                lines[at] = "refused: the rule applies to this graph"
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Complete case files, or print what a rule makes of a graph."""
    match arguments:
        case ["complete", *paths] if paths:
            for path in paths:
                complete(Path(path))
        case ["print", label, path]:
            case = Case(label, 18, "", before=Path(path).read_text(encoding="utf-8"))
            _, engine, after = rewrite(case)
            print(text_of(after) if engine.applied else f"not applied: {reasons(engine, label)}")
        case _:
            sys.exit("usage: python -m tests.rewrite.case_files complete FILE… | print PASS/RULE FILE")


if __name__ == "__main__":
    assert pipeline.available_passes()
    main(sys.argv[1:])
