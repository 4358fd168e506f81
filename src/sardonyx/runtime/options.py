"""Session options: every setting of a session except its model."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from sardonyx.compiler.target.denormals import Denormals
from sardonyx.errors import OptionError
from sardonyx.runtime.precision import Precision
from sardonyx.runtime.providers.protocol import OptimizationLevel

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.runtime.providers.protocol import Provider

PROVIDERS = ("native", "reference")
"""The default providers: code compiled for this machine, and the numpy interpreter of Core."""

AUTO = "auto"
"""The provider name that selects the fastest of the installed providers, by measurement."""

Compile = Literal["wait", "background", "off"]
"""When a session compiles: before the constructor returns, while the interpreter answers, or never."""

ProviderSpec: TypeAlias = "str | tuple[str, Mapping[str, Any]] | Provider"
"""A provider: a name, a name with options, or a provider object."""

NodeSelector: TypeAlias = "str | Callable[[ir.Node], bool]"
"""Nodes: one node by its name or the name of an output, or all nodes that satisfy a predicate."""

SEVERITIES = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""Levels of ``logging``, indexed by ``log_severity``."""

_log = logging.getLogger("sardonyx")


def _compile_from_environment() -> Any:
    return os.environ.get("SARDONYX_COMPILE", "background")


@dataclass(frozen=True)
class SessionOptions:
    """Options of a session; each field is also a keyword argument of ``Session``.

    Attributes:
        providers: The engines that run the model, in order of preference: ``"native"``, ``"reference"``,
            ``"onnxruntime"``, ``"openvino"`` or the name of a registered provider, with a device after a colon, or
            ``(name, options)``; or ``"auto"`` alone, which measures all installed providers. A node runs on the first
            provider that supports the node, unless the transfers cost more than this provider gains. The interpreter
            runs the nodes that no provider supports.
        compile: ``"background"`` lets the interpreter answer until compiled code is ready; ``"wait"`` compiles in the
            constructor; ``"off"`` never compiles. The default is the value of ``SARDONYX_COMPILE``, else
            ``"background"``.
        threads: Number of threads; None for all processors of the process.
        optimization: The rewrites before the model runs: ``"none"``, ``"basic"`` (rewrites that keep every bit) or
            ``"all"``.
        profiling: If True, runs are recorded for a Chrome trace, which ``Session.end_profiling`` writes.
        profile_prefix: The prefix of the trace's file name.
        max_memory: Limit of the bytes of live values in a run; None for the memory of the machine.
        max_loop_iterations: Limit of the iterations of each loop; None for no limit.
        timeout: Limit of the seconds of a run; None for no limit. The options of a run override this limit.
        denormals: The treatment of denormal numbers in compiled code, which many processors compute a hundred times
            slower: ``"keep"``, ``"flush"`` (to zero), or ``"auto"`` (flush if weights of the model are denormal).
        deterministic: If True, every provider must compute the same bits in every run. Native code and the
            interpreter always do.
        free_dimensions: Sizes of open dimensions of the inputs, by name: the model runs at these sizes only.
        free_denotations: Sizes of open dimensions of the inputs, by denotation.
        log_severity: The lowest severity of logged messages: 0 all, 1 information, 2 warnings, 3 errors, 4 fatal.
        pins: Nodes that must run on a provider, whatever the cost: pairs of a node selector (a name of a node or of an
            output, or a predicate over ``onnx_ir.Node``) and the name of the provider. The last matching pair counts.
        budgets: Limit of the bytes of weights of a provider, by its name.
        strict: If True, the session fails rather than running a node on a provider that `providers` does not name, or
            on the interpreter for lack of a kernel.
        precision: The numbers of products: ``"float32"`` (as the model says), ``"bf16"``, ``"int8"``, or ``"auto"``,
            the fastest form whose error on samples is within the tolerance. The model is compressed when it is loaded;
            a fixed precision that exceeds the tolerance is an error. ``Session.precision`` is the report.
        precision_tolerance: Largest error of an output over its largest magnitude.
        precision_data: Samples of real inputs, as for ``sardonyx.quantize``; None draws samples in the range that the
            graph allows, and quantizes without ranges of activations.

    Raises:
        OptionError: A value is invalid.
    """

    providers: Sequence[ProviderSpec] = PROVIDERS
    compile: Compile = field(default_factory=_compile_from_environment)
    threads: int | None = None
    optimization: OptimizationLevel = "all"
    profiling: bool = False
    profile_prefix: str = "sardonyx_profile"
    max_memory: int | None = None
    max_loop_iterations: int | None = None
    timeout: float | None = None
    denormals: Denormals = "auto"
    deterministic: bool = False
    free_dimensions: Mapping[str, int] = field(default_factory=dict)
    free_denotations: Mapping[str, int] = field(default_factory=dict)
    log_severity: int = 2
    pins: Sequence[tuple[NodeSelector, str]] = ()
    budgets: Mapping[str, int] = field(default_factory=dict)
    strict: bool = False
    precision: Precision = "float32"
    precision_tolerance: float = 0.02
    precision_data: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.providers, str):
            object.__setattr__(self, "providers", (self.providers,))
        object.__setattr__(self, "providers", tuple(self.providers))
        if not self.providers:
            raise OptionError(
                "expected at least one provider.", where="providers", remedy=f"The default is {PROVIDERS}."
            )
        for provider in self.providers:
            if not isinstance(provider, (str, tuple)):
                from sardonyx.runtime.providers import required

                required(provider, "providers")
        for name, kind in (
            ("compile", Compile),
            ("optimization", OptimizationLevel),
            ("denormals", Denormals),
            ("precision", Precision),
        ):
            if getattr(self, name) not in get_args(kind):
                expected = ", ".join(map(repr, get_args(kind)))
                raise OptionError(f"expected one of {expected}, got {getattr(self, name)!r}.", where=name)
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"expected at least 1 thread, got {self.threads}.", where="threads")
        for name in ("max_memory", "max_loop_iterations", "timeout"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise OptionError(f"expected at least 0, got {value}.", where=name)
        if not self.precision_tolerance > 0:
            raise OptionError(
                f"expected a number above 0, got {self.precision_tolerance}.", where="precision_tolerance"
            )
        if self.log_severity not in range(len(SEVERITIES)):
            raise OptionError(f"expected 0 to 4, got {self.log_severity}.", where="log_severity")
        for name, size in (*self.free_dimensions.items(), *self.free_denotations.items()):
            if size < 0:
                raise OptionError(f"expected a size of at least 0, got {size}.", where=name)

    def override(self, values: Mapping[str, Any]) -> SessionOptions:
        """Return these options with other values for the named fields; None leaves a field unchanged.

        Raises:
            OptionError: A value is invalid.
        """
        changes = {name: value for name, value in values.items() if value is not None}
        return replace(self, **changes) if changes else self

    @property
    def is_plain(self) -> bool:
        """True if native code and the interpreter alone run the model, so that the model is not partitioned."""
        return all(provider in PROVIDERS for provider in self.providers) and not self.pins and not self.budgets

    @property
    def is_auto(self) -> bool:
        """True if the fastest installed providers are chosen by measurement."""
        return self.provider_names == (AUTO,)

    @property
    def compiles(self) -> bool:
        """True if the whole model is compiled."""
        return self.is_plain and "native" in self.providers and self.compile != "off"

    @property
    def provider_names(self) -> tuple[str, ...]:
        """The names of the providers."""
        return tuple(
            provider if isinstance(provider, str) else provider[0] if isinstance(provider, tuple) else provider.name
            for provider in self.providers
        )

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of a run, as arguments of :class:`RunContext`."""
        return {
            "max_memory": self.max_memory,
            "max_loop_iterations": self.max_loop_iterations,
            "timeout": self.timeout,
        }

    @property
    def unlimited(self) -> bool:
        """True if runs have no limit."""
        return all(limit is None for limit in self.limits.values())

    def log(self, level: int, message: str, *arguments: object, exc_info: BaseException | None = None) -> None:
        """Log a message, and the traceback of an error, unless `log_severity` excludes the level."""
        if level >= SEVERITIES[self.log_severity]:
            _log.log(level, message, *arguments, exc_info=exc_info)
