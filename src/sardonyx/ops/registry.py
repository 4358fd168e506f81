"""The registry: every operator by domain, name and version, as a function over Core.

A definition's signature is the operator's: positional parameters are inputs (``Tensor | None = None`` where one may be
left out, ``*xs`` where there may be any number), keyword-only parameters are attributes with the standard's defaults.
Four keyword-only names are no attributes, and given by whoever calls: ``opset`` (the version of the operator's domain
that the model imports), ``outputs`` (how many results are asked for), ``identity`` (the node, for random numbers) and
``between`` (the graph around the node, as functions from some of its values to another).
An attribute whose name is taken, by these, an input or Python, is written with an underscore after it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pkgutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from sardonyx.core.eval.host_function import HostFunction, host, known_function
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import Type
from sardonyx.errors import InvalidModelError, RuleError, UnsupportedError
from sardonyx.ops import definitions
from sardonyx.ops.definitions.index import INDEX
from sardonyx.ops.parameters import parameters

Definition = Callable[..., Any]
F = TypeVar("F", bound=Definition)

Between = Callable[[Sequence[str], str], Callable[..., Value]]
"""From names of values around a node, to the function that computes one (the last name) from others (the first)."""

REQUIRED = inspect.Parameter.empty
"""Stands for the default of an attribute that must be given."""

GIVEN = ("opset", "outputs", "identity", "between")
"""Keyword-only parameters of a definition that are no attributes."""


@dataclass(frozen=True, eq=False)
class Operator:
    """One definition of an operator.

    Attributes:
        domain: Its domain; empty for ``ai.onnx``.
        name: Its ONNX name.
        since: The first version of the domain that it is right for.
        definition: The function over Core.
        inputs: Names of the inputs, without the variadic one.
        required: Positions of those that must be given: without a default, and not annotated with ``| None``.
        positional: How many have no default.
        variadic: Whether any number may follow.
        attributes: Attributes with their defaults; ``REQUIRED`` without.
        given: Which of ``GIVEN`` the definition takes.
        rounded: Defaults that are no float32, as all attributes are: the nearest ones.
        renamed: Parameters of attributes whose name is taken, by that name: with an underscore after it.
        host_reason: Why it is a host operator; empty for one over Core.
        module: The module that defines it.
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
    given: frozenset[str]
    rounded: Mapping[str, float]
    renamed: Mapping[str, str]
    host_reason: str = ""

    @property
    def user(self) -> bool:
        """Whether it is defined outside of the library."""
        return not self.module.startswith(_OWN)

    @property
    def draws(self) -> bool:
        """Whether it asks for the node's identity: results may differ from node to node and from run to run."""
        return "identity" in self.given

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
        """Apply the operator; see :meth:`bound` for what it checks.

        Returns:
            The results, at least ``outputs`` of them.
        """
        if missing := [self.inputs[i] for i in self.required if i >= len(inputs) or inputs[i] is None]:
            raise InvalidModelError(f"{self.name} lacks its input {', '.join(missing)}.")
        if len(inputs) < len(self.inputs):
            inputs = [*inputs, *[None] * (self.positional - len(inputs))]
        if len(inputs) > len(self.inputs) and not self.variadic:
            raise InvalidModelError(f"{self.name} takes {len(self.inputs)} inputs, and {len(inputs)} are given.")
        options: dict[str, Any] = {**self.rounded, **attributes}
        for name, parameter in self.renamed.items():
            if name in options:
                options[parameter] = options.pop(name)
        offered = {"opset": opset, "outputs": outputs, "identity": identity, "between": between}
        options.update((name, offered[name]) for name in self.given)
        found = self.definition(*inputs, **options)
        results = (found,) if isinstance(found, Value) else tuple(found)
        if len(results) < outputs:
            raise InvalidModelError(f"{self.name} has {len(results)} results, and {outputs} are asked for.")
        return results

    def bound(
        self, attributes: Mapping[str, Any], bodies: Mapping[str, Any] = MappingProxyType({})
    ) -> Mapping[str, Any]:
        """The attributes of a node, checked against the definition.

        Args:
            attributes: All of them but graphs.
            bodies: Those that are graphs.

        Raises:
            InvalidModelError: A required one is missing, or one is unknown.
        """
        if not attributes.keys() <= self.attributes.keys() or not bodies.keys() <= self.attributes.keys():
            attributes = {name: value for name, value in attributes.items() if name not in _IGNORED}
            for name in [*attributes, *bodies]:
                if name not in self.attributes:
                    allowed = ", ".join(self.attributes) or "none"
                    raise InvalidModelError(f"{self.name} has no attribute {name!r}.", remedy=f"It has: {allowed}.")
        for name in self.needed:
            if name not in attributes and name not in bodies:
                raise InvalidModelError(f"{self.name} needs its attribute {name!r}.")
        return attributes

    @functools.cached_property
    def needed(self) -> tuple[str, ...]:
        """The attributes that must be given."""
        return tuple(name for name, default in self.attributes.items() if default is REQUIRED)


_IGNORED = frozenset({"consumed_inputs"})
"""Attributes of the first versions that never had a meaning for results."""

_OWN = "sardonyx.ops."
"""How the names of the modules begin that hold the library's own definitions."""

_operators: dict[tuple[str, str], list[Operator]] = {}
_of_users: dict[tuple[str, str], list[Operator]] = {}
_host_functions: dict[tuple[str, str, int], Callable[[tuple[bool, ...]], HostFunction]] = {}
_imported: set[str] = set()
_loading = threading.RLock()
_loaded = False


