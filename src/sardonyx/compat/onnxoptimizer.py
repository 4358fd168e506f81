"""Drop-in for ``onnxoptimizer`` 0.4.2, implemented by the rewriter.

``optimize`` runs passes by name, one after another as listed. Every pass of the original exists under its own name; a
pass that is wrong in the original is right here, and the reference of passes lists the differences. As in the original,
nothing is proved afterwards: ``sardonyx.optimize`` proves results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import onnx
import onnx_ir as ir
from onnx import ModelProto

from sardonyx import model as model_io
from sardonyx.compat.parameters import Parameters, Works
from sardonyx.compat.rewriting import rewrite_with_retries
from sardonyx.errors import InvalidModelError, OptionError
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.rewrite_context import Settings

__all__ = ["get_available_passes", "get_fuse_and_elimination_passes", "main", "optimize"]

_USAGE = "python -m sardonyx.compat.onnxoptimizer input_model.onnx output_model.onnx "

_FUSE_AND_ELIMINATION = (
    "nop",
    "eliminate_nop_cast",
    "eliminate_nop_dropout",
    "eliminate_nop_flatten",
    "extract_constant_to_initializer",
    "eliminate_consecutive_idempotent_ops",
    "eliminate_if_with_const_cond",
    "eliminate_nop_monotone_argmax",
    "eliminate_nop_pad",
    "eliminate_nop_concat",
    "eliminate_nop_split",
    "eliminate_nop_expand",
    "eliminate_shape_gather",
    "eliminate_slice_after_shape",
    "eliminate_nop_transpose",
    "fuse_add_bias_into_conv",
    "fuse_bn_into_conv",
    "fuse_consecutive_concats",
    "fuse_consecutive_log_softmax",
    "fuse_consecutive_reduce_unsqueeze",
    "fuse_consecutive_squeezes",
    "fuse_consecutive_transposes",
    "fuse_matmul_add_bias_into_gemm",
    "fuse_pad_into_conv",
    "fuse_pad_into_pool",
    "fuse_transpose_into_gemm",
    "fuse_concat_into_reshape",
    "eliminate_nop_reshape",
    "eliminate_nop_with_unit",
    "eliminate_common_subexpression",
    "fuse_qkv",
    "fuse_consecutive_unsqueezes",
    "eliminate_deadend",
    "eliminate_identity",
    "eliminate_shape_op",
    "fuse_consecutive_slices",
    "eliminate_unused_initializer",
    "eliminate_duplicate_initializer",
    "rewrite_where",
)
"""Default passes of ``onnxoptimizer.optimize``, in order."""


ORIGINAL_PASSES = (
    *_FUSE_AND_ELIMINATION,
    "adjust_add",
    "adjust_slice_and_matmul",
    "lift_lexical_references",
    "rename_input_output",
    "replace_einsum_with_matmul",
    "rewrite_input_dtype",
    "set_unique_name_for_nodes",
    "split_init",
    "split_predict",
)
"""The passes of onnxoptimizer."""

PARAMETERS: Parameters = {
    "model": Works(),
    "passes": Works("names of passes, of Sardonyx too; each runs once, to its own fixed point, in this order"),
    "fixed_point": Works("repeats all passes until none changes the model"),
}

DIFFERENCES = {
    "adjust_slice_and_matmul": "preserves a slice along an axis that the other factor has too; the original changes "
    "the result",
    "eliminate_common_subexpression": "never merges random operators",
    "eliminate_consecutive_idempotent_ops": "also Abs; Reshape only if the outer shape copies no size of its input",
    "eliminate_duplicate_initializer": "compares bits, which distinguishes 0.0 and −0.0; outputs keep their names",
    "eliminate_if_with_const_cond": "also conditions that sizes determine; names never clash",
    "eliminate_nop_cast": "also CastLike, and lossless chains of Casts",
    "eliminate_nop_dropout": "every Dropout outside training, for any ratio, at every operator set",
    "eliminate_nop_expand": "also before operators that broadcast by themselves",
    "eliminate_nop_monotone_argmax": "also ArgMin, the indices of TopK, and Sigmoid, Tanh, Softplus, Erf; by default "
    "only ArgMax of Exp, Softmax and LogSoftmax in single precision or better, where ties by rounding are rare",
    "eliminate_nop_with_unit": "keeps operators that a type or a broadcast requires",
    "eliminate_shape_op": "a negative size in a declared shape is open",
    "fuse_add_bias_into_conv": "also Sub, ConvTranspose and an existing bias; constants are folded; a bias that would "
    "need a Tile stays an Add",
    "fuse_bn_into_conv": "the new weight is computed in double precision, and never in training mode",
    "fuse_consecutive_log_softmax": "accepts a default axis; the original raises",
    "fuse_consecutive_slices": "also along the same axis, and with steps",
    "fuse_consecutive_transposes": "inverse permutations are removed, in any graph",
    "fuse_matmul_add_bias_into_gemm": "only if the bias broadcasts in one direction",
    "fuse_pad_into_conv": "also pads with axes",
    "fuse_pad_into_pool": "before a MaxPool only if the padding cannot be the maximum: the original replaces padding "
    "with 0 by the pool's own, −∞; never with ceil_mode",
    "fuse_qkv": "constant matrices are concatenated immediately; any number of them",
    "lift_lexical_references": "lists the captured values of bodies in the node's metadata, as JSON under `captures`, "
    "from IR version 10 on: the original's attribute `__control_inputs` is invalid ONNX",
    "rename_input_output": "refuses a name that is already used",
    "replace_einsum_with_matmul": "also a factor transposed, swapped or without batch axes; only if the summed sizes "
    "are known to be equal; without Transpose by default",
    "rewrite_input_dtype": "also readers in bodies; an input that is an output stays",
    "set_unique_name_for_nodes": "the name consists of the operator and its first output",
    "split_init": "weights that the other half reads are outputs too, so that both halves together are the model",
    "split_predict": "constants and weights become typed inputs; nodes that only these need are removed",
}
"""Differences from onnxoptimizer's passes of the same name. All passes remove nodes without readers."""


