"""The messages of MXNet's errors."""

from __future__ import annotations

PREFIX = "MXNetError: "


def error_message(error: BaseException) -> str:
    """Returns the message of an error, without the stack trace or the arguments that MXNet puts before it."""
    if isinstance(error, OSError) and error.strerror and not error.filename:
        return error.strerror  # raised with a message beside its number
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = [line.split(PREFIX, 1)[1] for line in lines if PREFIX in line]
    return (messages or lines or [repr(error)])[0]
