"""The command line of onnxsim."""

from __future__ import annotations

import argparse
import sys

from sardonyx.compat.onnxsim.simplification import simplify


def main() -> None:
    """Simplify the model on the command line, with the common options of onnxsim."""
    parser = argparse.ArgumentParser("onnxsim", description="Simplify an ONNX model.")
    parser.add_argument("input_model")
    parser.add_argument("output_model")
    parser.add_argument("check_n", nargs="?", type=int, default=0, help="number of comparisons on random inputs")
    parser.add_argument("--overwrite-input-shape", nargs="+", default=[], metavar="NAME:1,3,224,224")
    parser.add_argument("--test-input-shape", nargs="+", default=[], metavar="NAME:1,3,224,224")
    parser.add_argument("--skip-optimization", nargs="*", metavar="PASS", help="all passes if none is named")
    parser.add_argument("--enable-optimization", nargs="+", metavar="PASS")
    parser.add_argument("--skip-constant-folding", action="store_true")
    parser.add_argument("--skip-fuse-bn", action="store_true")
    parser.add_argument("--mutable-initializer", action="store_true")
    parser.add_argument("--unused-output", nargs="+")
    parser.add_argument("--check-rtol", type=float, default=1e-4)
    parser.add_argument("--check-atol", type=float, default=1e-5)
    parser.add_argument("--save-as-external-data", action="store_true")
    args = parser.parse_args(sys.argv[1:])
    _, is_equal = simplify(
        args.input_model,
        check_n=args.check_n,
        perform_optimization=args.skip_optimization != [],
        skipped_optimizers=args.skip_optimization,
        extra_optimizers=args.enable_optimization,
        skip_fuse_bn=args.skip_fuse_bn,
        skip_constant_folding=args.skip_constant_folding,
        overwrite_input_shapes=_shapes(parser, args.overwrite_input_shape),
        test_input_shapes=_shapes(parser, args.test_input_shape),
        mutable_initializer=args.mutable_initializer,
        unused_output=args.unused_output,
        check_rtol=args.check_rtol,
        check_atol=args.check_atol,
        output_path=args.output_model,
        external_data_threshold="0B" if args.save_as_external_data else "100MB",
    )
    if not is_equal:
        sys.exit("Check failed. Please be careful to use the simplified model.")


def _shapes(parser: argparse.ArgumentParser, texts: list[str]) -> dict[str | None, list[int]] | None:
    """Return shapes by name; one shape without a name is that of the only input."""
    try:
        pairs = [text.rpartition(":") for text in texts]
        return {name or None: [int(size) for size in sizes.split(",")] for name, _, sizes in pairs} or None
    except ValueError:
        parser.error(f"expected NAME:1,3,224,224, got {' '.join(texts)}")
