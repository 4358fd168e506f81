"""The exceptions of Sardonyx, in one tree.

Each message states the problem, the location (node, tensor, file) and the remedy. The base class of all is
``SardonyxError``; the command line prints these errors without a traceback and exits with the error's ``exit_code``.
"""

from __future__ import annotations


class SardonyxError(Exception):
    """Base class of the errors of Sardonyx.

    Args:
        problem: The problem in one sentence: the expected and the actual state.
        where: Node, tensor or file, by the user's name for it.
        remedy: Instruction to the user, in the imperative.
    """

    exit_code = 1

    def __init__(self, problem: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__()
        self.reword(problem, where=where, remedy=remedy)

    def reword(self, problem: str, *, where: str, remedy: str) -> None:
        """Replace the parts of the message, e.g. to name options as a command line spells them."""
        self.problem = problem
        self.where = where
        self.remedy = remedy
        message = f"{where}: {self.problem}" if where else self.problem
        if remedy and not message.endswith((".", "!", "?")):
            message += "."
        self.args = (f"{message} {remedy}" if remedy else message,)


class ModelFileError(SardonyxError):
    """A model file cannot be read or written (missing, truncated, malformed, hostile)."""

    exit_code = 2


class ExternalDataError(ModelFileError):
    """External data is outside of the model's folder, is missing, or is shorter than declared."""


class EncryptionError(ModelFileError):
    """An encrypted file or a key cannot be used: no key opens the file, or a part was changed, cut or exchanged."""


class LicenceError(EncryptionError):
    """The licence of an encrypted model does not permit this use: missing, forged, expired, for another machine."""


class SignatureError(ModelFileError):
    """A model is not signed by a trusted key, or a file that signing needs cannot be read."""


class SignatureMismatchError(SignatureError):
    """A signature was read and does not hold: malformed, by another key, or for other contents."""

    exit_code = 1


class TextFormatError(ModelFileError):
    """The text form of a model has a syntax error; ``where`` contains line and column."""


class InvalidModelError(SardonyxError):
    """The model breaks the ONNX specification (cycle, undefined value, wrong type, recursive function)."""


class ModelTooLargeError(SardonyxError):
    """The model exceeds a limit of the requested format (a protobuf message has at most 2 GB)."""


class TypeMismatchError(InvalidModelError):
    """An operand has an element type, a rank or a kind of value that its operator does not accept."""


class DownloadError(SardonyxError):
    """A model of a hub cannot be obtained: unreachable, without a digest, another file than the pinned one, too large.

    Attributes:
        status: The status of the server's answer; 0 without one.
        challenge: The authentication that the server requests.
    """

    exit_code = 2
    status = 0
    challenge = ""


class FeedError(SardonyxError):
    """Inputs of a session do not match the model: a missing or unknown input, a wrong type."""

    exit_code = 2


class EditError(SardonyxError):
    """An edit of a live model is impossible: unknown node, name in use, tensor still read."""


class ExecutionError(SardonyxError):
    """A node has no result for its inputs, e.g. an index out of range or a division by zero."""


class ResourceError(SardonyxError):
    """A limit was reached: memory, time, or the number of loop iterations."""


class UnsupportedError(SardonyxError):
    """A legal request without an implementation; the message names the node and an alternative."""


class NeedsValueError(UnsupportedError):
    """Tracing needs the number of a value, e.g. a rank, an axis or a shape computed from data.

    Args:
        problem: See :class:`SardonyxError`.
        value: The required Core value.
    """

    def __init__(self, problem: str, *, value: object = None, where: str = "", remedy: str = "") -> None:
        self.value = value
        super().__init__(problem, where=where, remedy=remedy)


class OpsetConversionError(UnsupportedError):
    """A node has no equivalent in the requested operator set; the message names the node."""


class ShapeError(SardonyxError):
    """Shapes contradict each other, or an override does not match the model; the message names both."""


class SizeLimitError(ShapeError, UnsupportedError):
    """An expression over symbolic sizes is legal, but exceeds the limits on expressions."""


class OptionError(SardonyxError):
    """An argument or option has an invalid value; the message names the option."""

    exit_code = 2


class RuleError(SardonyxError):
    """A rewrite rule is invalid (unknown operator, unbound variable), or its result is illegal."""


class EvaluationError(SardonyxError):
    """No evaluator can run the model, or the run failed; the message contains each evaluator's reason."""


class ConversionError(SardonyxError):
    """A program of another framework has no model; the message names the operators and the user's source lines."""


class VerificationError(SardonyxError):
    """The result was not proved equal to the original (``--strict``)."""

    exit_code = 3


class RequestError(SardonyxError):
    """A server does not answer a request as the request asks.

    Args:
        problem: See :class:`SardonyxError`.
        kind: The kind of the refusal, a key of ``sardonyx.serve.protocol.refusals.REFUSALS``, which has the status of
            every protocol.
        where: See :class:`SardonyxError`.
        remedy: See :class:`SardonyxError`.
        retry_after: Seconds after which the client may repeat the request; None if repetition does not help.
    """

    def __init__(
        self,
        problem: str,
        *,
        kind: str = "invalid",
        where: str = "",
        remedy: str = "",
        retry_after: float | None = None,
    ) -> None:
        self.kind = kind
        self.retry_after = retry_after
        super().__init__(problem, where=where, remedy=remedy)


class PrivacyBudgetError(SardonyxError):
    """An answer would use more privacy than the budget of the client permits."""


class MissingDependencyError(SardonyxError):
    """A required optional package is not installed; the message names the extra."""

    exit_code = 2
