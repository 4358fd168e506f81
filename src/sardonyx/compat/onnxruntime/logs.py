"""Messages of sessions, given to a function of the caller's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sardonyx.compat.onnxruntime.errors import Fail
from sardonyx.compat.onnxruntime.options import defaults
from sardonyx.runtime.options import SEVERITIES

Callback = Callable[[int, str, str, str, str], object]
"""Takes the severity (0 all to 4 fatal), the category, the session's name, the place in the code and the message."""

_log = logging.getLogger("sardonyx")


def set_default_logger_severity(severity: int) -> None:
    """Let sessions log from this severity on, unless they say otherwise: 0 all, 2 warnings, 4 fatal.

    Raises:
        Fail: It is none of 0 to 4.
    """
    if severity not in range(5):
        raise Fail(f"Invalid severity level {severity}: 0 to 4 are there.")
    defaults.severity = int(severity)


def set_default_logger_callback(callback: Callback | None, severity: int = 2) -> None:
    """Let a function take what is logged, in place of the handlers of ``logging``; none for these again.

    What is logged while the function runs goes to the handlers of ``logging``, and so does a message for which it
    raises; ``logging.Handler.handleError`` reports that.

    Args:
        callback: Called on the thread that logs, with the severity, the category, the session's name (empty: messages
            here bear none), the place in the code, and the message.
        severity: What :func:`set_default_logger_severity` takes; looked at and not set where there is no function.

    Raises:
        Fail: The severity is none of 0 to 4, or what is given cannot be called.
    """
    if callback is not None and not callable(callback):
        raise Fail(f"The callback must be callable or None; {type(callback).__name__} is neither.")
    if severity not in range(5):
        raise Fail(f"Invalid severity level {severity}: 0 to 4 are there.")
    for handler in [each for each in _log.handlers if isinstance(each, _Given)]:
        _log.removeHandler(handler)
    _log.propagate = callback is None
    _log.setLevel(logging.NOTSET if callback is None else SEVERITIES[severity])
    if callback is not None:
        set_default_logger_severity(severity)
        _log.addHandler(_Given(callback))


class _Given(logging.Handler):
    """Gives records to a function."""

    def __init__(self, callback: Callback) -> None:
        super().__init__()
        self._callback = callback
        self._thread = threading.local()

    def createLock(self) -> None:
        # A function that waits for another thread which logs must not keep that from logging.
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self._thread, "calls", False):
            logging.root.callHandlers(record)
            return
        severity = sum(record.levelno >= level for level in SEVERITIES[1:])
        place = f"{record.filename}:{record.lineno} {record.funcName}"
        self._thread.calls = True
        try:
            self._callback(severity, record.name, "", place, record.getMessage())
        except Exception:
            self.handleError(record)
            logging.root.callHandlers(record)
        finally:
            self._thread.calls = False
