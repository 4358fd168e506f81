"""The distance from the outputs of another model, for training without labels."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.core import language as L
from sardonyx.core.ir.types import TensorType
from sardonyx.train.losses.loss import Loss, Outputs, OutputTypes, Terms, label_shape, mean_over, shape_of


@dataclass(frozen=True)
class TeacherOutputs(Loss):
    """The squared distance from the teacher's outputs, each relative to its power.

    Attributes:
        powers: The mean square of each of the teacher's outputs, by name.
    """

    powers: tuple[tuple[str, float], ...] = ()

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        return {
            teacher_label(name): TensorType(outputs[name].dtype, label_shape(shape_of(outputs[name])))
            for name, _ in self.powers
        }

    def reads(self, outputs: OutputTypes) -> tuple[str, ...]:
        return tuple(name for name, _ in self.powers)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        total = None
        for name, power in self.powers:
            x = L.widened(outputs[name])
            distance = x - L.of_shape(L.cast(labels[teacher_label(name)], x.dtype), x.shape, "the teacher's output")
            part = L.reduce_sum(distance * distance) * (1.0 / power)
            part = part / L.cast(L.size_tensor([L.product(x.shape)], ()), x.dtype)
            total = part if total is None else total + part
        assert total is not None
        return mean_over(total)


def teacher_label(name: str) -> str:
    """Return the label that holds the teacher's output of a name."""
    return f"{name}_teacher"
