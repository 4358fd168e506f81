"""Convert the classifier of the package to float16, with the nodes in float32 that a tolerance needs.

python examples/half_precision.py
"""

from __future__ import annotations

import sardonyx
from sardonyx import demo
from sardonyx.compress.float16 import MixedPrecision


def main() -> MixedPrecision:
    result = sardonyx.auto_mixed_precision(
        demo.path("digits_classifier"), demo.inputs("digits_classifier"), tolerance=2e-3, keep_io_types=True
    )
    print(f"error {result.error:.1e} with {len(result.chosen)} nodes kept in float32, {len(result.trials)} trials")
    return result


if __name__ == "__main__":
    main()
