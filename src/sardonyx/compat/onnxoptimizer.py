"""The names of ``onnxoptimizer`` 0.4.2, answered by the rewriter.

``optimize`` runs passes by name, one after another as listed. Every pass of that package exists
here under its own name; where its meaning is wrong there, it is right here, and the reference
of passes says how they differ. As in that package nothing is proved afterwards: ``sardonyx.optimize``
does that.
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
from sardonyx.compat.rewriting import rewritten
from sardonyx.errors import InvalidModelError, OptionError
from sardonyx.rewrite import pipeline
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
"""The passes that ``onnxoptimizer.optimize`` runs when none are named, in its order."""


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
"""The passes that onnxoptimizer has."""

PARAMETERS: Parameters = {
    "model": Works(),
    "passes": Works("names of passes, of this package too; each runs once, to a fixed point of its own, in this order"),
    "fixed_point": Works("begins again until no pass changes anything"),
}

DIFFERENCES = {
    "adjust_slice_and_matmul": "leaves alone a slice along an axis along which the other factor has a size too, "
    "where the original changes the result",
    "eliminate_common_subexpression": "never merges random operators",
    "eliminate_consecutive_idempotent_ops": "also Abs; Reshape only where the outer shape takes no size from its input",
    "eliminate_duplicate_initializer": "compares bits, so that 0.0 and −0.0 stay apart; outputs keep their names",
    "eliminate_if_with_const_cond": "also where sizes decide the condition; names never clash",
    "eliminate_nop_cast": "also CastLike, and Casts in a row that lose nothing",
    "eliminate_nop_dropout": "every Dropout outside training, whatever its ratio, at every operator set",
    "eliminate_nop_expand": "also before operators that broadcast by themselves",
    "eliminate_nop_monotone_argmax": "also ArgMin, the indices of TopK, and Sigmoid, Tanh, Softplus, Erf; by default "
    "only ArgMax of Exp, Softmax and LogSoftmax in single precision or better, where roundings hardly ever meet",
    "eliminate_nop_with_unit": "keeps what a type or a broadcast needs",
    "eliminate_shape_op": "a negative size in a declared shape is an open one",
    "fuse_add_bias_into_conv": "also Sub, ConvTranspose and a bias that is there; constants are folded; a bias that "
    "would need a Tile stays an Add",
    "fuse_bn_into_conv": "the new weight is computed, in double precision, and never in training mode",
    "fuse_consecutive_log_softmax": "takes an axis left to its default, where the original raises",
    "fuse_consecutive_slices": "also along the same axis, and with steps",
    "fuse_consecutive_transposes": "permutations that undo each other leave nothing, in any graph",
    "fuse_matmul_add_bias_into_gemm": "only where the bias broadcasts one way",
    "fuse_pad_into_conv": "also amounts given by axes",
    "fuse_pad_into_pool": "before a MaxPool only where the padding cannot be the maximum: the original replaces "
    "padding with 0 by the pool's own, which is −∞; never with ceil_mode",
    "fuse_qkv": "matrices that are constants are joined at once; any number of them",
    "lift_lexical_references": "lists what bodies read in the node's metadata, as JSON under `captures`, from IR "
    "version 10 on: the attribute `__control_inputs` of the original is no valid ONNX",
    "rename_input_output": "refuses a name that something else has",
    "replace_einsum_with_matmul": "also a factor transposed, swapped or without batch axes; only where the sizes "
    "summed over are known to be equal; without Transpose by default",
    "rewrite_input_dtype": "readers in bodies too; an input that is an output stays",
    "set_unique_name_for_nodes": "the name tells the operator and its first output",
    "split_init": "weights that the other half reads are outputs too, so that both halves make up the model",
    "split_predict": "constants and weights become inputs that have types; what only they need is gone",
}
"""Passes that differ from onnxoptimizer's of the same name, and how. All leave out nodes that die with a rewrite."""


class ModelTypeError(OptionError, ValueError):
    """The model is no ``ModelProto``; a ``ValueError``, as there."""


class PassTypeError(OptionError, TypeError):
    """The passes are no sequence of names; a ``TypeError``, as there."""


