"""The search keeps every limit, bisects layers, resumes, and ends in time; here with a model of models."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compress.evidence import OutputError
from sardonyx.compress.search.budget import Budget
from sardonyx.compress.search.figures import Figures
from sardonyx.compress.search.moves import MOVES, Plan, Step, ordered
from sardonyx.compress.search.search import Search
from sardonyx.compress.search.time_limit import TimeLimit
from sardonyx.compress.search.trial import State, Trial, front
from sardonyx.errors import ModelFileError, OptionError, UnsupportedError

LAYERS = 16
EFFECTS = {
    "int8": (0.25, 0.4, 0.8),
    "int8 with int4 weights": (0.2, 0.4, 40.0),
    "dynamic int8": (0.7, 0.9, 0.1),
    "int4 weights": (0.15, 1.3, 2.0),
    "int8 weights": (0.26, 1.2, 0.05),
    "int8 with int16 activations": (0.25, 1.2, 0.05),
    "float16": (0.5, 1.1, 0.01),
    "pruned channels": (0.3, 0.35, 6.0),
    "pruned heads": (0.8, 0.8, 3.0),
    "removed layers": (0.5, 0.5, 9.0),
    "low rank": (0.6, 0.9, 4.0),
    "shared weights of 4 bits": (0.2, 1.0, 1.0),
    "shared weights of 8 bits": (0.3, 1.0, 0.02),
    "short names": (0.95, 1.0, 0.0),
}
"""Shares of the original's size and time, and the loss in points, of moves on all layers."""


HARM = {name: harm for name, (_, _, harm) in EFFECTS.items()}


@dataclass
class ModelOfModels:
    """A workbench whose losses grow with the square of the share of layers."""

    harm: dict[str, float] = field(default_factory=lambda: dict(HARM))
    tried: list[Plan] = field(default_factory=list)
    failing: tuple[str, ...] = ()
    closing_seconds: float = 0.0

    def keep_models(self, plans: Sequence[Plan]) -> None:
        pass

    def sites(self, plan: Plan, move: str) -> list[str]:
        changed = sum(math.ceil(step.strength * LAYERS) for step in plan)
        return [f"layer {i}" for i in range(max(0, LAYERS - changed))]

    def trial(self, plan: Plan) -> Trial:
        self.tried.append(plan)
        size, seconds, metric = 1000.0, 1.0, 90.0
        for step in plan:
            if step.move in self.failing:
                return Trial(plan, None, failure=str(UnsupportedError("no layer.")))
            size *= 1 - step.strength * (1 - EFFECTS[step.move][0])
            seconds *= 1 - step.strength * (1 - EFFECTS[step.move][1])
            metric -= self.harm[step.move] * step.strength**2
        errors = (OutputError("y", 200 - metric),) if plan else ()
        return Trial(plan, Figures(int(size), seconds, 100, 1e-6, False, False), errors, metric)


def searched(
    budget: Budget, bench: ModelOfModels | None = None, state: State | None = None, trials: int = 100,
    time: TimeLimit | None = None, **options: Any,
) -> Search:  # fmt: skip
    arguments = {"least_sqnr": None, "allows_slower": False, **options}
    search = Search(
        bench or ModelOfModels(), budget, state=state or State(None, ""), most_trials=trials,  # type: ignore[arg-type]
        time=time or TimeLimit(None), report=lambda label: None, **arguments,
    )  # fmt: skip
    search.run()
    return search


@settings(max_examples=60, deadline=None)
@given(
    drop=st.floats(0, 3),
    size=st.one_of(st.none(), st.floats(100, 2000)),
    latency=st.one_of(st.none(), st.floats(0.2, 2)),
    harm=st.fixed_dictionaries({move.name: st.floats(0, 4) for move in MOVES}),
)
def test_no_result_breaks_a_limit(
    drop: float, size: float | None, latency: float | None, harm: dict[str, float]
) -> None:
    search = searched(Budget(drop=drop, size=size, latency=latency), ModelOfModels({**harm, "short names": 0.0}))
    for trial in search.ranked():
        assert trial.figures is not None and trial.metric is not None
        assert 90 - trial.metric <= drop + 1e-9
        assert size is None or trial.figures.size <= size
        assert latency is None or trial.figures.seconds <= latency
        assert trial.figures.seconds <= 1.02 or not trial.plan


def test_without_harm_the_whole_model_changes() -> None:
    best = searched(Budget(drop=1.0)).ranked()[0]
    assert Step("int8") in best.plan
    assert best.figures is not None and best.figures.size <= 250


def test_the_largest_share_of_layers_that_holds_is_bisected() -> None:
    search = searched(Budget(drop=0.3))
    shares = [step.strength for trial in search.trials.values() for step in trial.plan if step.move == "int8"]
    # The loss of a share s is 0.8 s^2, so that 0.61 of the layers hold 0.3; sixteenths are tried.
    held = [share for share in shares if 0.8 * share**2 <= 0.3]
    assert max(held) == 0.5625
    assert 1.0 in shares and 0.625 in shares


