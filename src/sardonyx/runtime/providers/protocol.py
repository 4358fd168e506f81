"""What something must be able to do to run a part of a model.

A provider looks at a model and says which of its nodes it can take, and at what cost. It is then given *parts* of the
model, each a model of its own, to make ready; what comes of that runs them.
:mod:`sardonyx.runtime.partition.assignment` assigns nodes to providers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import onnx_ir as ir

from sardonyx.compiler.target.denormals import Denormals
from sardonyx.core.eval.run_context import RunContext

OptimizationLevel = Literal["none", "basic", "all"]
"""How much a model is rewritten before it runs: not, by rewrites that keep every bit, or by all."""


@dataclass(frozen=True)
class Claim:
    """A node that a provider can take.

    Attributes:
        seconds: What it costs there, as an estimate: only comparisons matter.
        reason: Why it can, for ``Session.placement``.
    """

    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Refusal:
    """A node that a provider cannot take.

    Attributes:
        reason: Why not.
    """

    reason: str


Answer = Claim | Refusal


@runtime_checkable
class Runner(Protocol):
    """A part of a model, ready to run, from any thread."""

    def run(self, values: Sequence[Any], context: RunContext) -> Sequence[Any]:
        """Run once.

        Args:
            values: The part's inputs in the order of its graph: arrays, lists for sequences, dicts for maps, None for
                an empty optional. They may be read, never written, and not kept after the call.
            context: The limits of this run; what cannot look at it while it computes asks for ``context.on_end``.

        Returns:
            The part's outputs in the order of its graph, as the caller's own: nothing may write them later.

        Raises:
            Exception: Whatever it is, the call of the session fails with it, and the session goes on.
        """


@runtime_checkable
class Shrinking(Protocol):
    """A runner that can let go of memory."""

    def shrink(self) -> None:
        """Let go of memory that no call uses, from any thread."""


@runtime_checkable
class Provider(Protocol):
    """Something that can run parts of models.

    Attributes:
        name: What sessions call it.
    """

    name: str

    def capability(self, model: ir.Model) -> Mapping[ir.Node, Answer]:
        """Which nodes of the main graph it can take.

        Args:
            model: The whole model, with inferred types and shapes; it must be left as it is.

        Returns:
            A claim or a refusal by node; a node that is not named is refused.
        """

    def compile(self, part: ir.Model) -> Runner:
        """Make a part ready to run.

        Args:
            part: Nodes that it claimed, as a model of its own, whose inputs have types and, where they are known,
                shapes. It must be left as it is.

        Raises:
            UnsupportedError: It cannot take the part after all: its nodes go to others.
        """


@dataclass(frozen=True)
class Settings:
    """What a provider is made with.

    Attributes:
        device: What follows the colon in ``onnxruntime:CUDAExecutionProvider``; empty without.
        options: The provider's own options, passed through as they are.
        threads: How many threads may compute; None for what the process may use.
        optimization: ``"none"``, ``"basic"`` or ``"all"``.
        deterministic: Whether results must be the same from run to run.
        denormals: What becomes of numbers below the least normal one: ``"keep"``, ``"flush"`` or ``"auto"``.
    """

    device: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    optimization: OptimizationLevel = "all"
    deterministic: bool = False
    denormals: Denormals = "auto"


class Factory(Protocol):
    """What an entry point of the group ``sardonyx.providers`` names."""

    def __call__(self, settings: Settings) -> Provider:
        """Make the provider.

        Raises:
            MissingDependencyError: What it stands on is not installed.
            OptionError: It knows no such device or option.
        """
