"""Online learning: a model that learns from a stream while a session answers."""

from __future__ import annotations

from sardonyx.train.online.drift import DDM, PageHinkley
from sardonyx.train.online.guard import Guard
from sardonyx.train.online.learner import Learner
from sardonyx.train.online.learner_report import Answer, LearnerReport
from sardonyx.train.online.replay import Replay
from sardonyx.train.online.river_model import RiverModel

__all__ = ["DDM", "Answer", "Guard", "Learner", "LearnerReport", "PageHinkley", "Replay", "RiverModel"]