class ModelTypeError(OptionError, ValueError):
    """The model is not a ``ModelProto``; a ``ValueError``, as in the original."""


class PassTypeError(OptionError, TypeError):
    """The passes are not a sequence of names; a ``TypeError``, as in the original."""


class UnknownPassError(OptionError, RuntimeError):
    """Unknown pass; a ``RuntimeError``, as in the original."""


class UndefinedInputError(InvalidModelError, IndexError):
    """A node reads an undefined tensor; an ``IndexError``, as in the original."""


def get_available_passes() -> list[str]:
    """Return the names of all passes: onnxoptimizer's, and further passes of Sardonyx."""
    return pipeline.available_passes()


def get_fuse_and_elimination_passes() -> list[str]:
    """Return the default passes; ``sardonyx.optimize`` runs more."""
    return list(_FUSE_AND_ELIMINATION)


def optimize(model, passes=None, fixed_point=False):  # type: ignore[no-untyped-def]  # the signature of the original
    """Apply passes to a model.

    Args:
        model: The ``ModelProto``, which is not changed.
        passes: Names of passes, applied in this order; ``get_fuse_and_elimination_passes()`` if None.
        fixed_point: Repeat from the first pass until no pass changes the model; otherwise each pass runs once, to its
            own fixed point.

    Returns:
        The optimized ``ModelProto``.

    Raises:
        ModelTypeError: ``model`` is not a ``ModelProto`` (a ``ValueError``).
        PassTypeError: ``passes`` is not a sequence of strings (a ``TypeError``).
        UnknownPassError: A pass is unknown (a ``RuntimeError``).
        UndefinedInputError: A node reads an undefined tensor (an ``IndexError``).
        ModelTooLargeError: The result does not fit into a message.
    """
    names = get_fuse_and_elimination_passes() if passes is None else passes
    if not isinstance(model, ModelProto):
        raise ModelTypeError(f"Optimizer only accepts ModelProto, incorrect type: {type(model)}", where="model")
    if isinstance(names, (str, bytes)) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise PassTypeError("expected a list of names", where="passes")
    return model_io.to_proto(_optimize(model, names, bool(fixed_point)))


def main() -> None:
    """Run the command line of the original: ``INPUT OUTPUT [-p PASS …] [--fixed_point]``."""
    parser = argparse.ArgumentParser(prog="onnxoptimizer", usage=_USAGE, description="onnxoptimizer command-line api")
    parser.add_argument("input_model", nargs="?")
    parser.add_argument("output_model", nargs="?")
    parser.add_argument("--print_all_passes", action="store_true", help="print all available passes")
    parser.add_argument("--print_fuse_elimination_passes", action="store_true", help="print the default passes")
    parser.add_argument(
        "-p", "--passes", nargs="*", default=None, help="names of passes; the default passes if omitted"
    )
    parser.add_argument("--fixed_point", action="store_true", help="repeat the passes until none changes the model")
    args = parser.parse_args()
    if args.print_all_passes or args.print_fuse_elimination_passes:
        print(*(get_available_passes() if args.print_all_passes else get_fuse_and_elimination_passes()))
        sys.exit(0)
    if args.input_model is None or args.output_model is None:
        _exit(f"usage:{_USAGE}\nplease check arguments!")
    if not Path(args.input_model).exists():
        _exit(f"input file: {args.input_model} no exist!")
    onnx.checker.check_model(args.input_model)
    passes = get_fuse_and_elimination_passes() if args.passes is None else args.passes
    model = _optimize(args.input_model, passes, args.fixed_point)
    model_io.save(model, args.output_model)
    onnx.checker.check_model(args.output_model)


def _exit(message: str) -> NoReturn:
    print(message)
    sys.exit(1)


def _optimize(source: ModelProto | str, passes: Sequence[str], fixed_point: bool) -> ir.Model:
    known = set(get_available_passes())
    for name in passes:
        if name not in known:
            raise UnknownPassError(
                f"unknown pass {name}", where="passes", remedy="get_available_passes() lists all passes."
            )

    def fresh() -> ir.Model:
        model = model_io.load(source)
        _require_defined_inputs(model)
        return model

    def run(model: ir.Model, bounds: Settings) -> Engine:
        return pipeline.transform_in_order(model, passes, bounds, repeat=fixed_point)

    return rewrite_with_retries(fresh, run, Settings())[0]


def _require_defined_inputs(model: ir.Model) -> None:
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for node in graph.all_nodes():
            for value in node.inputs:
                if value is not None and not _is_defined(value):
                    raise UndefinedInputError(
                        f"Input {value.name} is undefined!", where=f"node '{node.name}' ({node.op_type})"
                    )


def _is_defined(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


if __name__ == "__main__":
    main()
