"""Models cut at random: who may claim a node, and at what cost, is drawn."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from sardonyx.model import Loadable
from sardonyx.runtime import Session
from sardonyx.runtime.providers import Answer, Claim, Provider, Runner, Settings, make

NAMES = ("native", "reference", "onnxruntime", "openvino")


class Drawn:
    """A provider that claims a node in so many, at a cost that makes crossings worth it."""

    def __init__(self, provider: Provider, rng: random.Random, share: float) -> None:
        self.name = provider.name
        self._provider = provider
        self._rng = rng
        self._share = share

    def capability(self, model: ir.Model) -> Mapping[ir.Node, Answer]:
        answers = self._provider.capability(model)
        return {
            node: Claim(10 ** self._rng.uniform(-6, 0)) if isinstance(answer, Claim) else answer
            for node, answer in answers.items()
            if not isinstance(answer, Claim) or self._rng.random() < self._share
        }

    def compile(self, part: ir.Model) -> Runner:
        return self._provider.compile(part)


def cut_at_random(model: Loadable, seed: int, share: float = 0.7, without: Sequence[str] = ()) -> Session:
    rng = random.Random(seed)
    names = [name for name in NAMES if name not in ("reference", *without)]
    rng.shuffle(names)
    settings = Settings(threads=1)
    others = [Drawn(make(name, settings), rng, share) for name in names]
    return Session(model, providers=[*others, Drawn(make("reference", settings), rng, 1.0)])
