"""Finds the rank that stalls a job from the records of the rank status store, and words the error messages.

Pure functions; all times are in seconds.
"""

from collections.abc import Sequence

from .rank_status import Record

SHOWN = 8  # ranks listed in a message


def missing(records: Sequence[Record], size: int) -> list[int]:
    """Returns the ranks without a record."""
    return sorted(set(range(size)) - {record.rank for record in records})


def longest_idle(records: Sequence[Record]) -> Record | None:
    """Returns the record of the rank that the others wait for: outside of collectives, and idle the longest."""
    busy = [record for record in records if not record.waiting and not record.ended]
    return min(busy, key=lambda record: (record.progress_time, record.rank)) if busy else None


def exited_message(record: Record) -> str:
    """Returns the message for a process that ended without reporting an error."""
    return f"{_who(record)} exited without reporting an error (killed?); it was last seen {_where(record)}"


def silent_message(hosts: Sequence[str], host_of: Sequence[str], seconds: float, num_update: int) -> str:
    """Returns the message for hosts that are silent, with the ranks of the first one.

    Args:
        hosts: names of the silent hosts.
        host_of: host name of each rank.
        seconds: time without an answer.
        num_update: last update of the reporting rank; -1 before training.
    """
    first = f"{hosts[0]} ({format_ranks([rank for rank, host in enumerate(host_of) if host == hosts[0]])})"
    others = f" and from {', '.join(hosts[1:])}" if hosts[1:] else ""
    return (
        f"nothing received from host {first}{others} for {seconds:.0f} s{at_update(num_update)}: the host or the "
        "network to it is down; to check it now, run bash setup-utils/check.sh --hosts ..."
    )


def no_progress_message(
    records: Sequence[Record], size: int, now: float, timeout: float, stopped: Sequence[int]
) -> str:
    """Returns the message for a job without progress.

    Args:
        records: the records of the job.
        size: number of ranks.
        now: current time since boot.
        timeout: time without progress.
        stopped: ranks that SIGSTOP or a debugger has stopped.
    """
    halted = [record for record in records if record.rank in stopped]
    stalled = halted[0] if halted else longest_idle(records)
    waits = [f"rank {each.rank} in {each.doing}" for each in records if each.waiting and each is not stalled]
    waiting = ", ".join(waits[:SHOWN]) + (f" and {len(waits) - SHOWN} more" if len(waits) > SHOWN else "")
    if stalled is not None:
        signal = " and is stopped (SIGSTOP or a debugger)" if halted else ""
        seconds = now - stalled.progress_time
        others = f"; waiting for it: {waiting}" if waiting else ""
        return f"{_who(stalled)} made no progress for {seconds:.0f} s{signal}: it is {_where(stalled)}{others}"
    absent = missing(records, size)
    if absent:
        unknown = f"the status of {format_ranks(absent)} is not visible here"
        return f"{unknown}, and other ranks have waited for {timeout:.0f} s: {waiting}"
    return f"the ranks have waited in different collectives for {timeout:.0f} s: {waiting}"


def not_started_message(records: Sequence[Record], size: int, seconds: float) -> str:
    """Returns the message for a job whose ranks are not connected ``seconds`` after its start or last progress."""
    absent = missing(records, size)
    if absent:
        return f"{format_ranks(absent)} of {size} did not start within {seconds:.0f} s"
    for late in records:
        if not late.waiting:
            return f"{_who(late)} did not join the other ranks: no progress for {seconds:.0f} s, it is {_where(late)}"
    reach = "check that their hosts can reach each other"
    return f"the {size} ranks did not connect to each other within {seconds:.0f} s: {reach}"


def format_ranks(ranks: Sequence[int]) -> str:
    """Returns ``rank 3`` or ``ranks 3, 4``, with at most SHOWN numbers."""
    shown = ", ".join(map(str, ranks[:SHOWN])) + (" ..." if len(ranks) > SHOWN else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _who(record: Record) -> str:
    return f"rank {record.rank} (process {record.pid} on {record.host})"


def at_update(num_update: int) -> str:
    """Returns `` at update 7``; "" before training, when ``num_update`` is -1."""
    return f" at update {num_update}" if num_update >= 0 else ""


def _where(record: Record) -> str:
    return f"{at_update(record.num_update)}, in {record.doing}".lstrip(" ,")
