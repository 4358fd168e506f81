"""BatchNormalization and Dropout (test and training mode), GroupNormalization (scale granularity)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.shaping import reduce, reshape, unsqueeze
from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down, up


@down("BatchNormalization", version=6)
def consumed_inputs_stated(site: Site) -> None:
    """Declare mean and variance as overwritable, as the oldest definition requires."""
    site.become(attributes=site.attributes(consumed_inputs=[0, 0, 0, 1, 1]))


@up("BatchNormalization", version=7)
def mode_by_outputs(site: Site) -> None:
    """Express test mode by one output, training mode by five."""
    outputs = 1 if site.integer("is_test") else 5
    if outputs == 1 and len(site.node.outputs) > 1:
        site.refuse("its statistics are outputs in test mode")
    site.become(attributes=site.attributes(drop=["is_test", "consumed_inputs"]), outputs=outputs)


@down("BatchNormalization", version=7)
def mode_by_attribute(site: Site) -> None:
    """Express one output as test mode."""
    site.become(attributes=site.attributes(is_test=int(len(site.node.outputs) == 1)))


@up("BatchNormalization", version=9)
def statistics_of_channels(site: Site) -> None:
    """Write statistics per position (``spatial`` 0) as arithmetic."""
    if site.integer("spatial", 1):
        site.become(attributes=site.attributes(drop=["spatial"]))
        return
    if len(site.node.outputs) > 1:
        site.refuse("it is in training mode with statistics for each position")
    x, scale, bias, mean, variance = (site.required(i) for i in range(5))
    site.replace(_normalized(site, x, scale, bias, mean, variance))


def _normalized(
    site: Site, x: ir.Value, scale: ir.Value, bias: ir.Value, mean: ir.Value, variance: ir.Value
) -> ir.Value:
    epsilon = site.scalar(site.real("epsilon", 1e-5), x)
    deviation = site.emit("Sqrt", site.emit("Add", variance, epsilon))
    unit = site.emit("Div", site.emit("Sub", x, mean), deviation)
    return site.emit("Add", site.emit("Mul", unit, scale), bias)


@up("BatchNormalization", version=14)
def training_mode_stated(site: Site) -> None:
    """Set training mode for five outputs, dropping the saved statistics."""
    if len(site.node.outputs) == 1:
        return
    if site.uses_output(3) or site.uses_output(4):
        site.refuse("its saved statistics are read")
    site.become(attributes=site.attributes(training_mode=1), outputs=3)


@down("BatchNormalization", version=14)
def training_by_arithmetic(site: Site) -> None:
    """Compute the batch statistics of training mode and their running averages."""
    if not site.integer("training_mode"):
        site.become(attributes=site.attributes(drop=["training_mode"]), outputs=1)
        return
    x, scale, bias, old_mean, old_variance = (site.required(i) for i in range(5))
    rank = site.rank(x)
    others = [axis for axis in range(rank) if axis != 1]
    mean = reduce(site, "ReduceMean", x, others)
    off = site.emit("Sub", x, mean)
    variance = reduce(site, "ReduceMean", site.emit("Mul", off, off), others)
    trailing = list(range(1, rank - 1))
    if trailing:
        scale, bias = unsqueeze(site, scale, trailing), unsqueeze(site, bias, trailing)
    y = _normalized(site, x, scale, bias, mean, variance)
    momentum = site.real("momentum", 0.9)
    running = [
        _average(site, old, reshape(site, new, [-1]), momentum) if site.uses_output(i) else None
        for i, (old, new) in enumerate(((old_mean, mean), (old_variance, variance)), 1)
    ]
    site.replace(y, *running)


def _average(site: Site, old: ir.Value, new: ir.Value, momentum: float) -> ir.Value:
    decayed = site.emit("Mul", old, site.scalar(momentum, old))
    return site.emit("Add", decayed, site.emit("Mul", new, site.scalar(1 - momentum, new)))


@down("BatchNormalization", version=15)
def one_type_for_all(site: Site) -> None:
    """Compute mixed types in the widest one and round once."""
    dtypes = [site.dtype(site.required(i)) for i in range(5)]
    if len(set(dtypes)) == 1:
        return
    if site.integer("training_mode"):
        site.refuse("training mode with several element types")
    wide = max(dtypes, key=lambda dtype: dtype.itemsize)
    inputs = [site.cast(site.required(i), wide) for i in range(5)]
    site.replace(site.cast(site.emit("BatchNormalization", *inputs, **site.attributes()), dtypes[0]))


@up("Dropout", version=7)
def test_mode_only(site: Site) -> None:
    """Refuse training mode, which changed between the sets."""
    if not site.integer("is_test"):
        site.refuse("it is in training mode", "Set its attribute is_test to 1 if the model is for inference.")
    site.become(attributes=site.attributes(drop=["is_test", "consumed_inputs"]))


@down("Dropout", version=7)
def test_mode_stated(site: Site) -> None:
    """Set test mode."""
    site.become(attributes=site.attributes(is_test=1))


@up("Dropout", version=10)
def mask_of_booleans(site: Site) -> None:
    """Cast the mask, boolean from this set on, back for its readers."""
    if not site.uses_output(1):
        return
    x = site.required(0)
    results = site.emit_many("Dropout", [x], 2, site.attributes())
    site.replace(results[0], site.cast(results[1], site.dtype(x)))


@down("Dropout", version=10)
def mask_without_drops(site: Site) -> None:
    """Write the mask of inference, true everywhere."""
    x = site.required(0)
    if not site.uses_output(1):
        return
    mask = site.emit("ConstantOfShape", site.emit("Shape", x), value=ir.Tensor(np.asarray([True])))
    site.replace(site.emit("Dropout", x, **site.attributes()), mask)


@up("Dropout", version=12)
def ratio_to_input(site: Site) -> None:
    """Turn the ratio into an input."""
    ratio = site.constant(np.asarray(site.real("ratio", 0.5), np.float32))
    site.become(inputs=[site.required(0), ratio], attributes={})


@down("Dropout", version=12)
def ratio_to_attribute(site: Site) -> None:
    """Turn the ratio into an attribute; refuse training mode, which draws at random.

    In inference the mask is true everywhere since set 12, and was unspecified before.
    """
    training = site.input(2)
    if training is not None and site.constant_input(2, "training_mode").any():
        site.refuse("it is in training mode")
    ratio = site.known(site.input(1))
    attributes = {} if ratio is None else {"ratio": float(ratio.reshape(-1)[0])}
    x = site.required(0)
    if not site.uses_output(1):
        site.become(inputs=[x], attributes=attributes, outputs=1)
        return
    mask = site.emit("ConstantOfShape", site.emit("Shape", x), value=ir.Tensor(np.asarray([True])))
    site.replace(site.emit("Dropout", x, **attributes), mask)


@up("GroupNormalization", version=21)
def scale_of_channels(site: Site) -> None:
    """Repeat scale and bias of each group for its channels."""
    x, groups = site.required(0), site.integer("num_groups")
    count = site.size(x, 1) // groups
    spread = [_repeat(site, site.required(i), groups, count) for i in (1, 2)]
    site.become(inputs=[x, *spread])


@down("GroupNormalization", version=21)
def scale_of_groups(site: Site) -> None:
    """Refuse scales per channel; the standard's own function body expresses these."""
    site.refuse("its scale and bias are per channel")


