"""Registry of operators: each is a function over Core, found by domain, name and version.

A definition's signature is the operator's: positional parameters are inputs (``Tensor | None = None`` for an optional
input, ``*xs`` for a variadic one), keyword-only parameters are attributes with the standard's defaults. Five
keyword-only names are not attributes, but supplied by the caller: ``opset`` (the version of the operator's domain that
the model imports), ``outputs`` (the number of requested results), ``identity`` (the node, for random numbers),
``map_types`` (the types of the inputs that are maps) and ``between`` (subgraphs of the graph around the node, as
functions from some of its values to another).
An attribute whose name collides with these, with an input or with Python is written with an underscore after it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import pkgutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from sardonyx.core.eval.host_function import HostFunction, host, known_function
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import MapType, Type
from sardonyx.errors import InvalidModelError, RuleError, UnsupportedError
from sardonyx.model.unchecked_attributes import UNCHECKED
from sardonyx.ops import definitions
from sardonyx.ops.definitions.index import INDEX
from sardonyx.ops.parameters import parameters

_log = logging.getLogger("sardonyx")

Definition = Callable[..., Any]
F = TypeVar("F", bound=Definition)

Between = Callable[[Sequence[str], str], Callable[..., Value]]
"""Function from names (sources, target) to the function from the sources' values to the target's."""

REQUIRED = inspect.Parameter.empty
"""Default of an attribute that has none."""

CONTEXT_PARAMETERS = ("opset", "outputs", "identity", "map_types", "between")
"""Keyword-only parameters of a definition that are not attributes."""


@dataclass(frozen=True, eq=False)
class Operator:
    """One definition of an operator.

    Attributes:
        domain: The domain; empty for ``ai.onnx``.
        name: The ONNX name.
        since: The first version of the domain that the definition implements.
        definition: The function over Core.
        inputs: Names of the inputs, without the variadic one.
        required: Positions of required inputs: without a default, and not annotated with ``| None``.
        positional: Number of inputs without a default.
        variadic: True if any number of inputs may follow.
        attributes: Attributes with their defaults; ``REQUIRED`` for an attribute without one.
        context_parameters: The names of ``CONTEXT_PARAMETERS`` that the definition declares.
        rounded: Defaults of float attributes rounded to float32, the precision of all float attributes.
        renamed: Parameters with a trailing underscore, by the name of the attribute.
        kinds: The kind of attributes annotated with a type of :data:`_KINDS`, by name.
        host_reason: Reason for a host operator; empty for an operator over Core.
        module: The module that defines the operator.
    """

    domain: str
    name: str
    since: int
    definition: Definition
    module: str
    inputs: tuple[str, ...]
    required: tuple[int, ...]
    positional: int
    variadic: bool
    attributes: Mapping[str, Any]
    context_parameters: frozenset[str]
    rounded: Mapping[str, float]
    renamed: Mapping[str, str]
    kinds: Mapping[str, str]
    host_reason: str = ""

    @property
    def is_user_defined(self) -> bool:
        """True if the operator is defined outside of the library."""
        return not self.module.startswith(_OWN)

    @property
    def is_random(self) -> bool:
        """True if the definition uses the node's identity: results may differ between nodes and between runs."""
        return "identity" in self.context_parameters

    def __call__(
        self,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any],
        *,
        opset: int,
        outputs: int = 1,
        identity: str = "",
        between: Between | None = None,
    ) -> tuple[Value | None, ...]:
        """Apply the operator to inputs and checked attributes (see :meth:`check_attributes`).

        Returns:
            The results, at least ``outputs`` of them.
        """
        if missing := [self.inputs[i] for i in self.required if i >= len(inputs) or inputs[i] is None]:
            raise InvalidModelError(f"{self.name} lacks its input {', '.join(missing)}.")
        if len(inputs) < len(self.inputs):
            inputs = [*inputs, *[None] * (self.positional - len(inputs))]
        if len(inputs) > len(self.inputs) and not self.variadic:
            raise InvalidModelError(f"{self.name} expects at most {len(self.inputs)} inputs, got {len(inputs)}.")
        options: dict[str, Any] = {**self.rounded, **attributes}
        for name, parameter in self.renamed.items():
            if name in options:
                options[parameter] = options.pop(name)
        if self.context_parameters:
            maps = tuple(x.type for x in inputs if x is not None and isinstance(x.type, MapType))
            context = {
                "opset": opset, "outputs": outputs, "identity": identity, "map_types": maps, "between": between,
            }  # fmt: skip
            options.update((name, context[name]) for name in self.context_parameters)
        returned = self.definition(*inputs, **options)
        results = (returned,) if isinstance(returned, Value) else tuple(returned)
        if len(results) < outputs:
            raise InvalidModelError(f"{self.name} has {len(results)} results, and the node requests {outputs}.")
        return results

    def check_attributes(
        self, attributes: Mapping[str, Any], bodies: Mapping[str, Any] = MappingProxyType({})
    ) -> Mapping[str, Any]:
        """Check the attributes of a node against the definition and return them.

        Args:
            attributes: The attributes except graphs.
            bodies: The graph attributes.

        Raises:
            InvalidModelError: A required attribute is missing, or an attribute is unknown or of another kind.
        """
        if not attributes.keys() <= self.attributes.keys() or not bodies.keys() <= self.attributes.keys():
            attributes = {name: value for name, value in attributes.items() if not self._ignores(name)}
            for name in [*attributes, *bodies]:
                if name not in self.attributes:
                    allowed = ", ".join(self.attributes) or "none"
                    raise InvalidModelError(f"{self.name} has no attribute {name!r}.", remedy=f"It has: {allowed}.")
        for name, value in attributes.items():
            kind = self.kinds.get(name)
            if kind is not None and not _is_of_kind(value, kind):
                raise InvalidModelError(f"the attribute {name!r} of {self.name} expects {kind}, got {str(value)[:60]}.")
        for name in bodies:
            if self.kinds.get(name, _GRAPH) != _GRAPH:
                raise InvalidModelError(
                    f"the attribute {name!r} of {self.name} expects {self.kinds[name]}, got a graph."
                )
        for name in self.required_attributes:
            if name not in attributes and name not in bodies:
                raise InvalidModelError(f"{self.name} needs its attribute {name!r}.")
        return attributes

    def _ignores(self, attribute: str) -> bool:
        if self.domain or self.name not in UNCHECKED or attribute in self.attributes:
            return attribute in _IGNORED
        _log.warning("%s has no attribute %r; the attribute is ignored.", self.name, attribute)
        return True

    @functools.cached_property
    def required_attributes(self) -> tuple[str, ...]:
        """Attributes without a default."""
        return tuple(name for name, default in self.attributes.items() if default is REQUIRED)