def test_the_strength_of_moves_that_train_is_climbed() -> None:
    """The loss of pruned channels is 6 s^2: a sixteenth holds 0.05, and no greater strength is trained."""
    tried = ModelOfModels()
    searched(Budget(drop=0.05), tried)
    shares = [plan[0].strength for plan in tried.tried if len(plan) == 1 and plan[0].move == "pruned channels"]
    assert shares == [0.125, 0.0625]


def test_a_share_of_what_would_not_be_better_is_not_tried() -> None:
    """All layers with integer weights alone are worse than all layers with int8, which holds."""
    bench = ModelOfModels({**HARM, "int8": 0.01, "int8 weights": 50.0})
    searched(Budget(drop=0.1), bench)
    assert not [plan for plan in bench.tried if Step("int8 weights", 0.5) in plan]


def test_layers_of_the_best_result_become_smaller() -> None:
    """Weights of 4 bits do not hold in all layers: some layers have these, the others the best result's moves."""
    best = searched(Budget(drop=0.9), ModelOfModels({**HARM, "int8": 0.1, "int8 with int4 weights": 4.0})).ranked()[0]
    moves = [step.move for step in best.plan if step.move.startswith("int8")]
    assert moves == ["int8 with int4 weights", "int8"]
    assert 0 < best.plan[-3].strength < 1 or 0 < best.plan[0].strength < 1


def test_every_move_is_tried_before_shares_of_one() -> None:
    whole = [(Step(move.name),) for move in MOVES if not move.is_lossless and not move.is_graded]
    bench = ModelOfModels()
    searched(Budget(drop=0.001), bench, trials=len(whole) + 1)
    assert bench.tried == [(), *whole]


def test_a_loss_just_inside_the_budget_is_not_trusted() -> None:
    class Uncertain(ModelOfModels):
        decibels = 10.0

        def trial(self, plan: Plan) -> Trial:
            outputs = (OutputError("y", self.decibels),) if plan else ()
            return replace(super().trial(plan), outputs=outputs, uncertainty=0.2 if plan else 0.0)

    class Close(Uncertain):
        decibels = 30.0

    far, close = (
        [90 - trial.metric for trial in searched(Budget(drop=0.5), bench).ranked() if trial.metric is not None]
        for bench in (Uncertain(), Close())
    )
    assert len(far) > 1 and max(far) <= 0.3
    assert 0.3 < max(close) <= 0.5


def test_moves_are_combined() -> None:
    best = searched(Budget(drop=0.3)).ranked()[0]
    assert len([step for step in best.plan if step.move != "short names"]) >= 2


def test_a_slower_result_needs_permission() -> None:
    bench = ModelOfModels({**HARM, "int8": 80.0, "dynamic int8": 80.0, "int8 with int4 weights": 80.0})
    strict = searched(Budget(drop=0.1), bench)
    assert all(trial.figures is not None and trial.figures.seconds <= 1.02 for trial in strict.ranked())
    permitted = searched(Budget(drop=0.1), ModelOfModels(bench.harm), allows_slower=True)
    assert any(Step("int8 weights") in trial.plan for trial in permitted.ranked())


def test_the_original_is_best_if_nothing_helps() -> None:
    every = tuple(move.name for move in MOVES)
    search = searched(Budget(drop=0.5), ModelOfModels(failing=every))
    assert [trial.plan for trial in search.ranked()] == [()]
    assert not searched(Budget(drop=0.5, size=100), ModelOfModels(failing=every)).ranked()


def test_outputs_are_judged_without_a_metric() -> None:
    search = searched(Budget(), least_sqnr=110.5)
    assert all(trial.sqnr is None or trial.sqnr >= 110.5 for trial in search.ranked())


def test_the_same_search_makes_the_same_trials() -> None:
    first, second = ModelOfModels(), ModelOfModels()
    searched(Budget(drop=0.3), first)
    searched(Budget(drop=0.3), second)
    assert first.tried == second.tried
    assert len(set(first.tried)) == len(first.tried)


def test_a_search_ends_after_its_trials_or_its_time() -> None:
    search = searched(Budget(drop=0.3), trials=5)
    assert len(search.trials) == 5
    assert search.stopped == "5 trials"
    search = searched(Budget(drop=0.3), time=TimeForQuestions(2))
    assert search.stopped == "the time budget"
    assert len(search.trials) < 10


class TimeForQuestions(TimeLimit):
    """Time that is over after some questions."""

    def __init__(self, questions: int) -> None:
        super().__init__(None)
        self.left = questions

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_trial_ends_with_the_time_and_leaves_no_outcome(tmp_path: Path) -> None:
    time = TimeForQuestions(10**9)

    class Slow(ModelOfModels):
        def trial(self, plan: Plan) -> Trial:
            if len(self.tried) == 3:
                time.left = 0
            raise_if_cancelled()
            return super().trial(plan)

    state = State(tmp_path, "search")
    search = searched(Budget(drop=0.3), Slow(), state, time=time)
    assert search.stopped == "the time budget"
    assert len(search.trials) == 3 == len(list(tmp_path.glob("trial-*")))
    resumed = searched(Budget(drop=0.3), state=State(tmp_path, "search"))
    assert resumed.ranked()[0].plan == searched(Budget(drop=0.3)).ranked()[0].plan


