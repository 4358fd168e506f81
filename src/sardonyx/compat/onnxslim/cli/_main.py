"""The command line of onnxslim."""

from __future__ import annotations

import argparse
import sys

from sardonyx.compat.onnxslim.slimming import OPTIMIZATIONS
from sardonyx.compat.onnxslim.slimming import slim as slim

_FLAGS = ("model_check", "no_shape_infer", "inspect", "dump_to_disk", "save_as_external_data", "verbose")
_LISTS = ("input_shapes", "inputs", "outputs", "skip_fusion_patterns", "model_check_inputs")


def main() -> int:
    """Slim the model on the command line, with the options of ``slim``."""
    parser = argparse.ArgumentParser("onnxslim", description="Slim an ONNX model.")
    parser.add_argument("input_model", nargs="+", help="the model; with --inspect, models")
    for name in _FLAGS:
        parser.add_argument(f"--{name.replace('_', '-')}", f"--{name}", action="store_true")
    for name in _LISTS:
        parser.add_argument(f"--{name.replace('_', '-')}", f"--{name}", nargs="+")
    parser.add_argument("--skip-optimizations", "--skip_optimizations", nargs="+", choices=list(OPTIMIZATIONS))
    parser.add_argument("--size-threshold", "--size_threshold", type=int)
    parser.add_argument("--dtype", choices=["fp16", "fp32"])
    options = vars(parser.parse_args(sys.argv[1:]))
    models = options.pop("input_model")
    if options["dump_to_disk"] and not options["inspect"]:
        parser.error("dump_to_disk can only be used with --inspect")
    if options["inspect"]:
        slim(models, **options)
        return 0
    if len(models) > 2:
        parser.error("expected a model and the path of the result")
    slim(*models, **options)
    return 0