_GRAPH = "a graph"

_KINDS = {
    "int": "an integer", "float": "a float", "str": "a string", "Sequence[int]": "integers",
    "Sequence[float]": "floats", "Sequence[str]": "strings", "Axes": "integers", "Tensor": "a tensor", "Body": _GRAPH,
}  # fmt: skip
"""The kinds of attributes by annotation."""

_CLASSES: Mapping[str, type | tuple[type, ...]] = {
    "an integer": int, "a float": (float, int), "a string": str, "integers": int, "floats": (float, int),
    "strings": str, "a tensor": Value,
}  # fmt: skip


def _is_of_kind(value: Any, kind: str) -> bool:
    """Return True if a value of an attribute is of a kind; lists are uniform, and an integer is a float too."""
    if kind not in _CLASSES:
        return False
    if kind[-1] == "s":
        return isinstance(value, (tuple, list)) and (not value or isinstance(value[0], _CLASSES[kind]))
    return isinstance(value, _CLASSES[kind])


_IGNORED = frozenset({"consumed_inputs"})
"""Attributes of the first versions that never affected results."""

_OWN = "sardonyx.ops."
"""Prefix of the names of modules that hold the library's own definitions."""

_operators: dict[tuple[str, str], list[Operator]] = {}
_user_operators: dict[tuple[str, str], list[Operator]] = {}
_host_functions: dict[tuple[str, str, int], Callable[[tuple[bool, ...]], HostFunction]] = {}
_imported: set[str] = set()
_loading = threading.RLock()
_loaded = False