class UnknownPassError(OptionError, RuntimeError):
    """A pass is unknown; a ``RuntimeError``, as there."""


class UndefinedInputError(InvalidModelError, IndexError):
    """A node reads a tensor that nothing defines; an ``IndexError``, as there."""


def get_available_passes() -> list[str]:
    """Names of all passes: those of onnxoptimizer, and those that it does not have."""
    return pipeline.available_passes()


def get_fuse_and_elimination_passes() -> list[str]:
    """The passes that run when none are named; ``sardonyx.optimize`` runs more of them."""
    return list(_FUSE_AND_ELIMINATION)


def optimize(model, passes=None, fixed_point=False):  # type: ignore[no-untyped-def]  # the signature of the original
    """Apply passes to a model.

    Args:
        model: The ``ModelProto``; it is left as it is.
        passes: Names of passes, applied in this order; ``get_fuse_and_elimination_passes()`` when None.
        fixed_point: Whether to start again from the first pass until none changes anything; otherwise
            each pass is run once, to a fixed point of its own.

    Returns:
        The optimized ``ModelProto``.

    Raises:
        ModelTypeError: ``model`` is no ``ModelProto`` (a ``ValueError``).
        PassTypeError: ``passes`` is no sequence of strings (a ``TypeError``).
        UnknownPassError: there is no such pass (a ``RuntimeError``).
        UndefinedInputError: a node reads a tensor that nothing defines (an ``IndexError``).
        ModelTooLargeError: the result does not fit into a message.
    """
    names = get_fuse_and_elimination_passes() if passes is None else passes
    if not isinstance(model, ModelProto):
        raise ModelTypeError(f"Optimizer only accepts ModelProto, incorrect type: {type(model)}", where="model")
    if isinstance(names, (str, bytes)) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise PassTypeError("is no sequence of names", where="passes", remedy="Give a list of strings.")
    return model_io.to_proto(_optimized(model, names, bool(fixed_point)))


def main() -> None:
    """The command line of the original: ``INPUT OUTPUT [-p PASS …] [--fixed_point]``."""
    parser = argparse.ArgumentParser(prog="onnxoptimizer", usage=_USAGE, description="onnxoptimizer command-line api")
    parser.add_argument("input_model", nargs="?")
    parser.add_argument("output_model", nargs="?")
    parser.add_argument("--print_all_passes", action="store_true", help="print all available passes")
    parser.add_argument("--print_fuse_elimination_passes", action="store_true", help="print the passes run by default")
    parser.add_argument(
        "-p", "--passes", nargs="*", default=None, help="names of passes; those run by default if not given"
    )
    parser.add_argument("--fixed_point", action="store_true", help="repeat the passes until none changes anything")
    args = parser.parse_args()
    if args.print_all_passes or args.print_fuse_elimination_passes:
        print(*(get_available_passes() if args.print_all_passes else get_fuse_and_elimination_passes()))
        sys.exit(0)
    if args.input_model is None or args.output_model is None:
        _give_up(f"usage:{_USAGE}\nplease check arguments!")
    if not Path(args.input_model).exists():
        _give_up(f"input file: {args.input_model} no exist!")
    onnx.checker.check_model(args.input_model)
    passes = get_fuse_and_elimination_passes() if args.passes is None else args.passes
    model = _optimized(args.input_model, passes, args.fixed_point)
    model_io.save(model, args.output_model)
    onnx.checker.check_model(args.output_model)


def _give_up(message: str) -> NoReturn:
    print(message)
    sys.exit(1)


def _optimized(source: ModelProto | str, passes: Sequence[str], fixed_point: bool) -> ir.Model:
    known = set(get_available_passes())
    for name in passes:
        if name not in known:
            raise UnknownPassError(
                f"pass {name} is unknown", where="passes", remedy="get_available_passes() lists them."
            )

    def fresh() -> ir.Model:
        model = model_io.load(source)
        _require_defined_inputs(model)
        return model

    model, _ = rewritten(
        fresh, lambda held, bounds: pipeline.transform_in_order(held, passes, bounds, repeat=fixed_point), Settings()
    )
    return model


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
