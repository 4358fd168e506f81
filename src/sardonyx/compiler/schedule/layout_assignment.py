"""Layout assignment: the values in memory that are blocked images, [N, C / block, spatial, block]."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from sardonyx.compiler.analysis.patterns import skip_broadcasts
from sardonyx.compiler.analysis.primitive_traits import WHOLE, dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import MOVEMENTS, factor_groups, shape_of
from sardonyx.compiler.schedule.fusion import Grouping
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.target.description import Target
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.errors import UnsupportedError

BLOCKED_DTYPES = frozenset({t.FLOAT, t.BFLOAT16, t.INT32, t.UINT8, t.INT8, t.INT16})
"""The element types of blocked images."""


def blocked_images(grouping: Grouping, target: Target) -> dict[Value, int]:
    """Return the values in memory with blocked layout, and the channels of a block.

    Convolutions write blocked images, and so do elementwise kernels that read blocked images. Values read by a matrix
    product, the interpreter or the caller are row-major.
    """
    lanes = target.lanes(32)
    blocked: dict[Value, int] = {}
    read_blocked, read_plain = _read_by_convolutions(grouping, target)
    for group in grouping.groups:
        if group.root.op in WHOLE or not _may_be_blocked(grouping, group.root):
            continue
        # A kernel of rows is exempt: the blocked operand is read several times, the result converted once.
        if group.root in read_plain and group.rows is None:
            continue
        if _writes_blocks(grouping, group, target, blocked):
            blocked[group.root] = lanes
    for group in reversed(grouping.groups):
        root = group.root
        if (
            root in blocked
            or root not in read_blocked
            or root in read_plain
            or group.anchor is not None
            or not _may_be_blocked(grouping, root)
        ):
            continue
        if root.op in WHOLE or (group.rows is not None and not _keeps_channels(group)):
            continue
        if root.op == "pad":
            # Of a narrow image, one conversion behind the padding moves less than a padded image of whole blocks.
            if not _pads_no_channels(root) or int(shape_of(root)[1]) % lanes:  # type: ignore[arg-type]
                continue
            read_blocked.update(root.operands[:1])
        elif root.op == "concat":
            if not _joins_blocks(root, lanes):
                continue
            read_blocked.update(root.operands)
        else:
            read_blocked.update(_sources(grouping, group))
        blocked[root] = lanes
    return blocked


def _read_by_convolutions(grouping: Grouping, target: Target) -> tuple[set[Value], set[Value]]:
    """Return the images that convolutions read in blocks only, and the images read as NCHW only."""
    blocked: set[Value] = set()
    plain: set[Value] = set()
    for match in grouping.convolutions.values():
        try:
            (blocked if grouping.choose_convolution(match).schedule.blocked else plain).add(match.image)
        except UnsupportedError:
            continue
    return blocked, plain


def _sources(grouping: Grouping, group: Group) -> Iterator[Value]:
    """Yield the images with the root's batch and channels that a group reads from memory."""
    shape = shape_of(group.root)
    stack = [operand for member in group.members for operand in member.operands]
    if (table := grouping.tables.get(group.root)) is not None:
        stack.append(table.source)
    while stack:
        value = stack.pop()
        other = grouping.group(value)
        if other is None and (value.op in MOVEMENTS or value.op == "gather"):
            stack.extend(value.operands[:1])
        elif other is not None and other is not group and other.root is value:
            sizes = shape_of(value)
            if len(sizes) == len(shape) and sizes[:2] == shape[:2]:
                yield value


def _keeps_channels(group: Group) -> bool:
    """Return True if the reductions of a group leave an image with all channels."""
    rows = group.rows
    assert rows is not None
    return 1 not in rows.axes and shape_of(group.root) == rows.result_shape and len(rows.result_shape) >= 3


def _may_be_blocked(grouping: Grouping, root: Value) -> bool:
    """Return True if a value is an image, and all readers accept blocks."""
    shape = shape_of(root)
    if (
        dtype_of(root) not in BLOCKED_DTYPES
        or not 3 <= len(shape) <= 5
        or not isinstance(shape[1], int)
        or shape[1] < 2
    ):
        return False
    plain = {"a result", "read by contract", "read by the interpreter", "read by control flow"}
    if any(_joins_channels(root, shape_of(user)) for user in _reshapes(grouping, root)):
        return False
    windows = [user.params["window"] for user in grouping.users[root] if user.op == "reduce_window"]
    if any(len(window) != len(shape) - 2 for window in windows):
        return False  # LRN: windows over channels, which blocks separate.
    if windows and dtype_of(root) == t.BFLOAT16:
        return False  # Pooling of blocks combines elements as they are in memory.
    return not any(reader in plain for reader in grouping.consumers(root))


def _reshapes(grouping: Grouping, image: Value) -> Iterator[Value]:
    """Yield the reshapes of an image, and those of elementwise results that its readers compute without storing."""
    waiting, seen = [image], {image}
    while waiting:
        for user in grouping.users[waiting.pop()]:
            if user.op == "reshape":
                yield user
            elif user not in seen and is_elementwise(user) and shape_of(user) == shape_of(image):
                seen.add(user)
                group = grouping.group(user)
                if group is not None and group.root is not user:
                    waiting.append(user)


