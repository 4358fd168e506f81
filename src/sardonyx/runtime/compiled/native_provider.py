"""The native engine as a provider of partitions."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.compiler.call.fault import Fault
from sardonyx.compiler.program import Program
from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import OptionError
from sardonyx.ops.reference import ReferenceModel
from sardonyx.ops.registry import canonical, find
from sardonyx.runtime.compiled.compiled_model import NativeModel
from sardonyx.runtime.compiled.program_cache import ModelSource, keep, restored
from sardonyx.runtime.providers.estimates import node_seconds
from sardonyx.runtime.providers.protocol import Answer, Claim, Refusal, Settings
from sardonyx.runtime.providers.reference import SLOWER, without_definition


class NativeRunner:
    """A partition as compiled code; the interpreter describes errors in data.

    Args:
        part: The partition.
        settings: Threads, rewriting, denormal numbers.

    Attributes:
        native: The compiled partition.
    """

    def __init__(self, part: ir.Model, settings: Settings) -> None:
        self._names = [str(value.name) for value in part.graph.inputs]
        self._part = part
        self._settings = settings
        outputs = [str(value.name) for value in part.graph.outputs]
        source = ModelSource(model_io.to_proto(part).SerializeToString(deterministic=True))
        uses_store = settings.optimization == "all"
        entry = restored(source, settings.threads, settings.denormals) if uses_store else None
        if entry is not None:
            self.native = NativeModel(entry[0], entry[1]["fed"], outputs)
            return
        self.native = self._compiled()
        if uses_store:
            keep(self.native.program, source, settings.threads, {"fed": self.native.input_names})

    def _compiled(self) -> NativeModel:
        settings = self._settings
        return NativeModel.compiled(self._part, settings.threads, settings.denormals, settings.optimization)

    @property
    def program(self) -> Program:
        """The compiled program with its Core graph; a program from the store is compiled again for the graph."""
        if not self.native.program.has_graph:
            self.native = self._compiled()
        return self.native.program

    @functools.cached_property
    def _reference(self) -> ReferenceModel:
        return ReferenceModel(self._part)

    def run(self, values: Sequence[Any], context: RunContext) -> Sequence[Any]:
        """Run once; see :class:`~sardonyx.runtime.providers.protocol.Runner`."""
        feeds = dict(zip(self._names, values, strict=True))
        if (
            not context.limited
            and context.recorder is None
            and (call := self.native.call) is not None
            and (results := call(feeds)) is not None
        ):
            return results
        try:
            return self.native.run(None, feeds, context)
        except Fault:
            return self._reference.run(None, feeds, context)

    def shrink(self) -> None:
        """Free memory that no call uses."""
        self.native.shrink()


class NativeProvider:
    """Code compiled for this machine.

    Args:
        settings: The settings, without device and options.
    """

    name = "native"

    def __init__(self, settings: Settings) -> None:
        if settings.device or settings.options:
            raise OptionError("the native provider has no devices and no options.", where="providers")
        self._settings = settings

    def capability(self, model: ir.Model) -> Mapping[ir.Node, Answer]:
        """Claim all nodes whose operators have a definition; host functions cost as much as on the interpreter."""
        answers: dict[ir.Node, Answer] = {}
        for node, seconds in node_seconds(model).items():
            imports = model.graph.opset_imports
            operator = find(node.domain, node.op_type, imports.get(node.domain, imports.get(canonical(node.domain), 1)))
            if missing := without_definition(node, model):
                answers[node] = Refusal(f"{missing} has no definition")
            elif operator is not None and operator.host_reason:
                answers[node] = Claim(SLOWER * seconds, f"a host function: {operator.host_reason}")
            else:
                answers[node] = Claim(seconds, "the node is compiled")
        return answers

    def compile(self, part: ir.Model) -> NativeRunner:
        """Compile a partition; raises like :meth:`NativeModel.compiled`."""
        return NativeRunner(part, self._settings)
