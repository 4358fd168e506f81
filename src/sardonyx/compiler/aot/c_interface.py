"""What a C library is from outside: its tensors, its status codes, and the header that declares them."""

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
"""What an element is in C; others fill a byte."""


@dataclass(frozen=True)
class Tensor:
    """An input or output.

    Attributes:
        name: Its name in the model.
        dtype: Its element type.
        shape: Its sizes.
    """

    name: str
    dtype: DType
    shape: tuple[Size, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return t.numpy_dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int | None:
        """How much memory it fills; None where a size is open."""
        sizes = [size for size in self.shape if isinstance(size, int)]
        return math.prod(sizes) * self.itemsize if len(sizes) == len(self.shape) else None


class Status(IntEnum):
    """What the functions of a library return."""

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
    Status.BAD_ARGUMENT: "an argument is NULL, or out of range",
    Status.NO_MEMORY: "there is not enough memory",
    Status.NO_THREADS: "the threads cannot be started",
    Status.WRONG_PROCESSOR: "the processor lacks instructions that the library is compiled for",
    Status.BUSY: "the instance is running in another thread",
    Status.NO_RESULT: "a kernel has no result for these values, as for an index out of range",
    Status.BAD_SIZES: "sizes are not given, or do not go together",
}


def identifier(text: str) -> str:
    """A text as the beginning of C's names."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name[:1].isalpha() else f"m{name}"


def header(
    prefix: str, threads: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sizes: Sequence[str], made_by: str
) -> str:
    """The header of a library.

    Args:
        prefix: What its names begin with.
        threads: Most threads that compute.
        inputs: Its inputs, in order.
        outputs: Its outputs, in order.
        sizes: The names of its open sizes, in order.
        made_by: What it was made by, for the reader.
    """
    codes = "\n".join(f"  {prefix.upper()}_{each.name} = {each.value}, /* {MESSAGES[each]} */" for each in Status)
    names = {"p": prefix, "P": prefix.upper()}
    return _HEADER.substitute(
        names, threads=threads, codes=codes, made_by=made_by, size_count=len(sizes),
        input_count=len(inputs), output_count=len(outputs), inputs=_listed(inputs), outputs=_listed(outputs),
        sizes=_SIZES_HEAD.substitute(names, sizes=_numbered(sizes)) if sizes else "",
        resize=_RESIZE.substitute(names) if sizes else "",
    )  # fmt: skip


def _numbered(sizes: Sequence[str]) -> str:
    return "\n".join(f" *   {number}: {_in_comment(size)}" for number, size in enumerate(sizes))


def _in_comment(text: str) -> str:
    """A text of the model's: none ends the comment that it stands in."""
    return text.replace("*/", "*\\/").replace("\n", " ")


def _listed(tensors: Sequence[Tensor]) -> str:
    lines = []
    for number, each in enumerate(tensors):
        name = _in_comment(json.dumps(each.name))
        sizes = _in_comment("".join(f"[{size}]" for size in each.shape))
        element = f"{_C_TYPES.get(each.dtype, 'uint8_t')} ({each.dtype.name.lower()})"
        lines.append(f" *   {number}: {name}, {element} {sizes or '[], a single element'}{_filled(each)}")
    return "\n".join(lines)


def _filled(tensor: Tensor) -> str:
    return "" if tensor.bytes is None else f", {tensor.bytes} bytes"


_SIZES_HEAD = Template("""\
 * Sizes that are open, in order:
$sizes
""")

_RESIZE = Template("""\
/* Say what the open sizes are, a number for each, in order: before the first run, and whenever they change. Memory for
 * them is taken here. Where they do not go together, runs return ${P}_BAD_SIZES until others are given. */
${p}_status ${p}_resize(${p}_instance *instance, const int64_t *sizes);

/* The sizes of an input or output as it is now, to an array with room for its rank, and how many bytes it fills; either
 * address may be NULL. */
${p}_status ${p}_input_shape(const ${p}_instance *instance, int32_t number, int64_t *shape, size_t *bytes);
${p}_status ${p}_output_shape(const ${p}_instance *instance, int32_t number, int64_t *shape, size_t *bytes);

""")

_HEADER = Template("""\
/* $made_by
 *
 * Inputs, in order:
$inputs
 * Outputs, in order:
$outputs
$sizes *
 * Elements lie in row-major order without gaps; those of less than a byte fill one each.
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
  const char *name;     /* its name in the model, UTF-8 */
  int32_t type;         /* ONNX's number of the element type: 1 float, 2 uint8, 6 int32, 7 int64, 9 bool, 11 double */
  int32_t rank;         /* how many sizes it has */
  const int64_t *shape; /* its sizes; -1 where one is open */
  size_t bytes;         /* how much memory it fills; 0 where a size is open */
} ${p}_tensor;

/* What one running call needs: threads, and memory for what is between inputs and outputs. Weights are shared. */
typedef struct ${p}_instance ${p}_instance;

/* The input or output of a number; NULL where there is none. */
const ${p}_tensor *${p}_input(int32_t number);
const ${p}_tensor *${p}_output(int32_t number);

/* Make an instance, with so many threads that compute, the caller's among them: 1 to ${P}_THREADS, or 0 for as many of
 * these as the process has processors. Instances are independent; each may be used by any one thread at a time. */
${p}_status ${p}_create(int32_t threads, ${p}_instance **instance);

$resize/* Compute outputs from inputs: an address for each, in order, aligned as its elements are. What lies there stays
 * the caller's; outputs overlap nothing. Where the status is not ${P}_OK, what outputs hold has no meaning. */
${p}_status ${p}_run(${p}_instance *instance, const void *const *inputs, void *const *outputs);

/* End an instance, its threads and its memory; NULL is let be. */
void ${p}_destroy(${p}_instance *instance);

/* What a status means, in English. */
const char *${p}_message(${p}_status status);

#ifdef __cplusplus
}
#endif

#endif
""")