def operator(name: str, *, since: int, domain: str = "") -> Callable[[F], F]:
    """Register a definition of an operator over Core.

    Args:
        name: Its ONNX name.
        since: The first version of the domain that the definition is right for; it holds up to the next one given.
        domain: Its domain; ``ai.onnx`` by default.

    Example:
        >>> @operator("Cube", domain="my.domain", since=1)
        ... def cube(x: Tensor) -> Tensor:
        ...     return x * x * x
    """

    def register(definition: F) -> F:
        _add(_described(definition, name, since, domain))
        return definition

    return register


def host_operator(
    name: str,
    *,
    since: int,
    types: Callable[..., tuple[Type, ...]],
    reason: str = "its author wrote it over numpy",
    domain: str = "",
) -> Callable[[F], F]:
    """Register a definition over numpy, with a type rule: for strings, sequences, and results counted from data.

    The function takes arrays (lists for sequences, None or a value for optionals and inputs left out) and returns a
    tuple of such.

    Args:
        name: Its ONNX name.
        since: The first version of the domain that the definition is right for.
        types: From the types of the inputs (None for one left out) and the attributes to the types of the results;
            a size that is counted from data is ``sardonyx.core.eval.host_function.unknown_size()``.
        reason: Why it cannot be written over Core; stands in the support table.
        domain: Its domain; ``ai.onnx`` by default.
    """

    def register(definition: F) -> F:
        functions: dict[tuple[bool, ...], HostFunction] = {}

        def function_of(present: tuple[bool, ...]) -> HostFunction:
            function = functions.get(present)
            if function is None:
                function = functions[present] = HostFunction(
                    name,
                    _restored(types, present),
                    _restored(definition, present),
                    domain=described.domain,
                    since=since,
                    present=present,
                    given=described.given,
                    module=definition.__module__,
                )
            return function

        def over_values(*inputs: Value | None, **attributes: Any) -> tuple[Value, ...]:
            function = function_of(tuple(value is not None for value in inputs))
            return host(function, *[value for value in inputs if value is not None], **attributes)

        described = _described(definition, name, since, domain)
        _host_functions[described.domain, name, since] = function_of
        _add(Operator(**{**described.__dict__, "definition": over_values, "host_reason": reason}))
        return definition

    return register


def _restored(function: Callable[..., Any], present: tuple[bool, ...]) -> Callable[..., Any]:
    """The function called with None for what was left out."""
    if all(present):
        return function

    def call(*operands: Any, **attributes: Any) -> Any:
        rest = iter(operands)
        return function(*[next(rest) if there else None for there in present], **attributes)

    return call


def _described(definition: Definition, name: str, since: int, domain: str) -> Operator:
    inputs: list[str] = []
    required: list[int] = []
    variadic, positional = False, 0
    attributes: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    given = set()
    for parameter in parameters(definition):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            variadic = True
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if parameter.name in GIVEN:
                given.add(parameter.name)
            else:
                attribute = parameter.name.removesuffix("_")
                attributes[attribute] = parameter.default
                if attribute != parameter.name:
                    renamed[attribute] = parameter.name
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            raise RuleError(f"the definition of {name} names its attributes one by one, not as **{parameter.name}.")
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
        given=frozenset(given),
        rounded={name: float(np.float32(value)) for name, value in attributes.items() if isinstance(value, float)},
        renamed=renamed,
    )


def canonical(domain: str) -> str:
    """The domain, with ``ai.onnx`` as the empty text that the standard writes for it."""
    return "" if domain == "ai.onnx" else domain


def _add(new: Operator) -> None:
    versions = _operators.setdefault((new.domain, new.name), [])
    if not new.user and any(old.user and old.since == new.since for old in versions):
        return  # Somebody's own definition stands, although the library's is imported after it.
    versions[:] = sorted([*(old for old in versions if old.since != new.since), new], key=lambda o: o.since)
    if new.user:
        _of_users[new.domain, new.name] = [each for each in versions if each.user]


def remove(name: str, *, domain: str = "") -> None:
    """Forget all definitions of an operator."""
    _operators.pop((canonical(domain), name), None)
    _of_users.pop((canonical(domain), name), None)


def find(domain: str, name: str, opset: int) -> Operator | None:
    """The definition that is right at a version of the domain; None without one.

    Only the modules are imported that define the operator: all of them take longer than small models to run.
    """
    if not _loaded:
        _import(canonical(domain), name)
    right = [found for found in _operators.get((canonical(domain), name), ()) if found.since <= opset]
    return right[-1] if right else None


def defined_by_users() -> Mapping[tuple[str, str], Sequence[Operator]]:
    """The definitions from outside of the library, by domain and name."""
    return _of_users


def all_operators() -> Iterator[Operator]:
    """Every definition, by domain, name and version."""
    load()
    for _, versions in sorted(_operators.items()):
        yield from versions


def load() -> None:
    """Import the library's own definitions, once."""
    if not _loaded:
        _load()


def host_function(domain: str, name: str, since: int, present: tuple[bool, ...] | None, module: str) -> HostFunction:
    """The host function of an operator, as a kept program names it.

    Of the library's own definitions only the module that has it is imported: all of them take longer to import than
    most programs take to load.

    Args:
        domain: The operator's domain.
        name: Its name.
        since: The version of the domain.
        present: Which inputs it is given; None where it is given all.
        module: The module that defines it.

    Raises:
        UnsupportedError: There is none.
    """
    if module.startswith(_OWN):
        with _loading, contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    make = _host_functions.get((domain, name, since))
    found = known_function(domain, name, since, present) if make is None or present is None else make(present)
    if found is None:
        raise UnsupportedError("there is no such host function.", where=f"{name} of {domain or 'ai.onnx'} {since}")
    return found


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
        if _loaded:  # By another thread, while this one waited.
            return
        for module in pkgutil.walk_packages(definitions.__path__, definitions.__name__ + "."):
            importlib.import_module(module.name)
        _loaded = True
