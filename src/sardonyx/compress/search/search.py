"""The search: trials of plans, from single moves to combinations, until nothing improves.

Every move on precision is tried on all layers first. If the accuracy does not hold, the largest share of layers for
which it holds is bisected, with the least harmful layers first, unless the whole would not be better than what holds
already. The best results are then combined with further moves, those that train a model last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sardonyx.compress.search.budget import Budget
from sardonyx.compress.search.moves import BY_NAME, MOVES, Plan, Step, ordered
from sardonyx.compress.search.time_limit import TimeLimit
from sardonyx.compress.search.trial import State, Trial
from sardonyx.compress.search.workbench import Workbench
from sardonyx.errors import SardonyxError

BISECTIONS = 4
"""Trials that find the share of layers of a move."""

BEAM = 3
"""Results that are combined with further moves in each round."""

GRADES = 16
"""Strengths of a graded move, for the end of a bisection."""

CLIMB = (0.125, 0.25, 0.5, 1.0)
"""Strengths of a graded move, until one does not hold."""

MOST_STEPS = 4
"""Steps of a plan."""

TRUSTED_SQNR = 15.0
"""SQNR in dB of outputs that are close: on the models of ``benchmarks/compress.py`` no metric changed much above."""

SPEED = "speed"
"""The limit of every search but those that allow a slower result: a run takes no longer than the original's."""

STATIC = Step("int8")
"""Static int8 by the defaults, tried first: if it keeps the budget, no result is larger or slower."""

SLOWER = 1.02
"""The time over the original's from which a result counts as slower; below are differences of one cache line."""


TIME_OVER = "the time budget"
"""The reason for the end of a search whose time is over."""


