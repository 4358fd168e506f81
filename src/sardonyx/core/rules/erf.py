"""The error function, for whole arrays.

Source: the rational approximations of FreeBSD's ``s_erf.c`` (Sun Microsystems, 1993), within one unit in the last
place of float64; ``numpy`` has none.
"""

from __future__ import annotations

import numpy as np

ERX = 8.45062911510467529297e-01
"""``erf(1)`` to single precision: the offset of the approximation around 1."""

# Coefficients from the constant term on.
NEAR_ZERO = (
    (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
     -5.77027029648944159157e-03, -2.37630166566501626084e-05),
    (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
     1.32494738004321644526e-04, -3.96022827877536812320e-06),
)  # fmt: skip
NEAR_ONE = (
    (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
     3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
     -2.16637559486879084300e-03),
    (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
     1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02),
)  # fmt: skip
MIDDLE = (
    (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01,
     -6.23753324503260060396e+01, -1.62396669462573470355e+02, -1.84605092906711035994e+02,
     -8.12874355063065934246e+01, -9.81432934416914548592e+00),
    (1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02,
     6.45387271733267880336e+02, 4.29008140027567833386e+02, 1.08635005541779435134e+02,
     6.57024977031928170135e+00, -6.04244152148580987438e-02),
)  # fmt: skip
FAR = (
    (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01,
     -1.60636384855821916062e+02, -6.37566443368389627722e+02, -1.02509513161107724954e+03,
     -4.83519191608651397019e+02),
    (1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03,
     3.19985821950859553908e+03, 2.55305040643316442583e+03, 4.74528541206955367215e+02,
     -2.24409524465858183362e+01),
)  # fmt: skip


_BLOCK = 1 << 13
"""Elements per block: all intermediate values of a block fit into L2."""


def erf(x: np.ndarray) -> np.ndarray:
    """Return the error function of every element, computed in float64, in the element type of ``x``."""
    flat = np.ascontiguousarray(x).reshape(-1)
    result = np.empty_like(flat)
    for first in range(0, flat.size, _BLOCK):
        result[first : first + _BLOCK] = _compute_block(flat[first : first + _BLOCK].astype(np.float64))
    return result.reshape(x.shape)


def _compute_block(x: np.ndarray) -> np.ndarray:
    size = np.minimum(np.abs(x), 6.0)  # The result is 1 from 6 on.
    square = size * size
    small = size + size * _ratio(square, NEAR_ZERO)
    near_one = ERX + _ratio(size - 1, NEAR_ONE)
    inverse = 1 / np.maximum(square, 1)
    tail = np.where(size < 1 / 0.35, _ratio(inverse, MIDDLE), _ratio(inverse, FAR))
    large = 1 - np.exp(-square - 0.5625 + tail) / np.maximum(size, 1)
    result: np.ndarray = np.copysign(np.where(size < 0.84375, small, np.where(size < 1.25, near_one, large)), x)
    return result


def _ratio(x: np.ndarray, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> np.ndarray:
    above, below = (_polynomial(x, part) for part in coefficients)
    above /= below
    return above


def _polynomial(x: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    """Evaluate a polynomial by Horner's rule, in place."""
    result = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result *= x
        result += coefficient
    return result
