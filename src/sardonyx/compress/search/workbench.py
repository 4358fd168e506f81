"""The workbench of a search: models of plans, and their trials on the target."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compress.evidence import (
    Evaluate,
    LayerError,
    Measurement,
    layers_that_hurt,
    measure,
    output_errors,
    standard_error,
)
from sardonyx.compress.search.figures import (
    Figures,
    Target,
    estimate,
    file_bytes,
    measure_beside,
    measured_joules,
    memory_of,
)
from sardonyx.compress.search.moves import (
    BY_NAME,
    MOVES,
    WEIGHTED,
    Fitting,
    Plan,
    Step,
    applied,
    chosen,
    layer_shares,
    layers,
    ordered,
)
from sardonyx.compress.search.trial import Trial
from sardonyx.errors import SardonyxError
from sardonyx.runtime.run_options import RunOptions
from sardonyx.runtime.session import Session

GATE_SECONDS = 1.5
"""Duration of the last measurement against the original."""

SECONDS_PER_TRIAL = 0.5
"""Duration of a measurement of time, and of one of energy."""

MOST_MODELS = 4
"""Models of plans in memory at a time."""


class _CancellableSession(Session):
    """A session whose runs are cancellation points, so that a metric ends with the time of the search."""

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], options: RunOptions | None = None
    ) -> list[Any]:
        """Run the model once; as :meth:`Session.run`."""
        raise_if_cancelled()
        return super().run(output_names, feeds, options)


class Workbench:
    """Models of plans, and their trials.

    Args:
        source: The original.
        base: The original after lossless rewrites, which every plan starts from.
        fitting: The inputs of moves.
        judged: Samples that judge the outputs.
        feeds: A sample for time, memory and energy.
        evaluate: The function that measures a session; None without.
        target: The engine.
        measured: If True, times are measured, else by the cost model.
        energy: If True, energies are measured where the machine has counters.
    """

    def __init__(
        self, source: ir.Model, base: ir.Model, fitting: Fitting, judged: Sequence[Mapping[str, Any]],
        feeds: Mapping[str, Any], evaluate: Evaluate | None, target: Target, measured: bool, energy: bool,
    ) -> None:  # fmt: skip
        self.source, self.base, self.fitting, self.judged, self.feeds = source, base, fitting, judged, feeds
        self.evaluate, self.target, self.measured, self.energy = evaluate, target, measured, energy
        self.measurements: dict[Plan, Measurement] = {}
        self._models: dict[Plan, ir.Model] = {(): base}
        self._outcomes: dict[Plan, Trial] = {}
        self._harm: dict[tuple[Plan, str], list[str]] = {}
        self._sites: dict[Plan, dict[tuple[str, ...], list[str]]] = {}
        self._best_plans: tuple[Plan, ...] = ()
        self._session_seconds = self._comparison_seconds = 0.0
        self._before = self.session(source)

    @property
    def closing_seconds(self) -> float:
        """The seconds that the end of the search takes: the last measurement, and a comparison as long as the longest.

        Of the two sessions that are measured, one is compiled already, and the code of the other is stored.
        """
        return GATE_SECONDS + self._session_seconds + self._comparison_seconds

    def session(self, model: ir.Model) -> Session:
        """Return a session of a model on the target, whose runs are cancellation points."""
        start = time.monotonic()
        providers = None if self.target == "native" else [self.target]
        session = _CancellableSession(model, compile="wait", providers=providers)
        self._session_seconds = max(self._session_seconds, time.monotonic() - start)
        return session

    def keep_models(self, plans: Sequence[Plan]) -> None:
        """Keep the models of some plans in memory."""
        self._best_plans = tuple(plans)

    def model(self, plan: Plan) -> ir.Model:
        """Return the model of a plan.

        Raises:
            SardonyxError: A step is impossible.
        """
        if plan not in self._models:
            step, rest = plan[-1], plan[:-1]
            model = applied(self.model(rest), step, self._harmless_first(rest, step), self.fitting)
            old = [key for key in self._models if key and key not in self._best_plans]
            for key in old[: max(len(self._models) - MOST_MODELS, 0)]:
                del self._models[key]
            self._models[plan] = model
        return self._models[plan]

    def weighted(self) -> list[str]:
        """Return the layers of the base with weights."""
        return layers(self.base, WEIGHTED)

    def sites(self, plan: Plan, move: str) -> list[str]:
        """Return the layers that a move can change in the model of a plan."""
        if plan not in self._sites:
            # All at once: models leave the memory, and are costly to make.
            model = self.model(plan)
            self._sites[plan] = {own.operators: layers(model, own.operators) for own in MOVES}
        return self._sites[plan][BY_NAME[move].operators]

    def _harmless_first(self, rest: Plan, step: Step) -> list[str]:
        """Return the layers of a move in the order of the noise that they add for what their change saves.

        A small layer that adds most of the noise stays before a large one that adds a little more.
        """
        names = self.sites(rest, step.move)
        if step.strength == 1 or not self.judged or BY_NAME[step.move].is_graded:
            return names
        key = (rest, step.move)
        if key not in self._harm:
            before, after = self.model(rest), self.model((*rest, Step(step.move)))
            hurting = self.layers_that_hurt(before, after, most=len(names))
            noise = {layer.node: layer.growth**2 for layer in hurting}
            gains = layer_shares(before)
            self._harm[key] = sorted(names, key=lambda name: (noise.get(name, 0.0) / gains[name], -gains[name]))
        return self._harm[key]

    def layers_that_hurt(self, before: ir.Model, after: ir.Model, most: int = 5) -> tuple[LayerError, ...]:
        """Return the layers at which the error grows most on a judged sample."""
        start = time.monotonic()
        result = layers_that_hurt(before, after, self.judged[0], most=most)
        self._comparison_seconds = max(self._comparison_seconds, time.monotonic() - start)
        return result

    def changed(self, plan: Plan) -> dict[str, str]:
        """Return the layers that a plan changes, with the move of each."""
        moves: dict[str, str] = {}
        for number, step in enumerate(plan):
            if BY_NAME[step.move].operators:
                order = self._harmless_first(plan[:number], step)
                moves |= dict.fromkeys(chosen(step, order), step.move)
        return moves

    def trial(self, plan: Plan) -> Trial:
        """Return the outcome of a plan; a plan that fails has the reason.

        Raises:
            SardonyxError: The original fails.
        """
        try:
            return self._trial(ordered(plan))
        except SardonyxError as error:
            if not plan:
                raise
            return Trial(ordered(plan), None, failure=str(error))

    def _trial(self, plan: Plan) -> Trial:
        model = self.model(plan) if plan else self.source
        if len(plan) > 1 and BY_NAME[plan[-1].move].is_lossless and plan[:-1] in self._outcomes:
            # The file alone changes: accuracy, time and memory are those of the plan before.
            return self._renamed(self._outcomes[plan[:-1]], plan, model)
        session = self.session(model)
        errors = output_errors(self._before, session, self.judged) if self.judged and plan else ()
        figures = self.figures(model, session, SECONDS_PER_TRIAL)
        metric, uncertainty = None, 0.0
        if self.evaluate is not None:
            self.measurements[plan] = measure(session, self.evaluate)
            metric = self.measurements[plan].value
            if plan and () in self.measurements:
                uncertainty = standard_error(self.measurements[()], self.measurements[plan])
        self._outcomes[plan] = Trial(plan, figures, errors, metric, uncertainty)
        return self._outcomes[plan]

    def _renamed(self, before: Trial, plan: Plan, model: ir.Model) -> Trial:
        assert before.figures is not None
        if before.plan in self.measurements:
            self.measurements[plan] = self.measurements[before.plan]
        return replace(before, plan=plan, figures=replace(before.figures, size=file_bytes(model)))

    def figures(self, model: ir.Model, session: Session, seconds: float) -> Figures:
        """Return the figures of a model."""
        session.run(None, self.feeds)
        slower = None
        joules: float | None = None
        if self.measured:
            times = measure_beside(self._before, session, (self.source, model), self.feeds, self.target, seconds)
            duration, slower = times.seconds[1], times.interval
        if not self.measured or not self.energy:
            estimated, joules = estimate(session, self.feeds)
            duration = duration if self.measured else estimated
        counted = measured_joules(session, self.feeds, seconds) if self.energy else None
        if joules is None:
            joules = estimate(session, self.feeds)[1] if counted is None else counted
        return Figures(
            file_bytes(model), duration, memory_of(session), joules if counted is None else counted, self.measured,
            counted is not None, slower,
        )  # fmt: skip