@dataclass
class Search:
    """A search in progress.

    Attributes:
        bench: The workbench.
        budget: The budget.
        least_sqnr: The smallest permitted SQNR of an output, in dB.
        state: The outcomes of earlier runs.
        allows_slower: If True, a slower result may be chosen.
        most_trials: The number of trials after which the search ends.
        time: The time of the search.
        report: A function that is called with the label of each trial.
        trials: The outcomes, the original first.
        stopped: The reason for the end.
    """

    bench: Workbench
    budget: Budget
    least_sqnr: float | None
    state: State
    allows_slower: bool
    most_trials: int
    time: TimeLimit
    report: Callable[[str], None]
    trials: dict[Plan, Trial] = field(default_factory=dict)
    stopped: str = "nothing more to try"
    _strengths: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Try plans until nothing improves, or the trials or the time are over.

        Raises:
            SardonyxError: The original fails.
        """
        self.original_trial()
        if not self.time.completes_trials(self._try_plans):
            self.stopped = TIME_OVER

    def _try_plans(self) -> None:
        lossy = [move.name for move in MOVES if not move.is_lossless]
        quick = [name for name in lossy if not BY_NAME[name].is_graded]
        for move in quick:
            # Every move is tried once before trials or time are spent on shares of one.
            if not self._is_finished():
                self.trial((Step(move),))
        for move in quick:
            self.strongest(move, ())
        self._replace_layers_of_best(quick)
        self._extend_best(quick)
        # Graded moves train a model in each trial: they come last.
        for move in lossy:
            if BY_NAME[move].is_graded:
                self.strongest(move, ())
        self._extend_best(lossy)
        for trial in [*self.best(BEAM), self.original]:
            for lossless in (move.name for move in MOVES if move.is_lossless):
                if not self._is_finished():
                    self.trial((*trial.plan, Step(lossless)))

    def _replace_layers_of_best(self, moves: Sequence[str]) -> None:
        """Let moves that do not hold on all layers take some of the layers of the best result before its own moves."""
        best = self.best(1)
        if not best:
            return
        steps = {step.move for step in best[0].plan}
        for move in moves:
            whole = self.trials.get((Step(move),))
            if whole is None or whole.figures is None or move in steps or BY_NAME[move].ends or self._is_finished():
                continue
            if not self.is_accurate(whole) and self._improves(whole):
                self._strongest_by_bisection(move, (), 0.0, 1.0, best[0].plan)

    def _extend_best(self, moves: Sequence[str]) -> None:
        """Try moves on top of the best results, until no plan is new."""
        for _ in range(MOST_STEPS - 1):
            before = len(self.trials)
            for trial in self.best(BEAM):
                for move in moves:
                    if self._can_extend(trial.plan, move):
                        self.strongest(move, trial.plan)
            if len(self.trials) == before or self._is_finished():
                break

    def with_lossless_moves(self, trial: Trial) -> Trial:
        """Return a trial with the lossless moves that it lacks, if the result is better."""
        for move in MOVES:
            if move.is_lossless and all(step.move != move.name for step in trial.plan):
                further = self.trial((*trial.plan, Step(move.name)))
                if not self.broken_limits(further) and self.objective(further) < self.objective(trial):
                    trial = further
        return trial

    @property
    def original(self) -> Trial:
        """The trial of the original."""
        return self.trials[()]

    def original_trial(self) -> Trial:
        """Return the outcome of the original, measured anew: it is the reference of all other trials.

        Raises:
            OptionError: The original's metric is not that of the earlier run.
        """
        if () not in self.trials:
            self.report("original")
            outcome = self.bench.trial(())
            self.state.require_same_metric(outcome)
            self.state.put(outcome)
            self.trials[()] = outcome
        return self.original

    def trial(self, plan: Plan) -> Trial:
        """Return the outcome of a plan, from this run, an earlier one, or a new trial.

        Raises:
            Cancelled: The time for trials was over before the trial's end.
        """
        plan = ordered(plan)
        if plan not in self.trials:
            outcome = self.state.get(plan)
            if outcome is None:
                self.report(" + ".join(map(str, plan)))
                # Without a result the end takes no time: static int8, the first plan, may take all of it.
                self.time.reserve(self.bench.closing_seconds if self.best(1) else 0.0)
                outcome = self.bench.trial(plan)
                self.state.put(outcome)
            self.trials[plan] = outcome
            self.bench.keep_models([trial.plan for trial in self.best(BEAM)])
        return self.trials[plan]

    def _is_finished(self) -> bool:
        if len(self.trials) >= self.most_trials:
            self.stopped = f"{self.most_trials} trials"
        elif self.time.is_set():
            self.stopped = TIME_OVER
        else:
            return False
        return True

    def strongest(self, move: str, base: Plan) -> Trial | None:
        """Return the trial of a move on as many layers as the accuracy permits, on top of a plan; None if on none."""
        if self._is_finished():
            return None
        if BY_NAME[move].is_graded and not base:
            return self._strongest_by_doubling(move)
        high = self._strengths.get(move, 1.0)
        if not high:
            return None
        whole = self.trial((*base, Step(move, high)))
        if whole.failure or self.is_accurate(whole) or not BY_NAME[move].operators or not self._improves(whole):
            if whole.failure and not base:
                self._strengths[move] = 0.0
            return whole
        return self._strongest_by_bisection(move, base, 0.0, high)

    def _improves(self, trial: Trial) -> bool:
        """Return True if a trial would be better than all accurate ones: with fewer layers it is only worse."""
        best = self.best(1)
        return not best or self.objective(trial)[:2] < self.objective(best[0])[:2]

    def _strongest_by_doubling(self, move: str) -> Trial | None:
        """Return the trial of a graded move with the greatest strength that the accuracy permits; None if none does.

        Most models bear small strengths alone, and every trial trains: the strength doubles while it holds.
        """
        best: Trial | None = None
        low, high = 0.0, 2.0
        for strength in CLIMB:
            if self._is_finished():
                break
            trial = self.trial((Step(move, strength),))
            if trial.failure and strength == CLIMB[0] and not self._is_finished():
                # Too weak to remove anything, or impossible: the greatest strength tells.
                whole = self.trial((Step(move),))
                if not whole.failure and not self.is_accurate(whole):
                    low, high = strength, 1.0
                    break
                self._strengths[move] = 0.0 if whole.failure else 1.0
                return whole
            if trial.failure or not self.is_accurate(trial):
                high = strength
                break
            best, low = trial, strength
        if high <= 1.0:
            best = self._strongest_by_bisection(move, (), low, high) or best
        self._strengths[move] = 0.0 if best is None else best.plan[-1].strength
        return best

    def _strongest_by_bisection(self, move: str, base: Plan, low: float, high: float, rest: Plan = ()) -> Trial | None:
        """Return the accurate trial of a move with the greatest strength between two; None if there is none.

        Args:
            move: The move.
            base: The steps before the move.
            low: A strength that holds, or 0.
            high: A strength that does not hold.
            rest: The steps after the move.
        """
        count = GRADES if BY_NAME[move].is_graded else self._layer_count(base, move)
        best: Trial | None = None
        for _ in range(BISECTIONS):
            strength = (low + high) / 2
            # A share that adds no layer to the lower bound is no new plan.
            if self._is_finished() or math.ceil(strength * count) in (math.ceil(low * count), math.ceil(high * count)):
                break
            trial = self.trial((*base, Step(move, strength), *rest))
            if trial.failure and BY_NAME[move].is_graded:
                low = strength  # Too weak: nothing was removed.
            elif trial.failure or not self.is_accurate(trial):
                high = strength
            else:
                best, low = trial, strength
        return best

    def _layer_count(self, base: Plan, move: str) -> int:
        try:
            return len(self.bench.sites(base, move))
        except SardonyxError:  # The trial of the base has the reason.
            return 0

    def _can_extend(self, plan: Plan, move: str) -> bool:
        """Return True if a move may add to a plan: it is not in the plan, and a layer is left for it."""
        if any(step.move == move for step in plan) or len(plan) >= MOST_STEPS:
            return False
        if any(BY_NAME[step.move].ends for step in plan) and not BY_NAME[move].is_graded:
            return False
        if BY_NAME[move].ends and any(BY_NAME[step.move].family == "precision" for step in plan):
            return False
        if BY_NAME[move].is_graded:
            # Applied ahead of the plan's moves on precision, which leave it no float weights.
            return self._strengths.get(move, 0.0) > 0
        return not BY_NAME[move].operators or self._layer_count(plan, move) > 0

    def best(self, most: int) -> list[Trial]:
        """Return the best accurate trials without regard to other limits, the original excluded."""
        accurate = [trial for trial in self.trials.values() if trial.plan and self.is_accurate(trial)]
        return sorted(accurate, key=self.objective)[:most]

    def objective(self, trial: Trial) -> tuple[float, ...]:
        """Return the order of trials: broken limits, then the product of the shares of size and time, then accuracy."""
        assert trial.figures is not None and self.original.figures is not None
        first = self.original.figures
        share = trial.figures.size / first.size * trial.figures.time_share(first)
        excess = sum(math.log(value / limit) for value, limit in self._limited_figures(trial) if value > limit)
        loss = -(trial.metric if trial.metric is not None else (trial.sqnr or 0.0))
        # Times differ from run to run: shares within a thousandth are equal, and fewer steps win.
        return excess, round(share, 3), len(trial.plan), loss

    def _limited_figures(self, trial: Trial) -> list[tuple[float, float]]:
        """Return the figures that have a limit, with the limits; an unknown figure is beyond its limit."""
        assert trial.figures is not None
        figures = trial.figures
        values = {
            "size": figures.size, "memory": figures.memory, "latency": figures.seconds, "energy": figures.joules
        }  # fmt: skip
        return [
            (math.inf if values[name] is None else float(values[name] or 0), limit)
            for name, limit in self.budget.limits.items()
        ]

    def is_accurate(self, trial: Trial) -> bool:
        """Return True if the measured accuracy of a trial is inside the budget.

        Of many results, the one whose loss is measured just inside the budget is often one whose true loss is outside:
        the loss must be inside by its standard error, unless the outputs are close to the original's.
        """
        if trial.figures is None:
            return False
        if not trial.plan:
            return True
        if self.budget.drop is not None:
            if trial.metric is None or self.original.metric is None:
                return False
            is_close = trial.sqnr is not None and trial.sqnr >= TRUSTED_SQNR
            doubt = 0.0 if is_close else trial.uncertainty
            if self.original.metric - trial.metric + doubt > self.budget.drop:
                return False
        return self.least_sqnr is None or (trial.sqnr is not None and trial.sqnr >= self.least_sqnr)

    def broken_limits(self, trial: Trial) -> list[str]:
        """Return the limits that a trial breaks, by name, with :data:`SPEED` for a run slower than the original's."""
        if trial.figures is None:
            return ["failed"]
        names = list(self.budget.limits)
        figures = self._limited_figures(trial)
        broken = [name for name, (value, limit) in zip(names, figures, strict=True) if value > limit]
        if not self.is_accurate(trial):
            broken.insert(0, "accuracy")
        if trial.plan and not self.allows_slower and self.is_slower(trial):
            broken.append(SPEED)
        return broken

    def is_slower(self, trial: Trial) -> bool:
        """Return True if a run takes longer than the original's, beyond the noise of measurements."""
        assert trial.figures is not None and self.original.figures is not None
        if trial.figures.slower is not None:
            return trial.figures.slower[0] > 1.0
        return trial.figures.seconds > SLOWER * self.original.figures.seconds

    def ranked(self) -> list[Trial]:
        """Return the trials that keep the whole budget, the best first; the original is one of them if it does.

        Those that are larger or slower than static int8, if it keeps the budget, come last.
        """
        fitting = [trial for trial in self.trials.values() if not self.broken_limits(trial)]
        return sorted(fitting, key=lambda trial: (self.is_behind_static(trial), *self.objective(trial)))

    def is_behind_static(self, trial: Trial) -> bool:
        """Return True if static int8 keeps the budget, and a trial is larger or slower, beyond a cache line's part."""
        static = self.trials.get((STATIC,))
        if static is None or self.broken_limits(static):
            return False
        assert trial.figures is not None and static.figures is not None
        return trial.figures.size > static.figures.size or trial.figures.seconds > SLOWER * static.figures.seconds


def metric_comparisons(trials: Sequence[Trial]) -> int:
    """Return the number of different results, the original excluded, whose metric was measured."""
    return max(1, len({(trial.metric, trial.outputs) for trial in trials if trial.plan and trial.metric is not None}))
