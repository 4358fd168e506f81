"""Answerers: the ways in which a model version computes a call, tried in one fixed order.

A call goes to the first answerer that accepts the requested outputs and the feeds. An answerer may still decline: by
None, if its code is not compiled yet, or by a fault or an error in sizes, if compiled code has no result for the data.
The next answerer then computes the call. The last answerer accepts every call and raises the error that describes
invalid feeds or data.

The shortest path of a call does not come here: :meth:`sardonyx.runtime.session.Session.run` calls the generated
function of compiled code directly.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from sardonyx.compiler.call.fault import Fault
from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import ShapeError, UnsupportedError

if TYPE_CHECKING:
    from sardonyx.ops.reference import ReferenceModel
    from sardonyx.runtime.compiled.compiled_model import NativeModel
    from sardonyx.runtime.compiled.input_variants import InputVariants
    from sardonyx.runtime.compiled.output_variants import OutputVariants
    from sardonyx.runtime.compiled.program_cache import ModelSource
    from sardonyx.runtime.compiled.value_specialization import SpecializedModel
    from sardonyx.runtime.partition.partitioned_model import PartitionedModel

Names = Sequence[str] | None
"""Names of the requested outputs; None for all outputs of the model."""

Feeds = Mapping[str, Any]


class Answerer(NamedTuple):
    """One way to compute a call.

    The callables are methods of the engines themselves, so that an answerer adds no Python frame to a call.

    Attributes:
        name: The name of the engine.
        accepts: Returns True if the engine can compute these outputs from these feeds.
        answer: Computes the call; None if the engine cannot compute it yet.
    """

    name: str
    accepts: Callable[[Names, Feeds], bool]
    answer: Callable[[Names, Feeds, RunContext], list[Any] | None]


@dataclass(frozen=True)
class AnswererNote:
    """An answerer of a session, for display.

    Attributes:
        name: The name: ``partition``, ``native``, ``specialization``, ``input variant``, ``output variant``,
            ``interpreter`` or ``refusal``.
        answers: True for the answerer that a call for all outputs goes to now. The answerer may decline such a call,
            e.g. if the data have no result; the next one then computes the call.
        calls: Number of calls that the answerer computed since the last edit, without calls of the direct native entry,
            which are not counted.
        reason: The calls that the answerer computes.
    """

    name: str
    answers: bool
    calls: int
    reason: str


class Interpreter:
    """The numpy interpreter of a model, prepared when it is first needed.

    Args:
        source: The model.
    """

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._prepared: ReferenceModel | None = None

    def prepare(self) -> ReferenceModel:
        """Return the model ready to be interpreted.

        Raises:
            UnsupportedError: An operator has no definition.
            InvalidModelError: The model violates the standard.
        """
        from sardonyx.ops.reference import ReferenceModel

        with self._lock:
            if self._prepared is None:
                self._prepared = ReferenceModel(self._source.model)
            return self._prepared

    def release(self) -> None:
        """Free the prepared model."""
        self._prepared = None

    def answer(self, output_names: Names, feeds: Feeds, context: RunContext) -> list[Any]:
        """Interpret one call; see :meth:`.ReferenceModel.run`."""
        return self.prepare().run(output_names, feeds, context)


def ordered(
    *,
    partitioned: PartitionedModel | None = None,
    native: NativeModel | None = None,
    specialized: SpecializedModel | None = None,
    input_variants: InputVariants | None = None,
    variants: OutputVariants | None = None,
    interpreter: Interpreter | None = None,
    defaults: Collection[str] = (),
) -> tuple[Answerer, ...]:
    """Return the answerers of a model version, in the order in which a call tries them.

    Args:
        partitioned: The model shared by several providers.
        native: The compiled model.
        specialized: The programs of a model that is compiled for particular input values.
        input_variants: The compiled model with further inputs, for calls that feed inputs with a default value.
        variants: The compiled model with other outputs, for calls that request inner tensors or few outputs.
        interpreter: The interpreter; None for a compiled file, which holds no model.
        defaults: The inputs with a default value.
    """
    answerers = []
    if variants is not None:
        answerers.append(Answerer("output variant", variants.accepts, variants.run))
    if partitioned is not None:
        answerers.append(Answerer("partition", partitioned.accepts, partitioned.run))
    if native is not None:
        answerers.append(Answerer("native", native.accepts, native.run))
    if specialized is not None:
        answerers.append(Answerer("specialization", specialized.accepts, specialized.run))
    if input_variants is not None:
        answerers.append(Answerer("input variant", input_variants.accepts, input_variants.run))
    if interpreter is not None:
        answerers.append(Answerer("interpreter", _accept, interpreter.answer))
    elif native is not None:
        answerers.append(Answerer("refusal", _accept, _refusal_of(native, defaults)))
    return tuple(answerers)


def describe(
    answerers: Sequence[Answerer], input_names: Sequence[str], calls: Mapping[str, int], not_compiled: str
) -> tuple[AnswererNote, ...]:
    """Return the answerers of a model version, for display.

    Args:
        answerers: The answerers, in order.
        input_names: The inputs of the model.
        calls: Number of computed calls, by name of the answerer.
        not_compiled: The reason why the model is not compiled; empty if there is compiled code, or while compiling.
    """
    plain: Feeds = dict.fromkeys(input_names)
    first = next(answerer.name for answerer in answerers if answerer.accepts(None, plain))
    names = {answerer.name for answerer in answerers}
    interpreted = "calls that no other answerer computes"
    if "native" not in names and "partition" not in names:
        interpreted = not_compiled or "compiling is under way"
    reasons = {
        "partition": "all inputs are fed, several providers share the model",
        "native": "all inputs without a default value are fed, outputs of the model are requested",
        "specialization": not_compiled,
        "input variant": "inputs with a default value are fed",
        "output variant": "inner tensors are requested, or outputs without large other ones",
        "interpreter": interpreted,
        "refusal": "other calls fail: the compiled file holds no model",
    }
    return tuple(
        AnswererNote(answerer.name, answerer.name == first, calls.get(answerer.name, 0), reasons[answerer.name])
        for answerer in answerers
    )


def answer(
    answerers: Sequence[Answerer],
    output_names: Names,
    feeds: Feeds,
    context: RunContext,
    calls: Counter[str] | None = None,
) -> list[Any]:
    """Compute one call with the first answerer that can.

    Args:
        answerers: The answerers, in order.
        output_names: Names of the requested outputs; None for all outputs of the model.
        feeds: The inputs by name.
        context: The limits of the call.
        calls: Receives one more call of the answerer that computed the call.

    Raises:
        SardonyxError: The error of the answerer that computes the call; see :meth:`.Session.run`.
    """
    for answerer in answerers:
        if answerer.accepts(output_names, feeds):
            try:
                results = answerer.answer(output_names, feeds, context)
            except Fault:  # A later answerer computes the call, or says what is wrong with the data.
                continue
            except (ShapeError, UnsupportedError):
                # Compiled code meets errors in sizes in another order; the interpreter raises the first, with the node.
                if answerer.name == "interpreter" or answerers[-1].name != "interpreter":
                    raise
                continue
            if results is not None:
                if calls is not None:
                    calls[answerer.name] += 1
                return results
    raise AssertionError("internal: the last answerer must compute or refuse every call.")


def _accept(output_names: Names, feeds: Feeds) -> bool:
    return True


def _refusal_of(native: NativeModel, defaults: Collection[str]) -> Callable[[Names, Feeds, RunContext], NoReturn]:
    def refuse(output_names: Names, feeds: Feeds, context: RunContext) -> NoReturn:
        raise native.explain_refusal(output_names, feeds, defaults)

    return refuse
