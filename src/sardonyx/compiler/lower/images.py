"""Lowering of convolutions and pooling: stages of a convolution, copies of images in another layout."""

from __future__ import annotations

from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import Memory, shape_of
from sardonyx.compiler.codegen.element_reader import Element
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.lower.context import FunctionContext, KernelWriter, storage_bits
from sardonyx.compiler.lower.convolution import ImageKernel, describe_pooling
from sardonyx.compiler.lower.launch import Launch, Relaid
from sardonyx.compiler.lower.maps import write_elements
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.tiling.pooling import choose_pooling
from sardonyx.core.ir.graph import Value
from sardonyx.errors import UnsupportedError


def lower_image(context: FunctionContext, group: Group, anchor: Value) -> list[Launch]:
    """Emit the kernels of a ``convolve`` or ``reduce_window``, after copies of the images if necessary.

    Raises:
        Unfusable: An operand must be written to memory first.
        UnsupportedError: No template computes the anchor.
    """
    source = anchor.operands[0]
    if anchor.op == "reduce_window":
        context.require_memory(source)
        pooling = choose_pooling(
            describe_pooling(anchor, source in context.blocks, storage_bits(anchor)), context.target
        )
        w = KernelWriter(context, group, None if pooling.schedule.blocked else pooling.schedule.lanes)
        return [w.launch(ImageKernel(w).pool(anchor, pooling), "pooling")]
    conv = next((conv for conv in context.grouping.convolutions.values() if conv.core is anchor), None)
    if conv is None:
        raise UnsupportedError(
            "no template for convolve without the movements from and to images; expected reshape and permute around it."
        )
    context.require_memory(conv.image)
    choice = context.grouping.choose_convolution(conv)
    schedule = choice.schedule
    stages = []
    if schedule.staged:
        w = KernelWriter(context, group)
        title = "lines of an image" if schedule.algorithm == "matrix" else "winograd inputs"
        stages.append(w.launch(ImageKernel(w).transform(conv, schedule), title))
    if schedule.runtime_packing:
        w = KernelWriter(context, group, None if schedule.algorithm == "winograd" else 1)
        stages.append(w.launch(ImageKernel(w).pack(conv, schedule), "weights"))
    w = KernelWriter(context, group)
    items, title = ImageKernel(w).convolve(conv, choice)
    launches = [*stages, w.launch(items, title)]
    buffers = dict.fromkeys(buffer for launch in launches for buffer in launch.buffers)
    missing = [buffer for buffer in buffers if isinstance(buffer, Relaid) and buffer not in context.relaid]
    context.relaid.update(missing)
    return [*(_write_copy(context, group, copy) for copy in missing), *launches]


def _write_copy(context: FunctionContext, group: Group, copy: Relaid) -> Launch:
    """Emit the kernel that copies an image in another layout or element type."""
    value = copy.source
    w = KernelWriter(context, group)
    block = copy.block if copy.block > 1 else 0
    memory = Memory(w.pointer(copy), copy.dtype, shape_of(value), block)

    def body(position: list[Index]) -> None:
        element = w.reader.element(value, tuple(position))
        name = w.reader.converted(dtype_of(value), copy.dtype, element.name, element.uniform)
        w.reader.store(memory, tuple(position), Element(name, element.uniform))

    return w.launch(write_elements(w, value, memory, shape_of(value), body), "layout")
