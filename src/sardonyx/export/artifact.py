"""The contract of exporters: a model and options in, an artifact out.

An exporter is a module with two functions::

    def refusals(model: ir.Model, options: Options) -> Iterator[Refusal]
    def export(model: ir.Model, options: Options) -> Artifact

``refusals`` names, without converting, the nodes that the target has no form for; ``sardonyx check --target`` prints
them. ``export`` converts, and raises the error of :func:`refuse` for a model with refusals. Exporters never judge their
own results: ``convert_to`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sardonyx.errors import UnsupportedError

Feeds = Mapping[str, Any]
"""Arrays by the names of the model's inputs."""

Answers = Mapping[str, Any]
"""Arrays by the names of the model's outputs."""


@dataclass(frozen=True)
class Options:
    """The caller's requests, as an exporter sees them.

    Attributes:
        name: Name of the program in the target, e.g. of the class; an identifier.
        sizes: Numbers for open sizes, which the model already has: for the messages of exporters alone.
    """

    name: str = "Model"
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """A node, value or type without a form in a target.

    Attributes:
        where: The node or tensor, as :func:`sardonyx.rewrite.analysis.names.node_label` writes nodes.
        operator: The operator, with its domain unless ``ai.onnx``; empty for a tensor.
        rule: The refusing rule of the target, in one sentence.
        remedy: An imperative; empty without one.
    """

    where: str
    operator: str
    rule: str
    remedy: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (f"{self.where}: {self.rule}", self.remedy) if part)


@dataclass(frozen=True)
class Artifact:
    """A model in the form of a target, before proof.

    Attributes:
        write: Writes the main file, or folder, at a path, and companions beside it with the same stem. The folder of
            the path is empty: ``Exported.save`` moves everything in it to its place.
        run: Answers feeds with the target's engine; raises ``EvaluationError``. None if no engine runs here.
        reason: The reason if ``run`` is None, and the check that takes the place of a run.
        inner: Yields inner values of the artifact for feeds in the order of computation, as (name of the model's
            tensor, description of the layer, array): the first that differs locates a difference. None without.
        forms: The form of each operator of the model in the target, with the number of nodes: ``{"Conv → conv2d": 8}``.
        notes: Remarks for the reader of the report.
        value: The object of the framework, e.g. the ``nn.Module`` or the text.
        code_bits: 8 or 16 if the target rounds activations to codes of this width after every layer, else 0: the
            artifact may then differ by the change that a code of the inputs makes.
    """

    write: Callable[[Path], None]
    run: Callable[[Feeds], Answers] | None
    reason: str = ""
    inner: Callable[[Feeds], Iterator[tuple[str, str, Any]]] | None = None
    forms: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()
    value: Any = None
    code_bits: int = 0


MOST_LISTED = 8
"""Number of refusals that an error lists."""


def refuse(target: str, refused: Sequence[Refusal]) -> None:
    """Raise the error with all refusals of a target, if there are any.

    Raises:
        UnsupportedError: Something is refused; lists nodes, rules and the first remedy.
    """
    if not refused:
        return
    rules = [one.rule.rstrip(".") for one in refused[:MOST_LISTED]]
    listed = "; ".join([rules[0], *(f"{one.where}: {rule}" for one, rule in zip(refused[1:], rules[1:], strict=False))])
    more = f"; and {len(refused) - MOST_LISTED} more" if len(refused) > MOST_LISTED else ""
    remedy = next((one.remedy for one in refused if one.remedy), "")
    raise UnsupportedError(f"not convertible to {target}: {listed}{more}.", where=refused[0].where, remedy=remedy)
