"""Settings of traces and of the log, which clients may change: the trace and logging extensions."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from sardonyx.errors import RequestError
from sardonyx.serve.observation.traces import Traces
from sardonyx.serve.protocol.datatypes import shortened

_KINDS = {bool: "true or false", int: "a number from 0 to 2³² - 1", str: "a text"}

_log = logging.getLogger("sardonyx.serve")


class Settings:
    """The settings of one process.

    Args:
        traces: Records spans of requests; None for no traces.
    """

    def __init__(self, traces: Traces | None) -> None:
        self._traces = traces
        self._trace: dict[str, Any] = {
            "trace_level": ["OFF" if traces is None else "TIMESTAMPS"], "trace_rate": "1",
            "trace_mode": "opentelemetry",
        }  # fmt: skip
        self._log: dict[str, Any] = {
            "log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
            "log_format": "default",
        }  # fmt: skip

    def trace(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the trace settings, after changes of some; None restores a setting's first value.

        Raises:
            RequestError: A setting is unknown, has an invalid value, or names a file; all settings stay as they are.
        """
        settings = dict(self._trace)
        for key, value in changes.items():
            if key not in settings:
                raise RequestError(f"unknown trace setting {shortened(key)}.")
            if key == "trace_mode" and value not in (None, settings[key]):
                raise RequestError("the setting is fixed when the server starts.", kind="unsupported", where=key)
            if key == "trace_level" and self._traces is None and _trace_value(key, value) != ["OFF"]:
                raise RequestError(
                    "traces are off.", kind="unsupported", where=key, remedy="Start the server with --trace."
                )
            settings[key] = _trace_value(key, value)
        self._trace = settings
        if self._traces is not None:
            self._traces.is_on = "TIMESTAMPS" in self._trace["trace_level"]
            self._traces.rate = max(1, int(self._trace["trace_rate"]))
        return dict(self._trace)

    def log(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the log settings, after changes of some.

        Raises:
            RequestError: A setting is unknown, has another type, or names a file; all settings stay as they are.
        """
        settings = dict(self._log)
        for key, value in changes.items():
            if key not in settings:
                raise RequestError(f"unknown log setting {shortened(key)}.")
            current = settings[key]
            if type(value) is not type(current) or (isinstance(value, int) and not 0 <= value < 2**32):
                raise RequestError(f"expected {_KINDS[type(current)]}, got {shortened(value)}.", where=key)
            if key in ("log_file", "log_format") and value != current:
                raise RequestError("the setting is fixed when the server starts.", kind="unsupported", where=key)
            settings[key] = value
        self._log = settings
        if changes:
            self._apply_levels()
        return dict(self._log)

    def _apply_levels(self) -> None:
        settings = self._log
        levels = (
            (settings["log_verbose_level"] > 0, "DEBUG"), (settings["log_info"], "INFO"),
            (settings["log_warning"], "WARNING"), (settings["log_error"], "ERROR"),
        )  # fmt: skip
        _log.setLevel(next((level for is_on, level in levels if is_on), "CRITICAL"))


def _trace_value(key: str, value: Any) -> Any:
    if value is None:
        return {"trace_level": ["OFF"], "trace_rate": "1"}.get(key, "opentelemetry")
    if key == "trace_level":
        levels = value if isinstance(value, list) else [value]
        if not levels or not set(map(str, levels)) <= {"OFF", "TIMESTAMPS"}:
            raise RequestError(f"expected OFF or TIMESTAMPS, got {shortened(value)}.", where=key)
        return levels
    if key == "trace_rate":
        text = str(value[0] if isinstance(value, list) and len(value) == 1 else value)
        if not re.fullmatch(r"\d{1,9}", text):
            raise RequestError(f"expected a number, got {shortened(value)}.", where=key)
        return text
    return value