def operator(name: str, *, since: int, domain: str = "") -> Callable[[F], F]:
    """Register a definition of an operator over Core.

    Args:
        name: The ONNX name.
        since: The first version of the domain that the definition implements, up to the next registered version.
        domain: The domain; ``ai.onnx`` by default.

    Example:
        >>> @operator("Cube", domain="my.domain", since=1)
        ... def cube(x: Tensor) -> Tensor:
        ...     return x * x * x
    """

    def register(definition: F) -> F:
        _add(_describe(definition, name, since, domain))
        return definition

    return register


def host_operator(
    name: str,
    *,
    since: int,
    types: Callable[..., tuple[Type, ...]],
    reason: str = "its author wrote it over numpy",
    domain: str = "",
    gradient: Callable[..., Any] | None = None,
) -> Callable[[F], F]:
    """Register a definition over numpy with a type rule.

    Strings, sequences and results counted from data need one. The function receives arrays (lists for sequences, None
    or a value for optionals, None for omitted inputs) and returns a tuple of such values.

    Args:
        name: The ONNX name.
        since: The first version of the domain that the definition implements.
        types: From the types of the inputs (None for an omitted input) and the attributes to the types of the results;
            a size that is counted from data is ``sardonyx.core.eval.host_function.unknown_size()``.
        reason: Reason for a host operator, shown in the support table.
        domain: The domain; ``ai.onnx`` by default.
        gradient: Over Core, from the result, its cotangent, the inputs and the attributes to a cotangent for each
            input, None for inputs without gradient; of several results, tuples of results and of cotangents.
    """

    def register(definition: F) -> F:
        functions: dict[tuple[bool, ...], HostFunction] = {}

        def function_of(present: tuple[bool, ...]) -> HostFunction:
            function = functions.get(present)
            if function is None:
                function = functions[present] = HostFunction(
                    name,
                    _accept_present_inputs(types, present),
                    _accept_present_inputs(definition, present),
                    domain=described.domain,
                    since=since,
                    present=present,
                    context_parameters=described.context_parameters,
                    module=definition.__module__,
                    gradient=gradient,
                )
            return function

        def over_values(*inputs: Value | None, **attributes: Any) -> tuple[Value, ...]:
            function = function_of(tuple(value is not None for value in inputs))
            return host(function, *[value for value in inputs if value is not None], **attributes)

        described = _describe(definition, name, since, domain)
        _host_functions[described.domain, name, since] = function_of
        _add(Operator(**{**described.__dict__, "definition": over_values, "host_reason": reason}))
        return definition

    return register


def _accept_present_inputs(function: Callable[..., Any], present: tuple[bool, ...]) -> Callable[..., Any]:
    """Return a function of the present inputs alone, which passes None for the omitted ones."""
    if all(present):
        return function

    def call(*operands: Any, **attributes: Any) -> Any:
        rest = iter(operands)
        return function(*[next(rest) if there else None for there in present], **attributes)

    return call


