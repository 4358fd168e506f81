"""Images of which a function needs the range of the elements and 0, as dynamic quantizations do."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sardonyx.compiler.analysis.dynamic_scales import number, single
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.schedule.groups import Group
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value


def reduced_image(group: Group) -> Value | None:
    """Return the image of which a group computes the range, with 0, and numbers of the range; None for others.

    The 0 is the second operand and has the sign +: the interpreter takes it where the extreme is 0, too.
    """
    if group.rows is None or group.anchor is not None or any(_elements(member) != 1 for member in group.members):
        return None
    reductions = {member for member in group.members if member.op == "reduce"}
    images = {reduction.operands[0] for reduction in reductions}
    if len(images) != 1 or not reductions.isdisjoint(group.roots):
        return None
    for member in group.members:
        sources = [single(operand) for operand in member.operands]
        if reductions.isdisjoint(sources):
            continue
        if sources[0] not in reductions or member.op != sources[0].params["kind"]:
            return None
        limit = number(sources[1])
        if limit != 0 or math.copysign(1, limit) < 0:
            return None
    image = images.pop()
    is_range = {reduction.params["kind"] for reduction in reductions} <= {"min", "max"}
    return image if is_range and dtype_of(image) == t.FLOAT and _elements(image) != 1 else None


def images_with_extremes(groups: Iterable[Group]) -> frozenset[Value]:
    """Return the images of convolutions of which a function computes the range."""
    known = list(groups)
    written = {group.root for group in known if group.anchor is not None and group.anchor.op == "convolve"}
    return frozenset(image for group in known if (image := reduced_image(group)) is not None and image in written)


def _elements(value: Value) -> Size:
    return math.prod(shape_of(value))