def _joins_channels(image: Value, shape: tuple[Size, ...]) -> bool:
    """Return True if a shape joins channels and spatial axes of an image.

    Blocks would be read element by element.
    """
    sizes = shape_of(image)
    groups = [axes for _, axes in factor_groups(shape, sizes)]
    return any(1 in axes and any(axis > 1 and sizes[axis] != 1 for axis in axes) for axes in groups)


def _writes_blocks(grouping: Grouping, group: Group, target: Target, blocked: dict[Value, int]) -> bool:
    """Return True if the kernel of a group writes blocks without a conversion."""
    root = group.root
    if group.anchor is not None and group.anchor.op == "convolve":
        return _is_blocked_convolution(grouping, group)
    if group.anchor is not None:
        source = group.anchor.operands[0]
        return (
            group.anchor.op == "reduce_window"
            and source in blocked
            and len(shape_of(root)) == 2 + len(group.anchor.params["window"])
        )
    if root.op == "concat":
        lanes = target.lanes(32)
        return _joins_blocks(root, lanes) and any(_reads_blocked(operand, root, blocked) for operand in root.operands)
    if root.op == "pad":
        return _pads_no_channels(root) and _reads_blocked(root.operands[0], root, blocked)
    if group.rows is not None and shape_of(root) != group.rows.result_shape and not row_channels(group, blocked):
        return False
    return _reads_blocked(root, root, blocked)


def _pads_no_channels(root: Value) -> bool:
    low, high, interior = (root.params[name] for name in ("low", "high", "interior"))
    return bool(low[1] == high[1] == interior[1] == 0)


def _joins_blocks(root: Value, lanes: int) -> bool:
    """Return True if a ``concat`` appends whole blocks of channels."""
    sizes = [shape_of(operand)[1] for operand in root.operands]
    return root.params["axis"] == 1 and all(isinstance(size, int) and size % lanes == 0 for size in sizes)


def _is_blocked_convolution(grouping: Grouping, group: Group) -> bool:
    """Return True if a convolution has a kernel, and the kernel writes blocks of channels."""
    convolution = next((match for match in grouping.convolutions.values() if match.core is group.anchor), None)
    if convolution is None:
        return False
    try:
        return grouping.choose_convolution(convolution).schedule.algorithm != "planar"
    except UnsupportedError:
        return False


def _whole_image(value: Value) -> Value:
    """Return the image of which a value is a spatial slice with all channels, or the value itself."""
    while value.op == "slice":
        image, starts, strides = value.operands[0], value.params["starts"], value.params["strides"]
        if len(starts) < 3 or starts[1] != 0 or strides[1] != 1 or shape_of(value)[1] != shape_of(image)[1]:
            break
        value = image
    return value


def row_channels(group: Group, blocks: Mapping[Value, int]) -> int:
    """Return the channels of a block if spatial axes of blocked images are reduced, else 0.

    Lanes are then channels.
    """
    rows = group.rows
    assert rows is not None
    if 1 in rows.axes:
        return 0
    if group.root in blocks and shape_of(group.root) == rows.result_shape:
        return blocks[group.root]
    images = {_whole_image(operand) for member in group.members for operand in member.operands} - {*group.members}
    sizes = {blocks[image] for image in images if image in blocks and _has_positions(image, rows.shape)}
    return sizes.pop() if len(sizes) == 1 else 0


def reduced_channels(group: Group, blocks: Mapping[Value, int]) -> int:
    """Return the channels of a block if channels and positions of blocked images are reduced to one number, else 0.

    Lanes are then channels, and images are read in the order of memory.
    """
    rows = group.rows
    assert rows is not None
    if 1 not in rows.axes or shape_of(group.root) == rows.shape or len(rows.shape) < 3:
        return 0
    if any(size != 1 for axis, size in enumerate(rows.shape[2:], 2) if axis not in rows.axes):
        return 0
    read = {operand for member in group.members for operand in member.operands} - {*group.members}
    images = {image for image in read if math.prod(shape_of(skip_broadcasts(image))) != 1}
    sizes = {blocks.get(image, 0) if shape_of(image) == rows.shape else 0 for image in images}
    return sizes.pop() if len(sizes) == 1 else 0


def _has_positions(image: Value, shape: tuple[Size, ...]) -> bool:
    """Return True if an image has the channels of a shape, and more than one spatial position."""
    sizes = shape_of(image)
    return len(sizes) == len(shape) and sizes[:2] == shape[:2] and any(size != 1 for size in sizes[2:])


def _reads_blocked(value: Value, root: Value, blocked: dict[Value, int]) -> bool:
    """Return True if a value is computed elementwise from a blocked image."""
    if value in blocked:
        return True
    image = _whole_image(value)
    if image is not value:
        return _reads_blocked(image, root, blocked)
    if not is_elementwise(value) and value.op != "stop_gradient":
        return False
    return any(_reads_blocked(operand, root, blocked) for operand in value.operands)
