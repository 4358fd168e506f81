"""``python -m onnxruntime.quantization.preprocess``: preparation of a model file for quantization."""

from __future__ import annotations

import argparse

from sardonyx.compat.onnxruntime.quantization.shape_inference import quant_pre_process


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description="Optimize a model and infer its shapes, ahead of quantization.")
    parser.add_argument("--input", required=True, help="path of the model")
    parser.add_argument("--output", required=True, help="path of the result")
    for name, text in (
        ("skip_optimization", "keep all nodes"),
        ("skip_onnx_shape", "infer no shapes, together with the next option"),
        ("skip_symbolic_shape", "infer no shapes, together with the option before"),
        ("auto_merge", "no effect"),
        ("guess_output_rank", "no effect"),
        ("save_as_external_data", "write weights to another file"),
        ("all_tensors_to_one_file", "write all weights to one file"),
    ):
        value = {"type": _boolean, "nargs": "?", "const": True, "default": False}
        parser.add_argument(f"--{name}", help=text, **value)  # type: ignore[arg-type]
    parser.add_argument("--int_max", type=int, default=2**31 - 1, help="no effect")
    parser.add_argument("--verbose", type=int, default=0, help="no effect")
    parser.add_argument("--external_data_location", default=None, help="name of the file of weights")
    parser.add_argument("--external_data_size_threshold", type=int, default=1024, help="bytes of an external weight")
    return parser.parse_args()


def _boolean(text: str) -> bool:
    return text.lower() in ("1", "true", "yes")


if __name__ == "__main__":
    arguments = vars(parse_arguments())
    quant_pre_process(arguments.pop("input"), arguments.pop("output"), **arguments)