def test_the_time_of_the_last_measurement_is_reserved() -> None:
    limit = TimeLimit(1000.0)
    assert not limit.is_set()
    limit.reserve(300.0)
    assert not limit.is_set()
    limit.reserve(5000.0)
    # Half of the time at most, so that a search with a short time tries at least something.
    assert not limit.is_set()
    assert TimeLimit(1e-9).is_set()


def test_nothing_is_reserved_before_there_is_a_result() -> None:
    class Recording(TimeLimit):
        def __init__(self) -> None:
            super().__init__(None)
            self.reservations: list[float] = []

        def reserve(self, seconds: float) -> None:
            self.reservations.append(seconds)

    time = Recording()
    searched(Budget(drop=0.9), ModelOfModels({**HARM, "int8": 5.0}, closing_seconds=7.0), time=time, trials=9)
    assert time.reservations[:2] == [0.0, 0.0] and time.reservations[-1] == 7.0


def test_no_result_is_larger_or_slower_than_static_int8() -> None:
    """Integer weights of a fifth of the bytes have a smaller product, at twice the time of static int8."""
    search = searched(Budget(drop=0.9), trials=2)
    static = search.trials[(Step("int8"),)]
    assert static.figures is not None
    for size, seconds, goes_first in ((50, 0.8, False), (400, 0.1, False), (200, 0.4, True)):
        figures = replace(static.figures, size=size, seconds=seconds)
        other = Trial((Step("int4 weights"),), figures, static.outputs, static.metric)
        search.trials[other.plan] = other
        assert search.objective(other) < search.objective(static)
        assert (search.ranked()[0] is other) is goes_first


def test_a_search_resumes_where_it_ended(tmp_path: Path) -> None:
    early, late = ModelOfModels(), ModelOfModels()
    whole = searched(Budget(drop=0.3))
    searched(Budget(drop=0.3), early, State(tmp_path, "search"), trials=6)
    resumed = searched(Budget(drop=0.3), late, State(tmp_path, "search"))
    assert resumed.trials == whole.trials
    assert not set(early.tried) & set(late.tried) - {()}


def test_a_damaged_outcome_is_tried_again(tmp_path: Path) -> None:
    searched(Budget(drop=0.3), state=State(tmp_path, "search"))
    for path in tmp_path.glob("trial-*.json"):
        path.write_text(path.read_text()[:-5])
    bench = ModelOfModels()
    search = searched(Budget(drop=0.3), bench, State(tmp_path, "search"))
    assert len(bench.tried) == len(search.trials)
    assert all(json.loads(path.read_text()) for path in tmp_path.glob("trial-*.json"))


def test_the_state_of_another_search_is_refused(tmp_path: Path) -> None:
    State(tmp_path, "one")
    with pytest.raises(OptionError, match="another search"):
        State(tmp_path, "two")
    (tmp_path / "search.json").write_text("{")
    with pytest.raises(ModelFileError, match="cannot be read"):
        State(tmp_path, "one")
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFileError):
        State(tmp_path / "file", "one")


@pytest.mark.parametrize("metric", [None, 89.0])
def test_outcomes_of_another_metric_are_refused_and_stay(tmp_path: Path, metric: float | None) -> None:
    searched(Budget(drop=0.3), state=State(tmp_path, "search"), trials=4)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    bench = ModelOfModels()
    plain = bench.trial
    bench.trial = lambda plan: replace(plain(plan), metric=metric)  # type: ignore[method-assign]
    with pytest.raises(OptionError, match="another search: the metric of the original"):
        searched(Budget(drop=0.3), bench, State(tmp_path, "search"))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_metric_without_a_number_is_the_same_again(tmp_path: Path) -> None:
    for _ in range(2):
        bench = ModelOfModels()
        plain = bench.trial
        bench.trial = lambda plan, plain=plain: replace(plain(plan), metric=math.nan)  # type: ignore[misc]
        searched(Budget(size=100), bench, State(tmp_path, "search"), trials=3)


def test_the_front_has_no_beaten_plan() -> None:
    search = searched(Budget(drop=1.0), allows_slower=True)
    trials = list(search.trials.values())
    best = front(trials, 90.0)
    assert best
    for trial in best:
        for other in trials:
            assert trial.figures is not None and other.figures is not None
            assert trial.metric is not None and other.metric is not None
            beaten = (
                other.figures.size < trial.figures.size
                and other.figures.seconds < trial.figures.seconds
                and other.metric > trial.metric
            )
            assert not beaten
    assert len(front([trials[0], trials[0]], 90.0)) == 1


def test_names_are_shortened_last() -> None:
    plan = ordered((Step("short names"), Step("int4 weights", 0.5), Step("int8")))
    assert [step.move for step in plan] == ["int4 weights", "int8", "short names"]
