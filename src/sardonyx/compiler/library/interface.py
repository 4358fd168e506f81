"""What a C library is from outside: its tensors, its status codes, and the header that declares them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from string import Template

from sardonyx.core import types as t
from sardonyx.core.types import DType

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
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """How much memory it fills."""
        return math.prod(self.shape) * t.numpy_dtype(self.dtype).itemsize


class Status(IntEnum):
    """What the functions of a library return."""

    OK = 0
    BAD_ARGUMENT = 1
    NO_MEMORY = 2
    NO_THREADS = 3
    WRONG_PROCESSOR = 4
    BUSY = 5
    NO_RESULT = 6


MESSAGES = {
    Status.OK: "done",
    Status.BAD_ARGUMENT: "an argument is NULL, or out of range",
    Status.NO_MEMORY: "there is not enough memory",
    Status.NO_THREADS: "the threads cannot be started",
    Status.WRONG_PROCESSOR: "the processor lacks instructions that the library is compiled for",
    Status.BUSY: "the instance is running in another thread",
    Status.NO_RESULT: "a kernel has no result for these values, as for an index out of range",
}


def identifier(text: str) -> str:
    """A text as the beginning of C's names."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name[:1].isalpha() else f"m{name}"


def header(prefix: str, threads: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], made_by: str) -> str:
    """The header of a library.

    Args:
        prefix: What its names begin with.
        threads: Most threads that compute.
        inputs: Its inputs, in order.
        outputs: Its outputs, in order.
        made_by: What it was made by, for the reader.
    """
    codes = "\n".join(f"  {prefix.upper()}_{each.name} = {each.value}, /* {MESSAGES[each]} */" for each in Status)
    return _HEADER.substitute(
        p=prefix, P=prefix.upper(), threads=threads, codes=codes, made_by=made_by,
        input_count=len(inputs), output_count=len(outputs), inputs=_listed(inputs), outputs=_listed(outputs),
    )  # fmt: skip


def _listed(tensors: Sequence[Tensor]) -> str:
    lines = []
    for number, each in enumerate(tensors):
        # No name ends the comment that it stands in.
        name = json.dumps(each.name).replace("*/", "*\\/")
        sizes = "".join(f"[{size}]" for size in each.shape)
        element = f"{_C_TYPES.get(each.dtype, 'uint8_t')} ({each.dtype.name.lower()})"
        lines.append(f" *   {number}: {name}, {element} {sizes or '[], a single element'}, {each.bytes} bytes")
    return "\n".join(lines)


_HEADER = Template("""\
/* $made_by
 *
 * Inputs, in order:
$inputs
 * Outputs, in order:
$outputs
 *
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
#define ${P}_THREADS $threads

typedef enum ${p}_status {
$codes
} ${p}_status;

/* An input or an output. */
typedef struct ${p}_tensor {
  const char *name;     /* its name in the model, UTF-8 */
  int32_t type;         /* ONNX's number of the element type: 1 float, 2 uint8, 6 int32, 7 int64, 9 bool, 11 double */
  int32_t rank;         /* how many sizes it has */
  const int64_t *shape; /* its sizes */
  size_t bytes;         /* how much memory it fills */
} ${p}_tensor;

/* What one running call needs: threads, and memory for what is between inputs and outputs. Weights are shared. */
typedef struct ${p}_instance ${p}_instance;

/* The input or output of a number; NULL where there is none. */
const ${p}_tensor *${p}_input(int32_t number);
const ${p}_tensor *${p}_output(int32_t number);

/* Make an instance, with so many threads that compute, the caller's among them: 1 to ${P}_THREADS, or 0 for as many of
 * these as the process has processors. Instances are independent; each may be used by any one thread at a time. */
${p}_status ${p}_create(int32_t threads, ${p}_instance **instance);

/* Compute outputs from inputs: an address for each, in order, aligned as its elements are. What lies there stays the
 * caller's; outputs overlap nothing. Where the status is not ${P}_OK, what outputs hold has no meaning. */
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