def _describe(definition: Definition, name: str, since: int, domain: str) -> Operator:
    inputs: list[str] = []
    required: list[int] = []
    variadic, positional = False, 0
    attributes: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    kinds: dict[str, str] = {}
    context_parameters = set()
    for parameter in parameters(definition):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            variadic = True
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if parameter.name in CONTEXT_PARAMETERS:
                context_parameters.add(parameter.name)
            else:
                attribute = parameter.name.removesuffix("_")
                attributes[attribute] = parameter.default
                if (kind := _KINDS.get(str(parameter.annotation).removesuffix(" | None"))) is not None:
                    kinds[attribute] = kind
                if attribute != parameter.name:
                    renamed[attribute] = parameter.name
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            raise RuleError(f"the definition of {name} must declare its attributes one by one, got **{parameter.name}.")
        else:
            if parameter.default is inspect.Parameter.empty:
                positional = len(inputs) + 1
                if "None" not in str(parameter.annotation):
                    required.append(len(inputs))
            inputs.append(parameter.name)
    return Operator(
        domain=canonical(domain),
        name=name,
        since=since,
        definition=definition,
        module=definition.__module__,
        inputs=tuple(inputs),
        required=tuple(required),
        positional=positional,
        variadic=variadic,
        attributes=attributes,
        context_parameters=frozenset(context_parameters),
        rounded={name: float(np.float32(value)) for name, value in attributes.items() if isinstance(value, float)},
        renamed=renamed,
        kinds=kinds,
    )


def canonical(domain: str) -> str:
    """Return the domain as the standard writes it: ``ai.onnx`` is the empty string."""
    return "" if domain == "ai.onnx" else domain


def _add(new: Operator) -> None:
    versions = _operators.setdefault((new.domain, new.name), [])
    if not new.is_user_defined and any(old.is_user_defined and old.since == new.since for old in versions):
        return  # A user's definition overrides the library's, even if the library's is imported later.
    versions[:] = sorted([*(old for old in versions if old.since != new.since), new], key=lambda o: o.since)
    if new.is_user_defined:
        _user_operators[new.domain, new.name] = [version for version in versions if version.is_user_defined]


def remove(name: str, *, domain: str = "") -> None:
    """Remove all definitions of an operator."""
    _operators.pop((canonical(domain), name), None)
    _user_operators.pop((canonical(domain), name), None)


def find(domain: str, name: str, opset: int) -> Operator | None:
    """Return the definition for a version of the domain; None if undefined.

    Only the modules that define the operator are imported: importing all of them takes longer than a small model runs.
    """
    if not _loaded:
        _import(canonical(domain), name)
    versions = [version for version in _operators.get((canonical(domain), name), ()) if version.since <= opset]
    return versions[-1] if versions else None


def user_operators() -> Mapping[tuple[str, str], Sequence[Operator]]:
    """Return the definitions from outside of the library, by domain and name."""
    return _user_operators


def all_operators() -> Iterator[Operator]:
    """Yield every definition, ordered by domain, name and version."""
    load()
    for _, versions in sorted(_operators.items()):
        yield from versions


def load() -> None:
    """Import the library's own definitions, once."""
    if not _loaded:
        _load()


def host_function(domain: str, name: str, since: int, present: tuple[bool, ...] | None, module: str) -> HostFunction:
    """Return the host function of an operator, as named by a cached program.

    For the library's own definitions only the defining module is imported: importing all of them takes longer than
    loading most programs.

    Args:
        domain: The operator's domain.
        name: The operator's name.
        since: The version of the domain.
        present: For each input True if the node has it; None if the node has all inputs.
        module: The module that defines the operator.

    Raises:
        UnsupportedError: The host function is unknown.
    """
    if module.startswith(_OWN):
        with _loading, contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    make = _host_functions.get((domain, name, since))
    function = known_function(domain, name, since, present) if make is None or present is None else make(present)
    if function is None:
        raise UnsupportedError("unknown host function.", where=f"{name} of {domain or 'ai.onnx'} {since}")
    return function


def _import(domain: str, name: str) -> None:
    """Import the library's own definitions of an operator, once."""
    modules = INDEX.get(domain, {}).get(name, ())
    if all(module in _imported for module in modules):
        return
    with _loading:
        for module in modules:
            importlib.import_module(module)
            _imported.add(module)


def _load() -> None:
    global _loaded
    with _loading:
        if _loaded:  # Another thread loaded them while this one waited.
            return
        for module in pkgutil.walk_packages(definitions.__path__, definitions.__name__ + "."):
            importlib.import_module(module.name)
        _loaded = True
