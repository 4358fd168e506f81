"""Delivery of log messages to a callback."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sardonyx.compat.onnxruntime.errors import Fail
from sardonyx.compat.onnxruntime.options import defaults
from sardonyx.runtime.options import SEVERITIES

Callback = Callable[[int, str, str, str, str], object]
"""Function of severity (0 all to 4 fatal), category, session name, code location and message."""

_log = logging.getLogger("sardonyx")


def set_default_logger_severity(severity: int) -> None:
    """Set the default severity from which sessions log: 0 all, 2 warnings, 4 fatal.

    Raises:
        Fail: The severity is outside 0 to 4.
    """
    if severity not in range(5):
        raise Fail(f"Invalid severity level: expected 0 to 4, got {severity}.")
    defaults.severity = int(severity)


def set_default_logger_callback(callback: Callback | None, severity: int = 2) -> None:
    """Send log messages to a callback instead of the handlers of ``logging``; None restores the handlers.

    Messages during the callback go to the handlers of ``logging``, and so does a message for which the callback raises;
    ``logging.Handler.handleError`` reports the exception.

    Args:
        callback: Called on the logging thread, with severity, category, session name (empty: messages have none), code
            location, and message.
        severity: As for :func:`set_default_logger_severity`; checked but not set without a callback.

    Raises:
        Fail: The severity is outside 0 to 4, or the callback is not callable.
    """
    if callback is not None and not callable(callback):
        raise Fail(f"The callback must be callable or None, got {type(callback).__name__}.")
    if severity not in range(5):
        raise Fail(f"Invalid severity level: expected 0 to 4, got {severity}.")
    for handler in [entry for entry in _log.handlers if isinstance(entry, _CallbackHandler)]:
        _log.removeHandler(handler)
    _log.propagate = callback is None
    _log.setLevel(logging.NOTSET if callback is None else SEVERITIES[severity])
    if callback is not None:
        set_default_logger_severity(severity)
        _log.addHandler(_CallbackHandler(callback))


class _CallbackHandler(logging.Handler):
    """Handler that passes records to a callback."""

    def __init__(self, callback: Callback) -> None:
        super().__init__()
        self._callback = callback
        self._thread = threading.local()

    def createLock(self) -> None:
        # A callback may wait for another thread that logs: a lock would be a deadlock.
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self._thread, "calls", False):
            logging.root.callHandlers(record)
            return
        severity = sum(record.levelno >= level for level in SEVERITIES[1:])
        location = f"{record.filename}:{record.lineno} {record.funcName}"
        self._thread.calls = True
        try:
            self._callback(severity, record.name, "", location, record.getMessage())
        except Exception:
            self.handleError(record)
            logging.root.callHandlers(record)
        finally:
            self._thread.calls = False
