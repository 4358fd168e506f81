"""What a session is asked for beside its model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sardonyx.compiler.denormals import Denormals
from sardonyx.errors import OptionError

PROVIDERS = ("native", "reference")
"""What can run a model: code compiled for this machine, and the numpy interpreter of Core."""

Compile = Literal["wait", "background", "off"]
"""When a session compiles: before it is there, while it already answers, or never."""


@dataclass(frozen=True)
class Options:
    """The options of a session; see :class:`sardonyx.Session`."""

    providers: tuple[str, ...]
    compile: Compile
    threads: int | None
    max_memory: int | None
    max_loop_iterations: int | None
    timeout: float | None
    denormals: Denormals

    @classmethod
    def of(
        cls,
        providers: Sequence[str],
        compile: Compile | None,
        threads: int | None,
        max_memory: int | None,
        max_loop_iterations: int | None,
        timeout: float | None,
        denormals: Denormals,
    ) -> Options:
        """Options as they are given to a session.

        Raises:
            OptionError: There is no such provider, no such time to compile, or nothing such for denormal numbers.
        """
        for provider in providers:
            if provider not in PROVIDERS:
                raise OptionError(
                    f"there is no provider {provider!r}.",
                    where="providers",
                    remedy=f"There are: {', '.join(PROVIDERS)}.",
                )
        when: Any = compile or os.environ.get("SARDONYX_COMPILE", "background")
        if when not in get_args(Compile):
            raise OptionError(
                f"there is no {when!r}.", where="compile", remedy=f"There are: {', '.join(get_args(Compile))}."
            )
        if denormals not in get_args(Denormals):
            raise OptionError(
                f"there is no {denormals!r}.", where="denormals", remedy=f"There are: {', '.join(get_args(Denormals))}."
            )
        return cls(tuple(providers), when, threads, max_memory, max_loop_iterations, timeout, denormals)

    @property
    def compiles(self) -> bool:
        """Whether compiled code is asked for."""
        return "native" in self.providers and self.compile != "off"

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
