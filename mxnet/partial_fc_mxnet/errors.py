"""MXNet's errors as sentences."""

from __future__ import annotations


def sentence(error: BaseException) -> str:
    """What an error says. MXNet puts a stack trace of its own before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Traceback", "Stack trace", "[bt]", "File "))]
    return (told or lines or [repr(error)])[0].replace("MXNetError: ", "", 1)