def _repeat(site: Site, value: ir.Value, groups: int, count: int) -> ir.Value:
    content = site.known(value)
    if content is not None:
        site.require_room(content.size, count)
        return site.constant(np.repeat(content, count), site.dtype(value))
    column = reshape(site, value, [groups, 1])
    return reshape(site, site.emit("Expand", column, site.constant([groups, count])), [-1])


def _trailing_axes(site: Site, x: ir.Value) -> list[int]:
    """Return the axes from the attribute ``axis`` to the last one, counted from the end."""
    rank = site.rank(x)
    return list(range(site.axis("axis", -1, rank) - rank, 0))


@down("LayerNormalization", version=17)
def layer_norm_by_arithmetic(site: Site) -> None:
    """Write layer normalization as arithmetic in the precision of ``stash_type``, then scale and bias."""
    x, scale = site.required(0), site.required(1)
    axes, stash = _trailing_axes(site, x), ir.DataType(site.integer("stash_type", 1))
    wide = site.cast(x, stash)
    mean = reduce(site, "ReduceMean", wide, axes)
    off = site.emit("Sub", wide, mean)
    variance = reduce(site, "ReduceMean", site.emit("Mul", off, off), axes)
    deviation = site.emit("Sqrt", site.emit("Add", variance, site.scalar(site.real("epsilon", 1e-5), off)))
    y = site.emit("Mul", site.cast(site.emit("Div", off, deviation), site.dtype(x)), scale)
    if (bias := site.input(2)) is not None:
        y = site.emit("Add", y, bias)
    inverse = site.emit("Reciprocal", deviation) if site.uses_output(2) else None
    site.replace(y, mean if site.uses_output(1) else None, inverse)


@down("RMSNormalization", version=23)
def rms_norm_by_arithmetic(site: Site) -> None:
    """Write RMS normalization as arithmetic in the precision of ``stash_type``, then the scale."""
    x, scale = site.required(0), site.required(1)
    axes, stash = _trailing_axes(site, x), ir.DataType(site.integer("stash_type", 1))
    wide = site.cast(x, stash)
    square = reduce(site, "ReduceMean", site.emit("Mul", wide, wide), axes)
    root = site.emit("Sqrt", site.emit("Add", square, site.scalar(site.real("epsilon", 1e-5), wide)))
    site.replace(site.emit("Mul", site.cast(site.emit("Div", wide, root), site.dtype(x)), scale))
