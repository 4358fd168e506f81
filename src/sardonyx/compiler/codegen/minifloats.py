"""Conversion between short floats and ``float`` vectors in integer arithmetic.

Covers floats of 8 bits and less, one byte each, and halves on processors without a conversion instruction. The formats
are data. Source: IEEE 754 (halves), the ONNX documents on float8, float4 and float6. Values outside of a format
(overflow, NaN) get the codes that ``ml_dtypes`` chooses. A denormal short number is a normal ``float`` and therefore
survives where denormal numbers are flushed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.core.ir.types import DType


class Format(NamedTuple):
    """A format of sign, exponent and fraction.

    Attributes:
        fraction: Bits of the fraction.
        bias: Bias of the exponent.
        most: The code of the greatest finite number.
        overflow: The code of greater numbers, including infinity.
        nan: The code of NaN.
        sign: The bit of the sign.
        unsigned_zero: True if zero and NaN have no sign.
    """

    fraction: int
    bias: int
    most: int
    overflow: int
    nan: int
    sign: int = 0x80
    unsigned_zero: bool = False

    @property
    def has_nan(self) -> bool:
        """Return True if the format has a code for NaN."""
        return self.sign in (0x80, 0x8000)

    @property
    def has_infinity(self) -> bool:
        """Return True if overflow gives infinity."""
        return self.overflow not in (self.most, self.nan)

    @property
    def bits(self) -> int:
        """Bits of a code in memory."""
        return max(8, self.sign.bit_length())

    @property
    def greatest(self) -> float:
        """The greatest finite number."""
        exponent, fraction = self.most >> self.fraction, self.most & ((1 << self.fraction) - 1)
        return math.ldexp((1 << self.fraction) + fraction, exponent - self.bias - self.fraction)


FORMATS: dict[DType, Format] = {
    DType.FLOAT8E4M3FN: Format(3, 7, 0x7E, 0x7F, 0x7F),
    DType.FLOAT8E4M3FNUZ: Format(3, 8, 0x7F, 0x80, 0x80, unsigned_zero=True),
    DType.FLOAT8E5M2: Format(2, 15, 0x7B, 0x7C, 0x7E),
    DType.FLOAT8E5M2FNUZ: Format(2, 16, 0x7F, 0x80, 0x80, unsigned_zero=True),
    DType.FLOAT6E2M3: Format(3, 1, 0x1F, 0x1F, 0x20, sign=0x20),
    DType.FLOAT6E3M2: Format(2, 3, 0x1F, 0x1F, 0x20, sign=0x20),
    DType.FLOAT4E2M1: Format(1, 1, 0x7, 0x7, 0x8, sign=0x8),
}
"""The formats with a sign. In a format without NaN, NaN becomes the zero of opposite sign."""
HALF = Format(10, 15, 0x7BFF, 0x7C00, 0x7E00, sign=0x8000)
"""``float16``."""


def decoded(format: Format, code: Vector) -> Vector:
    """Return the numbers of codes.

    Args:
        format: The format of the codes.
        code: Codes: ``i8``, or ``i16`` in a format of 16 bits.
    """
    bits = code.to("zext", "i32")
    size = bits & (format.sign - 1)
    # With the exponent of the least normal number, a denormal has a spurious leading 1; subtracting the 1 is exact.
    same = size << (23 - format.fraction)
    normal = (same + ((127 - format.bias) << 23)).number()
    denormal = (same + ((128 - format.bias) << 23)).number() - 2.0 ** (1 - format.bias)
    result = (size < 1 << format.fraction).where(denormal, normal)
    if format.has_infinity:
        result = size.equals(format.overflow).where(result.like(math.inf), result)
    sign = bits & format.sign
    result = (result.bits() | (sign << (31 - (format.sign.bit_length() - 1)))).number()
    if not format.has_nan:
        return result
    no_number = bits.equals(0x80) if format.unsigned_zero else size > format.overflow - (format.overflow == format.nan)
    return no_number.where(result.like(math.nan), result)


def encoded(format: Format, x: Vector) -> Vector:
    """Return the codes of numbers rounded to nearest, ties to even, in the width of the format in memory.

    Args:
        format: The format of the codes.
        x: Numbers, ``float``.
    """
    bits, dropped = x.bits(), 23 - format.fraction
    size = bits & 0x7FFFFFFF
    odd = size.lshr(dropped) & 1
    normal = (size + odd + ((1 << (dropped - 1)) - 1)).lshr(dropped) - ((127 - format.bias) << format.fraction)
    # Adding the shifter rounds a denormal number of the format to a multiple of the least denormal.
    shifter = 2.0 ** (24 - format.fraction - format.bias)
    denormal = (size.number() + shifter).bits() - x.like(shifter).bits()
    code = (size.number() < 2.0 ** (1 - format.bias)).where(denormal, normal)
    code = (code > format.most).where(code.like(format.overflow), code)
    sign = bits.lshr(31 - (format.sign.bit_length() - 1)) & format.sign
    if format.unsigned_zero:
        code = x.is_nan().where(code.like(format.nan), code.equals(0).where(code, code | sign))
    else:
        code = x.is_nan().where(code.like(format.nan), code)
        code = code | sign if format.has_nan else code ^ sign
    return code.to("trunc", f"i{format.bits}")


# float8e8m0 has powers of two alone: 8 bits of exponent, bias 127, 255 is NaN.


def power_of_two(code: Vector) -> Vector:
    """Return the numbers of exponent bytes."""
    bits = code.to("zext", "i32")
    least = bits.equals(0).where(bits.like(0x400000), bits << 23)
    return bits.equals(255).where(least.like(0x7FC00000), least).number()


def exponent_code(x: Vector) -> Vector:
    """Return the exponent bytes of powers of two and NaN."""
    return (x.bits().lshr(23) & 0xFF).to("trunc", "i8")


def nearest_power_of_two(x: Vector, saturate: bool, rounding: str) -> Vector:
    """Round numbers to powers of two without signs, as ONNX ``Cast`` (``up``, ``down``, ``nearest``)."""
    size = x.bits() & 0x7FFFFFFF
    exponent, fraction = size.lshr(23), size & 0x7FFFFF
    below = exponent.equals(0)
    if rounding == "nearest":
        tie = fraction.equals(0x400000) & ~below
        up = (fraction > 0x400000) | tie | (below & (fraction > 0x200000) & (fraction < 0x400000))
    else:
        up = (fraction > 0) & ~(below & (fraction <= 0x400000))
    code = exponent if rounding == "down" else exponent + up.to("zext", "i32")
    code = (code > 254).where(code.like(254 if saturate else 255), code)
    code = (size > 0x7F800000).where(code.like(255), code)
    return power_of_two(code.to("trunc", "i8"))
