"""The protocol of providers, which run partitions of models.

A provider looks at a model and claims nodes, each at a cost. The provider is then given partitions, each a model of its
own, to compile; the results run the partitions.
:mod:`sardonyx.runtime.partition.assignment` assigns nodes to providers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from sardonyx.compiler.target.denormals import Denormals
from sardonyx.core.eval.run_context import RunContext

if TYPE_CHECKING:
    import onnx_ir as ir

OptimizationLevel = Literal["none", "basic", "all"]
"""The rewrites before a model runs: none, rewrites that keep every bit, or all."""


@dataclass(frozen=True)
class Claim:
    """A node that a provider supports.

    Attributes:
        seconds: The estimated cost: only comparisons matter.
        reason: The reason, for ``Session.placement``.
    """

    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Refusal:
    """A node that a provider does not support.

    Attributes:
        reason: The reason.
    """

    reason: str


Answer = Claim | Refusal


@runtime_checkable
class Runner(Protocol):
    """A partition that is ready to run, from any thread."""

    def run(self, values: Sequence[Any], context: RunContext) -> Sequence[Any]:
        """Run once.

        Args:
            values: The inputs in graph order: arrays, lists for sequences, dicts for maps, None for an empty optional.
                They may be read during the call, but not written and not retained.
            context: The limits of this run; an engine that cannot poll the context registers ``context.on_end``.

        Returns:
            The outputs in graph order, owned by the caller: nothing writes them later.

        Raises:
            Exception: Any error fails the call of the session; the session remains usable.
        """


@runtime_checkable
class Shrinking(Protocol):
    """A runner that can free memory."""

    def shrink(self) -> None:
        """Free memory that no call uses, from any thread."""


@runtime_checkable
class Provider(Protocol):
    """An engine that can run partitions of models.

    Attributes:
        name: Its name in sessions.
    """

    name: str

    def capability(self, model: ir.Model) -> Mapping[ir.Node, Answer]:
        """Return the nodes of the main graph that the provider supports.

        Args:
            model: The whole model, with inferred types and shapes; it must not be changed.

        Returns:
            A claim or a refusal by node; missing nodes are refused.
        """

    def compile(self, part: ir.Model) -> Runner:
        """Compile a partition.

        Args:
            part: Claimed nodes as a model of their own, whose inputs have types and, if known, shapes. It must not be
                changed.

        Raises:
            UnsupportedError: The provider does not support the partition: its nodes go to other providers.
        """


@dataclass(frozen=True)
class Settings:
    """Settings of a provider.

    Attributes:
        device: The text after the colon in ``onnxruntime:CUDAExecutionProvider``; empty without a colon.
        options: Options of the provider, passed unchanged.
        threads: Number of threads; None for all processors of the process.
        optimization: ``"none"``, ``"basic"`` or ``"all"``.
        deterministic: If True, results must be the same in every run.
        denormals: The treatment of denormal numbers: ``"keep"``, ``"flush"`` or ``"auto"``.
    """

    device: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    optimization: OptimizationLevel = "all"
    deterministic: bool = False
    denormals: Denormals = "auto"


class Factory(Protocol):
    """The object of an entry point of the group ``sardonyx.providers``."""

    def __call__(self, settings: Settings) -> Provider:
        """Create the provider.

        Raises:
            MissingDependencyError: The engine is not installed.
            OptionError: Unknown device or option.
        """
