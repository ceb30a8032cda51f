"""MXNet's errors as sentences."""

from __future__ import annotations

MARK = "MXNetError: "


def sentence(error: BaseException) -> str:
    """What an error says. MXNet puts a stack trace or a list of arguments before what went wrong."""
    if isinstance(error, OSError) and error.strerror and not error.filename:
        return error.strerror  # of one that was given a sentence beside its number
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    marked = [line.split(MARK, 1)[1] for line in lines if MARK in line]
    return (marked or lines or [repr(error)])[0]
