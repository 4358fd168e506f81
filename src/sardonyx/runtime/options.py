"""What a session is asked for beside its model."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import onnx_ir as ir

from sardonyx.compiler.target.denormals import Denormals
from sardonyx.errors import OptionError
from sardonyx.runtime.providers import required
from sardonyx.runtime.providers.protocol import OptimizationLevel, Provider

PROVIDERS = ("native", "reference")
"""What runs a model if nothing else is said: code compiled for this machine, and the numpy interpreter of Core."""

AUTO = "auto"
"""Stands for the providers that are installed, of which the fastest is measured."""

Compile = Literal["wait", "background", "off"]
"""When a session compiles: before it is there, while it already answers, or never."""

ProviderSpec = str | tuple[str, Mapping[str, Any]] | Provider
"""A provider: by name, by name with options of its own, or as it is."""

NodeSelector = str | Callable[[ir.Node], bool]
"""Nodes: one by its name or the name of an output, or all of which a predicate is true."""

SEVERITIES = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""What ``log_severity`` counts, as ``logging`` has it."""

_log = logging.getLogger("sardonyx")


def _compile_from_environment() -> Any:
    return os.environ.get("SARDONYX_COMPILE", "background")


@dataclass(frozen=True)
class SessionOptions:
    """What a session is told when it is made; each field is an argument of ``Session`` too.

    Attributes:
        providers: What runs the model, in order of preference: ``"native"``, ``"reference"``, ``"onnxruntime"``,
            ``"openvino"``, one that a package registers, with a device after a colon, or ``(name, options)``; or
            ``"auto"`` alone, which measures those that are installed. A node goes to the first that takes it, unless
            going over to it and back costs more than it gains. What none of them takes goes to numpy.
        compile: ``"background"`` answers at once, and from compiled code when that is ready; ``"wait"`` compiles first;
            ``"off"`` never does. What ``SARDONYX_COMPILE`` says, else ``"background"``.
        threads: How many threads compute; None for what the process may use.
        optimization: How much the model is rewritten before it runs: ``"none"``, ``"basic"`` (rewrites that keep every
            bit) or ``"all"``.
        profiling: Whether runs are recorded for a Chrome trace, which ``Session.end_profiling`` writes.
        profile_prefix: How the name of that file begins.
        max_memory: Most bytes of values alive at a time in a run; None for the machine's memory.
        max_loop_iterations: Most iterations of any one loop; None for no limit.
        timeout: Most seconds of a run; None for no limit. A run's own options may say otherwise.
        denormals: What compiled code does with numbers below the least normal one, which many processors compute with
            a hundred times slower: ``"keep"``, ``"flush"`` (take them for zero), or ``"auto"``: flush where the model's
            weights hold some.
        deterministic: Whether results must be the same bits from run to run, whatever the provider. Native code and
            numpy are so in any case.
        free_dimensions: Sizes for open dimensions of the inputs, by name: the model runs at these sizes alone.
        free_denotations: The same by what a dimension denotes.
        log_severity: From which severity on messages are logged: 0 all, 1 information, 2 warnings, 3 errors, 4 fatal.
        pins: Nodes that a provider must take, whatever it costs: each a name of a node or of an output of it, or a
            predicate over ``onnx_ir.Node``, with the provider's name. The last one that fits decides.
        budgets: Most bytes of weights that a provider may hold, by the provider's name.
        strict: Whether to fail rather than to leave a node to a provider that is not named, or to numpy what native
            code has no kernel for.

    Raises:
        OptionError: A value is not possible.
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

    def __post_init__(self) -> None:
        if isinstance(self.providers, str):
            object.__setattr__(self, "providers", (self.providers,))
        object.__setattr__(self, "providers", tuple(self.providers))
        if not self.providers:
            raise OptionError("at least one is needed.", where="providers", remedy=f"The usual ones are {PROVIDERS}.")
        for each in self.providers:
            if not isinstance(each, (str, tuple)):
                required(each, "providers")
        for name, kind in (("compile", Compile), ("optimization", OptimizationLevel), ("denormals", Denormals)):
            if getattr(self, name) not in get_args(kind):
                allowed = f"There are: {', '.join(get_args(kind))}."
                raise OptionError(f"there is no {getattr(self, name)!r}.", where=name, remedy=allowed)
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"{self.threads} cannot compute.", where="threads")
        for name in ("max_memory", "max_loop_iterations", "timeout"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise OptionError(f"{value} is below zero.", where=name)
        if self.log_severity not in range(len(SEVERITIES)):
            raise OptionError(f"{self.log_severity} is not one of 0 to 4.", where="log_severity")
        for name, size in (*self.free_dimensions.items(), *self.free_denotations.items()):
            if size < 0:
                raise OptionError(f"a dimension cannot have size {size}.", where=name)

    def override(self, values: Mapping[str, Any]) -> SessionOptions:
        """Return these options with other values for the named fields; None leaves a field unchanged.

        Raises:
            OptionError: A value is invalid.
        """
        changes = {name: value for name, value in values.items() if value is not None}
        return replace(self, **changes) if changes else self

    @property
    def is_plain(self) -> bool:
        """Whether the model is not cut: all of it goes to native code or numpy, as it always did."""
        return all(each in PROVIDERS for each in self.providers) and not self.pins and not self.budgets

    @property
    def is_auto(self) -> bool:
        """Whether those providers are to be measured that are there."""
        return self.provider_names == (AUTO,)

    @property
    def compiles(self) -> bool:
        """Whether compiled code of the whole model is asked for."""
        return self.is_plain and "native" in self.providers and self.compile != "off"

    @property
    def provider_names(self) -> tuple[str, ...]:
        """The names of the providers."""
        return tuple(
            each if isinstance(each, str) else each[0] if isinstance(each, tuple) else each.name
            for each in self.providers
        )

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of a run, as :class:`RunContext` takes them."""
        return {
            "max_memory": self.max_memory,
            "max_loop_iterations": self.max_loop_iterations,
            "timeout": self.timeout,
        }

    @property
    def unlimited(self) -> bool:
        """Whether runs have no limit."""
        return all(limit is None for limit in self.limits.values())

    def log(self, level: int, message: str, *arguments: object) -> None:
        """Log a message, if the session wants those of this level."""
        if level >= SEVERITIES[self.log_severity]:
            _log.log(level, message, *arguments)
