"""Upsample and Resize in their six forms, modes of GridSample, and half-pixel shift of RoiAlign."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.errors import SardonyxError
from sardonyx.ops.evaluation import evaluate_nodes
from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down, up


@up("Upsample", version=7)
def scales_of_every_axis(site: Site) -> None:
    """Expand the scales of height and width to scales of all axes."""
    scales = [1.0, 1.0, site.real("height_scale"), site.real("width_scale")]
    site.become(attributes=site.attributes(drop=["height_scale", "width_scale"], scales=scales))


@down("Upsample", version=7)
def scales_of_height_and_width(site: Site) -> None:
    """Reduce the scales of an image to height and width."""
    scales = site.reals("scales") or []
    if len(scales) != 4 or scales[:2] != [1.0, 1.0]:
        site.refuse("it scales other axes than height and width")
    attributes = site.attributes(drop=["scales"], height_scale=scales[2], width_scale=scales[3])
    if attributes.get("mode") is not None and site.text("mode") == "linear":
        attributes["mode"] = "bilinear"
    site.become(attributes=attributes)


@up("Upsample", version=9)
def scales_to_input(site: Site) -> None:
    """Turn the scales into an input."""
    scales = site.constant(np.asarray(site.reals("scales") or [], np.float32))
    site.become(inputs=[site.required(0), scales], attributes=site.attributes(drop=["scales"]))


@down("Upsample", version=9)
def scales_to_attribute(site: Site) -> None:
    """Turn constant scales into an attribute."""
    scales = [float(x) for x in site.constant_input(1, "scales").reshape(-1)]
    site.become(inputs=[site.required(0)], attributes=site.attributes(scales=scales))


@up("Upsample", version=10)
def upsample_renamed(site: Site) -> None:
    """Rename ``Upsample`` to ``Resize``."""
    site.become(op_type="Resize")


@down("Resize", version=10)
def resize_by_old_name(site: Site) -> None:
    """Rename ``Resize`` to ``Upsample`` for scales of one and above; write others by matrices."""
    scales = site.known(site.input(1))
    if scales is None or (scales < 1).any():
        _resize_by_matrices(site)
        return
    site.become(op_type="Upsample")


@up("Resize", version=11)
def coordinates_stated(site: Site) -> None:
    """State the implied asymmetric coordinates and rounding (floor to enlarge, ceil to reduce).

    With unknown scales, possibly above and below one, one node enlarges and a second one reduces.
    """
    x, scales = site.required(0), site.required(1)
    attributes = site.attributes(coordinate_transformation_mode="asymmetric")
    none = site.constant(np.zeros(0, np.float32))
    if site.text("mode", "nearest") != "nearest":
        site.become(inputs=[x, none, scales], attributes=attributes)
        return
    known = site.known(scales)
    if known is not None and _implied(known) != "mixed":
        site.become(inputs=[x, none, scales], attributes=attributes | {"nearest_mode": _implied(known)})
        return
    one = site.constant(np.ones(1, np.float32))
    enlarged = site.emit("Resize", x, none, site.emit("Max", scales, one), **attributes, nearest_mode="floor")
    reduced = [enlarged, none, site.emit("Min", scales, one)]
    site.become(inputs=reduced, attributes=attributes | {"nearest_mode": "ceil"})


@down("Resize", version=11)
def coordinates_implied(site: Site) -> None:
    """Drop asymmetric coordinates if these are implied; write everything else by matrices."""
    scales = site.known(site.input(2))
    mode = site.text("mode", "nearest")
    if (
        scales is None
        or not scales.size
        or mode == "cubic"
        or site.text("coordinate_transformation_mode", "half_pixel") != "asymmetric"
        or (mode == "nearest" and site.text("nearest_mode", "round_prefer_floor") != _implied(scales))
    ):
        _resize_by_matrices(site)
        return
    site.become(inputs=[site.required(0), site.required(2)], attributes={"mode": mode})


def _implied(scales: np.ndarray) -> str:
    if (scales < 1).any() and (scales > 1).any():
        return "mixed"
    return "ceil" if (scales < 1).any() else "floor"


@down("Resize", version=13)
def absent_inputs_empty(site: Site) -> None:
    """Supply empty tensors for missing regions and scales."""
    none = site.constant(np.zeros(0, np.float32))
    site.become(inputs=[site.required(0), site.input(1) or none, site.input(2) or none, site.input(3)])


@down("Resize", version=18)
def resize_every_axis(site: Site) -> None:
    """Expand scales or sizes to all axes; write antialiasing and aspect-ratio policies by matrices."""
    policy = site.text("keep_aspect_ratio_policy", "stretch")
    if site.integer("antialias") or policy != "stretch":
        _resize_by_matrices(site)
        return
    axes = site.integers("axes")
    attributes = site.attributes(drop=["antialias", "axes", "keep_aspect_ratio_policy"])
    inputs = site.inputs
    if axes is not None:
        x = site.required(0)
        rank = site.rank(x)
        indices = site.constant([a + rank if a < 0 else a for a in axes])
        if site.text("coordinate_transformation_mode") == "tf_crop_and_resize":
            _resize_by_matrices(site)
            return
        if (scales := site.input(2)) is not None:
            every = site.constant(np.ones(rank, np.float32))
            inputs[2] = site.emit("ScatterElements", every, indices, scales)
        if (sizes := site.input(3)) is not None:
            inputs[3] = site.emit("ScatterElements", site.emit("Shape", x), indices, sizes)
    site.become(inputs=inputs, attributes=attributes)


@down("Resize", version=19)
def without_symmetric_half_pixel(site: Site) -> None:
    """Write the mode ``half_pixel_symmetric`` by matrices."""
    if site.text("coordinate_transformation_mode") == "half_pixel_symmetric":
        _resize_by_matrices(site)


def _resize_by_matrices(site: Site) -> None:
    """Resize along each axis of known size by a matrix product, or by a gather in mode ``nearest``.

    The matrix is the operator's result for the unit matrix.
    """
    x = site.required(0)
    if site.text("coordinate_transformation_mode") == "tf_crop_and_resize":
        site.refuse("cropping (tf_crop_and_resize) has no equivalent")
    candidates = (1,) if site.source < 11 else (2, 3)
    parameters = {i: site.constant_input(i, "scales or sizes") for i in candidates if site.input(i) is not None}
    value, rank = x, site.rank(x)
    sizes = _resized(site, parameters)
    for axis in range(rank):
        matrix = _axis_matrix(site, parameters, axis)
        if matrix is None:
            continue
        if sizes is not None and matrix.shape[1] != sizes[axis]:
            site.refuse("its sizes are not separable by axis")
        if site.text("mode", "nearest") == "nearest":
            value = site.emit("Gather", value, site.constant(matrix.argmax(axis=0).astype(np.int64)), axis=axis)
            continue
        order = list(range(rank))
        order[axis], order[-1] = order[-1], order[axis]
        columns = site.constant(matrix, site.dtype(x))
        moved = site.emit("Transpose", value, perm=order) if axis != rank - 1 else value
        moved = site.emit("MatMul", moved, columns)
        value = site.emit("Transpose", moved, perm=order) if axis != rank - 1 else moved
    site.replace(value if value is not x else site.emit("Identity", x))


def _resized(site: Site, parameters: dict[int, np.ndarray]) -> tuple[int, ...] | None:
    return site.static_shape(site.node.outputs[0])


def _axis_matrix(site: Site, parameters: dict[int, np.ndarray], axis: int) -> np.ndarray | None:
    """Return the matrix [old size, new size] of the operator along one axis; None for the identity.

    The operator runs on a unit matrix along this axis and an axis of its own; all other
    axes have the actual sizes, on which an aspect-ratio policy depends.
    """
    x = site.required(0)
    rank = site.rank(x)
    axes = site.integers("axes")
    chosen = list(range(rank)) if axes is None else [a + rank if a < 0 else a for a in axes]
    if axis not in chosen:
        return None
    keeps_ratio = site.text("keep_aspect_ratio_policy", "stretch") != "stretch"
    sizes_index, scales_index = 3, 1 if site.source < 11 else 2
    scales, sizes = parameters.get(scales_index), parameters.get(sizes_index)
    if scales is not None and scales.size and float(scales.reshape(-1)[chosen.index(axis)]) == 1.0:
        return None
    old = site.size(x, axis)
    if sizes is not None and sizes.size and not keeps_ratio and int(sizes.reshape(-1)[chosen.index(axis)]) == old:
        return None
    return _probe(site, scales, sizes, chosen, axis, old, keeps_ratio)


def _probe(
    site: Site,
    scales: np.ndarray | None,
    sizes: np.ndarray | None,
    chosen: list[int],
    axis: int,
    old: int,
    keeps_ratio: bool,
) -> np.ndarray:
    attributes = {
        k: v for k, v in site.attributes(drop=["axes", "keep_aspect_ratio_policy"]).items() if isinstance(v, ir.Attr)
    }
    entry = chosen.index(axis)
    if sizes is not None and sizes.size:
        new = int(sizes.reshape(-1)[entry])
        if keeps_ratio:
            policy = site.text("keep_aspect_ratio_policy")
            ratios = [int(n) / site.size(site.required(0), a) for n, a in zip(sizes.reshape(-1), chosen, strict=True)]
            ratio = min(ratios) if policy == "not_larger" else max(ratios)
            new = int(np.floor(ratio * old + 0.5))
            if int(np.floor(np.float32(ratio) * old)) != new:
                site.refuse("its aspect-ratio policy rounds a size up")
            scales, sizes = np.asarray([ratio], np.float32), None
            entry = 0
    probe_scales = None if sizes is not None and sizes.size else scales
    graph_inputs: list[np.ndarray | None]
    if probe_scales is not None:
        vector = np.asarray([1.0, float(probe_scales.reshape(-1)[entry])], np.float32)
        graph_inputs = [None, vector, None]
    elif sizes is None:
        site.refuse("it has neither scales nor sizes")
    else:
        graph_inputs = [None, None, np.asarray([old, int(sizes.reshape(-1)[entry])], np.int64)]
    return _run_probe(site, attributes, graph_inputs, old)


def _run_probe(site: Site, attributes: dict[str, ir.Attr], parameters: list[np.ndarray | None], old: int) -> np.ndarray:
    site.require_room(old, old)
    unit, image = ir.Value(name="unit"), ir.Value(name="image")
    contents = {unit: np.eye(old, dtype=np.float32)[None, None]}
    inputs: list[ir.Value | None] = [unit]
    if site.source < 11:
        parameters = [parameters[1]]
    for i, parameter in enumerate(parameters):
        if parameter is not None:
            parameter = np.concatenate([np.ones(2, parameter.dtype), parameter])
        elif site.source < 13 and i < 2:
            # Before set 13 an input is empty instead of missing.
            parameter = np.zeros(0, np.float32)
        if parameter is None:
            inputs.append(None)
            continue
        inputs.append(entry := ir.Value(name=f"parameter{i}"))
        contents[entry] = parameter
    node = ir.Node("", "Resize", inputs, attributes.values(), outputs=[image])
    try:
        result = evaluate_nodes([node], [image], contents.get, {"": site.source})[image]
    except SardonyxError as error:
        site.refuse(f"its matrix cannot be computed: {error}")
    return np.asarray(result[0, 0])


@up("GridSample", version=20)
def modes_of_any_rank(site: Site) -> None:
    """Rename ``bilinear`` to ``linear``, ``bicubic`` to ``cubic``."""
    mode = site.text("mode", "bilinear")
    site.become(attributes=site.attributes(mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)))


@down("GridSample", version=20)
def modes_of_images(site: Site) -> None:
    """Rename ``linear`` to ``bilinear``, ``cubic`` to ``bicubic``; refuse volumes."""
    if site.rank(site.required(0)) != 4:
        site.refuse("expected an image of rank 4")
    mode = site.text("mode", "linear")
    site.become(attributes=site.attributes(mode={"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)))


@up("RoiAlign", version=16)
def whole_pixels_stated(site: Site) -> None:
    """State coordinates without half-pixel shift."""
    site.become(attributes=site.attributes(coordinate_transformation_mode="output_half_pixel"))


@down("RoiAlign", version=16)
def whole_pixels_implied(site: Site) -> None:
    """Drop the unshifted mode; refuse coordinates shifted by half a pixel."""
    if site.text("coordinate_transformation_mode", "half_pixel") != "output_half_pixel":
        site.refuse("its coordinates are shifted by half a pixel")
    site.become(attributes=site.attributes(drop=["coordinate_transformation_mode"]))
