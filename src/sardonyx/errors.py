"""Every error that Sardonyx raises on purpose, in one tree.

Each message says what was wrong, where (node, tensor, file) and what to do. Catching
``SardonyxError`` catches them all; the command line prints them without a traceback
and exits with the error's ``exit_code``.
"""

from __future__ import annotations


class SardonyxError(Exception):
    """Base class of all errors raised on purpose.

    Args:
        problem: What was wrong, in one sentence.
        where: The node, tensor or file concerned, as the user would name it.
        remedy: What to do about it.
    """

    exit_code = 1

    def __init__(self, problem: str, *, where: str = "", remedy: str = "") -> None:
        self.problem = problem
        self.where = where
        self.remedy = remedy
        message = f"{where}: {problem}" if where else problem
        if remedy and not message.endswith((".", "!", "?")):
            message += "."
        super().__init__(f"{message} {remedy}" if remedy else message)


class ModelFileError(SardonyxError):
    """A file cannot be read as, or written from, an ONNX model (missing, truncated, malformed, hostile)."""

    exit_code = 2


class ExternalDataError(ModelFileError):
    """External data leaves the model's folder, does not exist, or does not hold the bytes claimed."""


class TextFormatError(ModelFileError):
    """A text form of a model does not parse; ``where`` holds line and column."""


class InvalidModelError(SardonyxError):
    """The model breaks the ONNX specification (cycle, undefined value, wrong type, recursive function)."""


class ModelTooLargeError(SardonyxError):
    """The model does not fit where it was asked to go (a protobuf message holds at most 2 GB)."""


class TypeMismatchError(InvalidModelError):
    """An operator is given an element type, a rank or a kind of value that it does not take."""


class FeedError(SardonyxError):
    """Inputs of a session do not match the model: a missing or unknown input, a wrong type."""


class EditError(SardonyxError):
    """An edit of a live model cannot be made: no such node, a name that is taken, a tensor that is still read."""


class ExecutionError(SardonyxError):
    """A node cannot compute its result from these inputs: an index out of range, a division by zero."""


class ResourceError(SardonyxError):
    """A limit was reached: memory, time, or the number of loop iterations."""


class UnsupportedError(SardonyxError):
    """Something legal that this operation cannot do; names the node and what can be done instead."""


class NeedsValueError(UnsupportedError):
    """A graph cannot be traced before a value is known: a rank, an axis or a shape that is computed from data.

    Args:
        problem: See :class:`SardonyxError`.
        value: The Core value that must be known.
    """

    def __init__(self, problem: str, *, value: object = None, where: str = "", remedy: str = "") -> None:
        self.value = value
        super().__init__(problem, where=where, remedy=remedy)


class OpsetConversionError(UnsupportedError):
    """A node has no equal in the operator set asked for; names the node."""


class ShapeError(SardonyxError):
    """Shapes contradict each other, or an override does not fit the model; names both places."""


class SizeLimitError(ShapeError, UnsupportedError):
    """An expression over symbolic sizes passes the limits: legal, and more than is told of a size."""


class OptionError(SardonyxError):
    """An argument or option has a value that is not possible; names the option."""

    exit_code = 2


class RuleError(SardonyxError):
    """A rewrite rule is written wrongly (unknown operator, unbound variable), or its result is illegal."""


class EvaluationError(SardonyxError):
    """No evaluator here can run the model, or running it failed; holds each evaluator's reason."""


class VerificationError(SardonyxError):
    """The result could not be proved equal to the original (``--strict``)."""

    exit_code = 3


class MissingDependencyError(SardonyxError):
    """An optional package is needed and not installed; the message names the extra to install."""

    exit_code = 2
