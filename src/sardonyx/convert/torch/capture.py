"""Capture of programs by ``torch.export``, with all sizes open that may be.

Every axis of every tensor is first declared as one that may vary (``Dim.AUTO``); torch fixes the axes that the program
itself requires. Where torch refuses, fewer axes are open: the first ones, then none. An example of batch 1 would fix
the batch, so it is doubled where the program accepts that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.export import _trace
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from sardonyx.convert.imported import Options, Size
from sardonyx.convert.torch import quantized_modules, script
from sardonyx.convert.torch.arrays import as_array, as_torch
from sardonyx.convert.torch.capture_context import evaluating, quiet, unchanged_transforms, unmarked
from sardonyx.convert.torch.decomposition import decomposed
from sardonyx.convert.torch.equal_functions import equal_functions
from sardonyx.convert.torch.examples import examples_of, register_dataclasses, require_dense, require_one_device
from sardonyx.convert.torch.exported_programs import constant_inputs, input_names, open_sizes, output_names
from sardonyx.convert.torch.kept_assertions import kept_bounds
from sardonyx.convert.torch.loading import load_file
from sardonyx.convert.torch.size_conditions import Limit, limited_conditions
from sardonyx.convert.torch.size_guards import SizeGuard, sizes_of
from sardonyx.convert.torch.sources import is_users
from sardonyx.convert.torch.state import State
from sardonyx.convert.torch.symbolic_builtins import symbolic_builtins
from sardonyx.convert.torch.whole_layers import whole_layers
from sardonyx.errors import ConversionError, EvaluationError, OptionError

_OPEN = ("all doubled", "all", "declared")
"""Choices of open axes with other axes than the first."""

_REASONS = dict.fromkeys(("first doubled", "first"), "torch.export captures the program with no others")
"""Reasons of choices, where no limit is one."""


@dataclass(frozen=True)
class Captured:
    """A program captured with one choice of open axes.

    Attributes:
        exported: The program.
        openness: ``"all"``, ``"declared"``, ``"first"``, ``"named"`` or ``"none"``: the axes declared as open;
            ``"all doubled"`` and ``"first doubled"``: with first sizes of 1 doubled in the examples.
        sizes: The open sizes, by symbol.
        reason: The reason why no more sizes are open; empty if all are that the program admits.
    """

    exported: torch.export.ExportedProgram
    openness: str
    sizes: Mapping[str, Size]
    reason: str = ""


@dataclass
class Program:
    """A source of PyTorch with its example inputs.

    Attributes:
        module: Answers in the proof: the caller's module, or that of an exported program.
        args: Positional examples.
        kwargs: Named examples.
        exported: The program, if the source is one.
        options: The caller's options.
        notes: Remarks for the report.
        guard_lines: The user's lines of recorded branches.
        was_read: True if the program became a model.
        differing: Feeds at which the model differed from the source.
        size_guards: The conditions on sizes that guard the model.
        ties: Symbols of sizes that the model takes for equal to another, by that other.
        mirror: The module that torch captures in place of `module`, if that is TorchScript or has packed weights.
        first: The tensors that the source's first call returned for the examples; None if they are unknown.
        open_axes: The axes that every positional example declares as open; None if the program declares none.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    exported: torch.export.ExportedProgram | None
    options: Options
    notes: list[str] = field(default_factory=list)
    open_axes: Sequence[Sequence[int]] | None = None
    mirror: torch.nn.Module | None = None
    first: Sequence[Any] | None = None
    guard_lines: Sequence[str] = ()
    was_read: bool = False
    differing: Sequence[Mapping[str, Any]] = ()
    size_guards: Sequence[SizeGuard] = ()
    ties: Mapping[str, str] = field(default_factory=dict)
    _refusal: ConversionError | None = None
    _is_lowered: bool = False
    _decomposed: tuple[Any, Any] = (None, None)

    @property
    def subject(self) -> torch.nn.Module:
        """The module that torch captures."""
        return self.module if self.mirror is None else self.mirror

    @cached_property
    def state(self) -> State:
        """The state of the module that torch captures; every capture begins with it and leaves it."""
        return State(self.subject)

    @cached_property
    def captured(self) -> Captured:
        """The program with the most open sizes that torch captures.

        Raises:
            ConversionError: torch.export refuses the program; names the user's line.
        """
        if self.exported is not None:
            return Captured(self.exported, "named", open_sizes(self.exported))
        if self._refusal is not None:
            raise self._refusal
        return self._captured(self.choices())

    def decomposed(self, exported: torch.export.ExportedProgram) -> Any:
        """Return a capture as functional operators that have translations.

        The last result is kept: guards and ties of sizes lead to another model of the same capture, and torch
        decomposes by tracing anew, which takes as long as the capture.

        Raises:
            ConversionError: Operators without translation.
        """
        if self._decomposed[0] is not exported:
            self._decomposed = (exported, decomposed(exported, self.options.opaque))
        return self._decomposed[1]

    def differ(self, feeds: Sequence[Mapping[str, Any]]) -> None:
        """Remember the feeds at which the model differed from the source."""
        self.differing = feeds

    def narrow(self) -> bool:
        """Capture the program again with fewer open axes; return False if there is no such choice.

        Raises:
            ConversionError: torch.export refuses the program.
        """
        choices = self.choices() if self.exported is None else ()
        current = self.captured.openness
        rest = choices[choices.index(current) + 1 :] if current in choices else ()
        if not rest or not self.captured.sizes:
            return False
        self.size_guards, self.ties = (), {}
        self.captured = self._captured(rest)
        return True

    def lower(self) -> bool:
        """Capture the program below gradients and ``vmap``; return False if it was or torch refuses."""
        if self.exported is not None or self._is_lowered:
            return False
        self._is_lowered = True
        for openness in self.choices():
            try:
                with _limited(openness):
                    exported = self._export(openness, lowered=True)
            except Exception:  # The caller has the error that matters.
                continue
            self.captured = Captured(exported, openness, self.sizes_of(exported), _REASONS.get(openness, ""))
            return True
        return False

    def _captured(self, choices: Sequence[str]) -> Captured:
        failures: list[Exception] = []
        reason = ""
        for openness in choices:
            if reason and openness in _OPEN:
                continue
            with _limited(openness) as limit:
                try:
                    exported = self._export(openness)
                except OptionError:
                    raise
                except Exception as error:  # torch.export raises exceptions of a dozen unrelated classes.
                    failures.append(error)
                    if limit.is_exceeded:
                        reason = limit.reason
                    continue
            return Captured(exported, openness, self.sizes_of(exported), reason or _REASONS.get(openness, ""))
        if not any(isinstance(failure, GuardOnDataDependentSymNode) for failure in failures):
            for openness in (choice for choice in choices if not reason or choice not in _OPEN):
                try:
                    with _limited(openness):
                        exported = self._export(openness, lowered=True)
                except Exception:  # The first capture's errors name the user's line.
                    continue
                return Captured(exported, openness, self.sizes_of(exported), reason or _REASONS.get(openness, ""))
        self._refusal = refusal(failures[-1], failures[0])
        raise self._refusal

    def choices(self) -> tuple[str, ...]:
        """Return the choices of open axes, the most open first."""
        if self.options.dynamic == "auto" or self.options.dynamic is True:
            if self.open_axes is not None:
                return ("declared", "first", "none")
            if self._single:
                return ("all doubled", "all", "first doubled", "first", "none")
            return ("all", "first", "none")
        return ("named",) if self.options.dynamic else ("none",)

    def _export(self, openness: str, lowered: bool = False) -> torch.export.ExportedProgram:
        """Return the program with open axes.

        Args:
            openness: The choice of open axes.
            lowered: True to record operators below those of gradients and ``vmap``, which torch.export refuses above.
        """
        shapes = self.dynamic_shapes(openness)
        is_doubled = openness.endswith(" doubled")
        args, kwargs = self._doubled() if is_doubled else (self.args, self.kwargs)
        with self.capturing((args, kwargs)):
            if lowered:
                exported = _trace._export(
                    self.subject, args, kwargs, dynamic_shapes=shapes, strict=False, pre_dispatch=False
                )
            else:
                exported = torch.export.export(self.subject, args, kwargs, dynamic_shapes=shapes, strict=False)
        if is_doubled and not self._is_open(exported):
            raise ConversionError("the program fixes the first size of an example")
        if is_doubled and self.example_sizes(exported) is None:
            raise ConversionError("the program ties the first size of an example to a size that differs in another")
        return exported

    @contextlib.contextmanager
    def capturing(self, examples: Any) -> Iterator[None]:
        """Prepare torch and the module for a capture, and restore them."""
        with (
            quiet(),
            self.state.unchanged(),
            evaluating(self.subject),
            whole_layers(),
            equal_functions(),
            symbolic_builtins(self.subject),
            quantized_modules.quantized_operators(self.subject),
            unchanged_transforms(),
            unmarked(examples),
            kept_bounds(),
        ):
            yield

    @cached_property
    def _single(self) -> list[int]:
        """Indices of the examples whose first size is 1, which torch would take for fixed."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (1,)]

    def _doubled(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the examples with first sizes of 2 in place of 1."""
        leaves, spec = pytree.tree_flatten((self.args, self.kwargs))
        for i in self._single:
            leaves[i] = torch.cat([leaves[i], leaves[i]])
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        return args, kwargs

    def _is_open(self, exported: torch.export.ExportedProgram) -> bool:
        """Return True if the first sizes that were doubled are open in a program."""
        values = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
        names = input_names(exported)
        return all(isinstance(values[names[i]].shape[0], torch.SymInt) for i in self._single)

    def example_sizes(self, exported: torch.export.ExportedProgram) -> dict[str, int] | None:
        """Return the open sizes by torch's symbol in the caller's examples; None if these contradict each other."""
        names = input_names(exported)
        return sizes_of(exported, names, dict(zip(names, pytree.tree_leaves((self.args, self.kwargs)), strict=True)))

    def sizes_of(self, exported: torch.export.ExportedProgram) -> dict[str, Size]:
        """Return the open sizes of a program, with those of the caller's examples."""
        return open_sizes(exported, pytree.tree_leaves((self.args, self.kwargs)))

    def dynamic_shapes(self, openness: str) -> Any:
        """Return a choice of open axes as torch.export expects it."""
        if openness == "none":
            return None
        if openness == "named":
            assert isinstance(self.options.dynamic, Mapping)
            return self._named_shapes(self.options.dynamic)
        automatic = torch.export.Dim.AUTO
        if openness == "declared" and self.open_axes is not None:
            declared = (dict.fromkeys(axes, automatic) for axes in self.open_axes)
            return dict(zip(self.arguments, declared, strict=True))

        def axes(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return (
                    automatic if isinstance(leaf, int) and not isinstance(leaf, bool) and openness == "none" else None
                )
            return dict.fromkeys(range(min(leaf.dim(), 1) if openness.startswith("first") else leaf.dim()), automatic)

        return {name: _mapped(axes, value) for name, value in self.arguments.items()}

    def _named_shapes(self, dynamic: Mapping[str, Mapping[int, str]]) -> Any:
        unknown = [name for name in dynamic if name not in self.arguments]
        if unknown:
            known = ", ".join(self.arguments)
            raise OptionError(f"unknown input {', '.join(unknown)}", where="dynamic", remedy=f"Inputs are: {known}.")
        dims: dict[str, Any] = {}
        shapes: dict[str, Any] = {}
        for name, value in self.arguments.items():
            axes = dynamic.get(name, {})
            rank = value.dim() if isinstance(value, torch.Tensor) else 0
            if wrong := [axis for axis in axes if axis not in range(rank)]:
                problem = f"{name} has {rank} axes, got axis {wrong[0]}"
                raise OptionError(problem, where="dynamic", remedy="Count axes from 0.")
            named = {axis: dims.setdefault(size, torch.export.Dim(size)) for axis, size in axes.items()}
            shapes[name] = named if isinstance(value, torch.Tensor) else pytree.tree_map(lambda _: None, value)
        return shapes

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The example inputs by the parameter of ``forward``; surplus positional ones under the variadic name."""
        import inspect

        bound = inspect.signature(self.subject.forward).bind(*self.args, **self.kwargs)
        return dict(bound.arguments)

    @cached_property
    def runner(self) -> Runner:
        """The source in PyTorch, for feeds by input name."""
        return Runner(self)


class Runner:
    """The source in PyTorch: answers feeds by the names of the captured program's inputs.

    Args:
        program: The source.
    """

    def __init__(self, program: Program) -> None:
        exported = program.captured.exported
        self._module = program.module
        self._state = program.state if program.mirror is None else State(program.module)
        self._writes = script.writes_state(program.module)
        self.names = input_names(exported)
        self.outputs = output_names(exported)
        self.leaves, self._spec = pytree.tree_flatten((program.args, program.kwargs))
        self._constants = constant_inputs(exported)

    def tensors(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the leaves of the source's arguments for feeds."""
        return [
            as_torch(feeds[name], leaf) if name in feeds else leaf
            for name, leaf in zip(self.names, self.leaves, strict=True)
        ]

    def arguments(self, feeds: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the source's arguments for feeds, by position and by name."""
        args, kwargs = pytree.tree_unflatten(self.tensors(feeds), self._spec)
        return args, kwargs

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the source's answers, with the state that the caller's module has.

        Raises:
            EvaluationError: The source refuses these feeds.
        """
        args, kwargs = self.arguments(feeds)
        try:
            flat = _answers(self._module, args, kwargs, self._state, copied=self._writes)
        except Exception as error:  # The user's program raises any exception.
            raise EvaluationError(f"{type(error).__name__}: {str(error)[:300]}", where="the source") from error
        if len(flat) != len(self.outputs):
            raise EvaluationError(f"the source returned {len(flat)} tensors, expected {len(self.outputs)}")
        return {name: as_array(value) for name, value in zip(self.outputs, flat, strict=True)}

    def rounded(self, types: Mapping[str, torch.dtype]) -> Callable[[Mapping[str, Any], int], dict[str, Any]] | None:
        """Return the answers with 16-bit weights changed by one unit in the last place; None without such weights.

        Args:
            types: The 16-bit types in which the program computes with weights, by their names.
        """
        weights = [(one, types[name]) for name, one in self._module.named_parameters() if name in types]
        return partial(self._rounded, weights) if weights else None

    def _rounded(
        self, weights: Sequence[tuple[torch.Tensor, torch.dtype]], feeds: Mapping[str, Any], seed: int
    ) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        own = [weight.data for weight, _ in weights]
        try:
            for weight, dtype in weights:
                step = torch.finfo(dtype).eps * torch.randint(-1, 2, weight.shape, generator=generator)
                weight.data = weight.data * (1 + step).to(weight.dtype)
            return self(feeds)
        finally:
            for (weight, _), data in zip(weights, own, strict=True):
                weight.data = data

    def first(self, program: Program) -> dict[str, Any] | None:
        """Return the answers of the source's first call; None if they are unknown."""
        if program.first is None or len(program.first) != len(self.outputs):
            return None
        return {name: as_array(value) for name, value in zip(self.outputs, program.first, strict=True)}


def _answers(module: torch.nn.Module, args: Any, kwargs: Any, state: State, *, copied: bool) -> list[torch.Tensor]:
    """Return the tensors that a module answers, as copies: a state that is restored may be among them.

    Args:
        module: The module.
        args: Positional arguments.
        kwargs: Named arguments.
        state: The state to leave.
        copied: True to call a copy of TorchScript, whose attributes Python does not see.
    """
    if copied:
        # A script that cannot be copied is called itself: the proof tells whether it repeats its answers.
        with contextlib.suppress(Exception):
            module = script.copied(module)
    with torch.no_grad(), quiet(), state.unchanged(), evaluating(module):
        result = module(*args, **kwargs)
        register_dataclasses(result)
        leaves = pytree.tree_leaves(result)
        return [leaf.clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _limited(openness: str) -> contextlib.AbstractContextManager[Limit]:
    """Return the limit of conditions for a choice of open axes; sizes that a caller named have none."""
    if openness in _OPEN or openness.startswith("first"):
        return limited_conditions()
    return contextlib.nullcontext(Limit(0))


def program_of(source: Any, options: Options) -> Program:
    """Return the program of a source with its example inputs.

    Raises:
        OptionError: The example inputs are missing or do not fit, or the source is of another kind.
        ModelFileError: The file cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        source = load_file(source, trust=options.trust)
    if isinstance(source, torch.export.ExportedProgram):
        return _exported_program(source, options)
    if isinstance(source, torch.jit.ScriptFunction):
        source = script.FunctionModule(source)
    if not isinstance(source, torch.nn.Module):
        source = _module_of_function(source)
    mirror = script.mirror_of(source) if script.is_script(source) else _plain_mirror(source)
    require_dense(options.examples)
    args, kwargs = examples_of(source if mirror is None else mirror, options)
    require_one_device(source, args, kwargs)
    program = Program(source, args, kwargs, None, options, mirror=mirror)
    if any(getattr(module, "training", False) for module in source.modules()):
        program.notes.append("the module was in training mode; the model is that of `module.eval()`")
    _require_running(program)
    return program


def _module_of_function(function: Any) -> torch.nn.Module:
    """Return a function as a module.

    Raises:
        OptionError: The source is no function.
    """
    import inspect

    if not callable(function) or isinstance(function, type):
        kind = function.__name__ if isinstance(function, type) else type(function).__name__
        problem = f"expected a module, a function or an exported program, got {kind}"
        raise OptionError(problem, where="source", remedy="Pass one.")
    module = torch.nn.Module()
    module.forward = function
    try:
        inspect.signature(function)
    except ValueError:  # Functions of C have no signature.
        module.forward = lambda *args, **kwargs: function(*args, **kwargs)
    return module.eval()


def _exported_program(source: torch.export.ExportedProgram, options: Options) -> Program:
    """Return an exported program with the caller's examples, or with its own if the caller gives none.

    Raises:
        OptionError: The program refuses the caller's examples, or there are none.
    """
    module = source.module()
    own = source.example_inputs
    if not options.examples and own is not None:
        return Program(module, tuple(own[0]), dict(own[1] or {}), source, options)
    require_dense(options.examples)
    args, kwargs = examples_of(module, options)
    program = Program(module, *_as_captured(source, module, args, kwargs), source, options)
    _require_running(program)
    return program


def _as_captured(source: Any, module: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments by position and by name as in the capture of the program, which its module requires."""
    import inspect

    spec = source.call_spec.in_spec
    positional, named = pytree.tree_unflatten([0] * spec.num_leaves, spec)
    names = [*inspect.signature(module.forward).parameters][: len(positional)]
    known = {**dict(zip(names, args, strict=False)), **kwargs}
    if len(args) > len(positional) or known.keys() != {*names, *named}:
        inputs = ", ".join([*names, *named]) or "none"
        problem = f"the program has {len(names) + len(named)} inputs, got {len(args) + len(kwargs)} examples"
        raise OptionError(problem, where="example_inputs", remedy=f"Inputs are: {inputs}.")
    return tuple(known[name] for name in names), {name: known[name] for name in named}


def _plain_mirror(module: torch.nn.Module) -> torch.nn.Module | None:
    """Return a copy of a plain module without scripted parts and packed weights; None if it has neither."""
    plain = script.with_plain_parts(module)
    return quantized_modules.mirror_of(module if plain is None else plain) or plain


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return nested values mapped by a function, as torch.export expects them: classes of users as lists of parts."""

    def leaf(part: Any) -> Any:
        node = pytree.SUPPORTED_NODES.get(pytree._get_node_type(part))
        return function(part) if node is None else _mapped(function, list(node.flatten_fn(part)[0]))

    return pytree.tree_map(leaf, value, is_leaf=lambda part: pytree._get_node_type(part) not in pytree.BUILTIN_TYPES)


def _require_running(program: Program) -> None:
    try:
        args, kwargs = pytree.tree_map(
            lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, (program.args, program.kwargs)
        )
        states = (*program.module.parameters(), *program.module.buffers())
        if any(torch.nn.parameter.is_lazy(state) for state in states):
            with torch.no_grad(), quiet(), evaluating(program.module):
                program.module(*program.args, **program.kwargs)  # Gives lazy parameters their shapes.
        state = program.state if program.mirror is None else State(program.module)
        writes = script.writes_state(program.module)
        with state.watched():
            program.first = _answers(program.module, args, kwargs, state, copied=writes)
    except Exception as error:  # The user's program raises any exception.
        shapes = pytree.tree_leaves(
            pytree.tree_map(
                lambda x: list(x.shape) if isinstance(x, torch.Tensor) else x, (program.args, program.kwargs)
            )
        )
        raise OptionError(
            f"the module refuses the example inputs {shapes[:8]}: {type(error).__name__}: {str(error)[:200]}",
            where="example_inputs",
            remedy="Pass inputs that the module accepts.",
        ) from error


def refusal(error: Exception, first: Exception | None = None) -> ConversionError:
    """Return torch's refusal of a program, with the user's line if known; our own error unchanged."""
    own = first or error
    if isinstance(own, ConversionError):
        return own
    where = _user_line(first or error) or _user_line(error)
    unknown = next((one for one in (own, error) if isinstance(one, UnsupportedOperatorException)), None)
    if unknown is not None:
        problem = f"torch.export cannot capture {unknown.func}"
        return ConversionError(problem, where=where, remedy="Compute the result with other operators.")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    problem = f"torch.export refuses the program: {type(error).__name__}: {' '.join(lines[:3])[:400]}"
    if any(isinstance(one, GuardOnDataDependentSymNode) for one in (own, error)):
        remedy = "Rewrite the branch or loop on data with `torch.cond` or masks."
    else:
        remedy = "Write the line with operators of torch, or leave it out of the module."
    return ConversionError(problem, where=where, remedy=remedy)


def _user_line(error: Exception) -> str:
    """Return the innermost line of the user's program in a traceback, ``file.py:12 (x = f(y))``."""
    import traceback

    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_users(frame.filename):
            return f"{frame.filename}:{frame.lineno} ({(frame.line or '').strip()[:80]})"
    return ""
