"""The public interface of a C library: tensors, status codes, and the header file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from string import Template

from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType

_C_TYPES = {
    t.FLOAT: "float", t.DOUBLE: "double", t.BOOL: "uint8_t",
    t.INT8: "int8_t", t.INT16: "int16_t", t.INT32: "int32_t", t.INT64: "int64_t",
    t.UINT8: "uint8_t", t.UINT16: "uint16_t", t.UINT32: "uint32_t", t.UINT64: "uint64_t",
    t.FLOAT16: "uint16_t", t.BFLOAT16: "uint16_t", t.COMPLEX64: "float[2]",
}  # fmt: skip
"""C types of elements; an element of any other type is stored in one byte."""


@dataclass(frozen=True)
class Tensor:
    """An input or output.

    Attributes:
        name: Name in the model.
        dtype: Element type.
        shape: Sizes.
    """

    name: str
    dtype: DType
    shape: tuple[Size, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return t.numpy_dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int | None:
        """Bytes of the tensor; None if a size is open."""
        sizes = [size for size in self.shape if isinstance(size, int)]
        return math.prod(sizes) * self.itemsize if len(sizes) == len(self.shape) else None


class Status(IntEnum):
    """Status codes of the functions of a library."""

    OK = 0
    BAD_ARGUMENT = 1
    NO_MEMORY = 2
    NO_THREADS = 3
    WRONG_PROCESSOR = 4
    BUSY = 5
    NO_RESULT = 6
    BAD_SIZES = 7


MESSAGES = {
    Status.OK: "done",
    Status.BAD_ARGUMENT: "an argument is NULL or out of range",
    Status.NO_MEMORY: "the system has too little memory",
    Status.NO_THREADS: "the system cannot start the threads",
    Status.WRONG_PROCESSOR: "the processor lacks instructions for which the library was compiled",
    Status.BUSY: "the instance is in use by another thread",
    Status.NO_RESULT: "a kernel has no result for these values, e.g. an index is out of range",
    Status.BAD_SIZES: "open sizes are not set or contradict each other",
}


def identifier(text: str) -> str:
    """Return a text as a C identifier: the prefix of the library's names."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name[:1].isalpha() else f"m{name}"


def header(
    prefix: str, threads: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sizes: Sequence[str], producer: str
) -> str:
    """Return the text of the header file of a library.

    Args:
        prefix: Prefix of all names.
        threads: Maximum number of computing threads.
        inputs: The inputs, in order.
        outputs: The outputs, in order.
        sizes: Names of the open sizes, in order.
        producer: The first line: library, target and compiler.
    """
    codes = "\n".join(
        f"  {prefix.upper()}_{status.name} = {status.value}, /* {MESSAGES[status]} */" for status in Status
    )
    names = {"p": prefix, "P": prefix.upper()}
    return _HEADER.substitute(
        names, threads=threads, codes=codes, producer=producer, size_count=len(sizes),
        input_count=len(inputs), output_count=len(outputs),
        inputs=_tensor_lines(inputs), outputs=_tensor_lines(outputs),
        sizes=_SIZES_HEAD.substitute(names, sizes=_size_lines(sizes)) if sizes else "",
        resize=_RESIZE.substitute(names) if sizes else "",
    )  # fmt: skip


def _size_lines(sizes: Sequence[str]) -> str:
    return "\n".join(f" *   {number}: {_escape_comment(size)}" for number, size in enumerate(sizes))


def _escape_comment(text: str) -> str:
    """Escape a text of the model for a C comment, which the text must not end."""
    return text.replace("*/", "*\\/").replace("\n", " ")


def _tensor_lines(tensors: Sequence[Tensor]) -> str:
    lines = []
    for number, tensor in enumerate(tensors):
        name = _escape_comment(json.dumps(tensor.name))
        sizes = _escape_comment("".join(f"[{size}]" for size in tensor.shape))
        element = f"{_C_TYPES.get(tensor.dtype, 'uint8_t')} ({tensor.dtype.name.lower()})"
        lines.append(f" *   {number}: {name}, {element} {sizes or '[], a single element'}{_byte_text(tensor)}")
    return "\n".join(lines)


def _byte_text(tensor: Tensor) -> str:
    return "" if tensor.bytes is None else f", {tensor.bytes} bytes"


_SIZES_HEAD = Template("""\
 * Open sizes, in order:
$sizes
""")

_RESIZE = Template("""\
/* Set the open sizes, in order, and allocate memory for them: before the first run, and whenever a size changes. If
 * sizes contradict each other, runs return ${P}_BAD_SIZES until other sizes are set. */
${p}_status ${p}_resize(${p}_instance *instance, const int64_t *sizes);

/* Write the current sizes of an input or output to an array of at least rank elements, and the bytes of the tensor to
 * *bytes; either address may be NULL. */
${p}_status ${p}_input_shape(const ${p}_instance *instance, int32_t number, int64_t *shape, size_t *bytes);
${p}_status ${p}_output_shape(const ${p}_instance *instance, int32_t number, int64_t *shape, size_t *bytes);

""")

_HEADER = Template("""\
/* $producer
 *
 * Inputs, in order:
$inputs
 * Outputs, in order:
$outputs
$sizes *
 * Elements are stored in row-major order without gaps; an element of less than a byte is stored in one byte.
 */
#ifndef ${P}_H
#define ${P}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ${P}_INPUTS $input_count
#define ${P}_OUTPUTS $output_count
#define ${P}_SIZES $size_count
#define ${P}_THREADS $threads

typedef enum ${p}_status {
$codes
} ${p}_status;

/* An input or an output. */
typedef struct ${p}_tensor {
  const char *name;     /* name in the model, UTF-8 */
  int32_t type;         /* element type as numbered by ONNX: 1 float, 2 uint8, 6 int32, 7 int64, 9 bool, 11 double */
  int32_t rank;         /* number of sizes */
  const int64_t *shape; /* sizes; -1 if open */
  size_t bytes;         /* bytes of the tensor; 0 if a size is open */
} ${p}_tensor;

/* The state of one running call: threads, and memory for intermediate values. Weights are shared. */
typedef struct ${p}_instance ${p}_instance;

/* Return the input or output of an index; NULL if out of range. */
const ${p}_tensor *${p}_input(int32_t number);
const ${p}_tensor *${p}_output(int32_t number);

/* Create an instance with a number of computing threads, including the caller: 1 to ${P}_THREADS, or 0 for one per
 * processor of the process, at most ${P}_THREADS. Instances are independent; one thread at a time may use one. */
${p}_status ${p}_create(int32_t threads, ${p}_instance **instance);

$resize/* Compute outputs from inputs: one address for each tensor, in order, aligned for its element type. The caller
 * owns the memory; outputs overlap no other tensor. If the status is not ${P}_OK, their contents are undefined. */
${p}_status ${p}_run(${p}_instance *instance, const void *const *inputs, void *const *outputs);

/* Destroy an instance: end its threads and free its memory. NULL is ignored. */
void ${p}_destroy(${p}_instance *instance);

/* Return the meaning of a status, in English. */
const char *${p}_message(${p}_status status);

#ifdef __cplusplus
}
#endif

#endif
""")
