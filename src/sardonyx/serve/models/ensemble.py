"""Ensembles: models in steps, connected by the names of the tensors between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sardonyx.errors import ModelFileError, RequestError
from sardonyx.runtime.session import Session
from sardonyx.serve.models.interface import Signature, Tensor
from sardonyx.serve.models.reshaping import Reshaping
from sardonyx.serve.models.served import Served

PLATFORM = "ensemble"
"""The platform of ensembles, as Triton names it."""


@dataclass(frozen=True)
class EnsembleStep:
    """A model of an ensemble, which begins once all of its inputs are computed.

    Attributes:
        model: The name of the model.
        inputs: The tensor of the ensemble for each input of the model.
        outputs: The tensor of the ensemble for each output of the model that is used.
        version: The number of the version as text; empty for the newest.
    """

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    version: str = ""


@dataclass(frozen=True)
class Ensemble:
    """Models that answer as one, step by step; every step is a request to the queue of its model.

    Attributes:
        steps: The steps, in any order.
        inputs: The tensors that requests have.
        outputs: The tensors that answers have.
        declared: Element types and sizes of inputs and outputs; those of the models where none are declared.
        version: The number of the version.
        row_limit: The largest number of rows of a request; 0 if requests have no axis of rows.
        labels: Names of classes, by output; those of the models where none are named.
        cached: True if answers to equal requests are remembered.
        config: The parsed ``config.pbtxt``; None without one.

    Raises:
        ModelFileError: A tensor is unused, computed twice, or never computed, or a step has no inputs or outputs.
    """

    steps: Sequence[EnsembleStep]
    inputs: Sequence[str]
    outputs: Sequence[str]
    declared: Mapping[str, Tensor] = field(default_factory=dict)
    version: int = 1
    row_limit: int = 0
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cached: bool = False
    config: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        problem = next(self._problems(), None)
        if problem is not None:
            raise ModelFileError(f"the ensemble is not connected: {problem}")

    def _problems(self) -> Iterator[str]:
        if not self.steps:
            yield "expected at least one step."
        for index, step in enumerate(self.steps, 1):
            for kind, part in (("model", step.model), ("inputs", step.inputs), ("outputs", step.outputs)):
                if not part:
                    yield f"step {index} has no {kind}."
        for kind, names in (("input", self.inputs), ("output", self.outputs)):
            if not names:
                yield f"expected at least one {kind}."
        written = Counter([*self.inputs, *(tensor for step in self.steps for tensor in step.outputs.values())])
        read = {*self.outputs, *(tensor for step in self.steps for tensor in step.inputs.values())}
        for tensor, count in written.items():
            if count > 1:
                yield f"the tensor {tensor!r} is computed {count} times, or is an input too."
            if tensor not in read:
                yield f"the tensor {tensor!r} is not used."
        for tensor in sorted(read - set(written)):
            yield f"the tensor {tensor!r} is not computed by any step."
        computed, waiting = set(self.inputs), list(self.steps)
        while ready := [step for step in waiting if computed.issuperset(step.inputs.values())]:
            computed.update(tensor for step in ready for tensor in step.outputs.values())
            waiting = [step for step in waiting if step not in ready]
        if waiting:
            yield f"the graph has a cycle among the steps {', '.join(step.model for step in waiting)}."

    @property
    def models(self) -> list[str]:
        """The names of the models, in alphabetical order, each once."""
        return sorted({step.model for step in self.steps})

    def needed(self, outputs: Sequence[str]) -> list[int]:
        """Return the indices of the steps that some outputs depend on, in ascending order."""
        tensors, others = set(outputs), list(enumerate(self.steps))
        needed: list[int] = []
        while added := {index for index, step in others if tensors.intersection(step.outputs.values())}:
            needed += added
            tensors.update(tensor for index in added for tensor in self.steps[index].inputs.values())
            others = [(index, step) for index, step in others if index not in added]
        return sorted(needed)


class ServedEnsemble(Served):
    """A version of an ensemble that a server answers from.

    Args:
        name: The name of the ensemble.
        ensemble: The steps.

    Attributes:
        ensemble: As passed.
        signature: The inputs and outputs; empty before :meth:`fit`.
    """

    def __init__(self, name: str, ensemble: Ensemble) -> None:
        super().__init__(name, ensemble.version)
        self.ensemble = ensemble
        self.signature = Signature({}, {})
        self._parts: Sequence[Served] = ()
        self._labels: Mapping[str, Sequence[str]] = ensemble.labels

    def fit(self, parts: Sequence[Served]) -> None:
        """Check the models of the steps, which an edit or a load may have changed, and derive inputs and outputs.

        Args:
            parts: A model for each step.

        Raises:
            ModelFileError: A model lacks an input or output of its step, or two uses of a tensor contradict each other.
        """
        tensors: dict[str, tuple[str, Tensor]] = {
            name: ("the ensemble", tensor) for name, tensor in self.ensemble.declared.items()
        }
        labels: dict[str, Sequence[str]] = {}
        for step, part in zip(self.ensemble.steps, parts, strict=True):
            _require_rows(self, part)
            inputs, outputs = part.tensors()
            for kind, known, names in (("input", inputs, step.inputs), ("output", outputs, step.outputs)):
                for inner, outer in names.items():
                    if inner not in known or inner in part.hidden:
                        raise ModelFileError(f"the model {part.name} has no {kind} {inner!r}.", where=self.name)
                    _require_equal(tensors.setdefault(outer, (part.name, known[inner])), part, known[inner], outer)
            for inner, tensor in inputs.items():
                if inner not in step.inputs and inner not in part.hidden and not tensor.is_optional:
                    raise ModelFileError(f"the step has no tensor for the input {inner!r}.", where=part.name)
            labels |= {step.outputs[name]: texts for name, texts in part.labels.items() if name in step.outputs}
        self._parts = tuple(parts)
        self._labels = labels | dict(self.ensemble.labels)
        described = {name: replace(tensor, name=name, is_optional=False) for name, (_, tensor) in tensors.items()}
        self.signature = Signature(
            {name: described[name] for name in self.ensemble.inputs},
            {name: described[name] for name in self.ensemble.outputs},
        )

    def forget_parts(self) -> None:
        """Release the models of the steps."""
        self._parts = ()

    @property
    def platform(self) -> str:
        """The platform, as the metadata name it."""
        return PLATFORM

    @property
    def session(self) -> Session:
        """An ensemble has no session.

        Raises:
            RequestError: Always.
        """
        raise RequestError(
            "an ensemble has no graph of its own.", kind="unsupported", where=self.name,
            remedy=f"Use its models: {', '.join(self.ensemble.models)}.",
        )  # fmt: skip

    @property
    def revision_number(self) -> int:
        """The sum of the revisions of the models: every edit of one of them changes it."""
        return sum(part.revision_number for part in set(self._parts))

    @property
    def config(self) -> Mapping[str, Any] | None:
        """The parsed ``config.pbtxt``; None without one."""
        return self.ensemble.config

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Names of classes, by output."""
        return self._labels

    @property
    def reshapings(self) -> Mapping[str, Reshaping]:
        """Nothing: the tensors between steps have the sizes of the models."""
        return {}

    @property
    def hidden(self) -> frozenset[str]:
        """Nothing: all inputs and outputs are the client's."""
        return frozenset()

    @property
    def row_limit(self) -> int:
        """The largest number of rows of a request; 0 for no limit."""
        return self.ensemble.row_limit

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the inputs and the outputs by name."""
        return self.signature.inputs, self.signature.outputs

    def batching_note(self) -> str:
        """Return the reason why requests are not merged here."""
        return "off: the models of an ensemble merge its steps"


def _require_rows(ensemble: ServedEnsemble, part: Served) -> None:
    if 0 < part.row_limit < ensemble.row_limit:
        raise ModelFileError(
            f"the ensemble permits {ensemble.row_limit} rows, its model {part.name} {part.row_limit}.",
            where=ensemble.name, remedy="Lower max_batch_size of the ensemble.",
        )  # fmt: skip


def _require_equal(first: tuple[str, Tensor], part: Served, tensor: Tensor, name: str) -> None:
    """Refuse a tensor of an ensemble whose uses have other element types or sizes."""
    source, other = first
    if other.datatype is not tensor.datatype:
        raise ModelFileError(
            f"the tensor {name!r} is {other.datatype.name} in {source} and {tensor.datatype.name} in {part.name}.",
            where=name,
        )  # fmt: skip
    if other.shape is None or tensor.shape is None:
        return
    is_equal = len(other.sizes) == len(tensor.sizes) and all(
        a == b or a < 0 or b < 0 for a, b in zip(other.sizes, tensor.sizes, strict=True)
    )
    if not is_equal:
        raise ModelFileError(
            f"the tensor {name!r} is {other.sizes} in {source} and {tensor.sizes} in {part.name}.", where=name
        )


def loading_order(names: Iterable[str], parts: Callable[[str], Sequence[str]]) -> list[str]:
    """Return names with those of all models that ensembles need, each after the models that it needs.

    Args:
        names: The names.
        parts: Returns the names of the models of an ensemble; empty for a model.
    """
    order: dict[str, None] = {}
    begun = set()

    def visit(name: str) -> None:
        if name not in begun:
            begun.add(name)
            for part in parts(name):
                visit(part)
            order[name] = None

    for name in names:
        visit(name)
    return list(order)


def cycle(name: str, parts: Callable[[str], Sequence[str]]) -> list[str]:
    """Return the names from an ensemble to itself, over the ensembles that it needs; empty if there are none."""
    begun = set()

    def visit(path: list[str]) -> list[str]:
        for part in parts(path[-1]):
            if part == name:
                return [*path, part]
            if part not in begun:
                begun.add(part)
                if rest := visit([*path, part]):
                    return rest
        return []

    return visit([name])
