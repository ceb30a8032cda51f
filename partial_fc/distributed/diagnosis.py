"""Which rank of a job is to blame, and the sentence that says so, from what the ranks have left on the notice board.

Pure functions of records; times are seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from .rank_status import Record


def missing(records: Sequence[Record], size: int) -> list[int]:
    """The ranks without a record."""
    return sorted(set(range(size)) - {record.rank for record in records})


def stalled_rank(records: Sequence[Record]) -> Record | None:
    """The rank that the others wait for: of those that wait in no collective, the one that moved longest ago."""
    busy = [record for record in records if not record.waiting and not record.ended]
    return sorted(busy, key=lambda record: (record.moved, record.rank))[0] if busy else None


def gone_sentence(record: Record) -> str:
    """For a process that has ended without a word."""
    return f"{_who(record)} is gone without a word, killed perhaps: it stood {_where(record)}"


def unseen_sentence(rank: int, host: str) -> str:
    """For such a process of another host, of which this one sees no record."""
    return f"rank {rank} on {host} is gone without a word, killed perhaps"


def connection_sentence(rank: int, records: Sequence[Record]) -> str:
    """For a rank that has lost the connection to the others, of which none of its own host is gone."""
    mine = next((record for record in records if record.rank == rank), None)
    place = f" {_where(mine)}" if mine else ""
    elsewhere = [record for record in records if mine and record.host != mine.host]
    seen = stalled_rank(elsewhere)
    last = f"; {_who(seen)} was last seen {_where(seen)}" if seen else ""
    return f"rank {rank} lost the connection to the others{place}: one of another host is gone{last}"


def silent_sentence(hosts: Sequence[str], ranks: Sequence[int], seconds: float, num_update: int) -> str:
    """For hosts of which nothing has come for ``seconds``.

    Args:
        hosts: their names.
        ranks: of the first of them, as far as they can be seen.
        seconds: see above.
        num_update: the last update of the rank that tells; -1 before training.
    """
    first = hosts[0] + (f" ({_ranks(sorted(ranks))})" if ranks else "")
    others = f" and from {', '.join(hosts[1:])}" if hosts[1:] else ""
    update = f" at update {num_update}" if num_update >= 0 else ""
    return (
        f"nothing has come from host {first}{others} for {seconds:.0f} s{update}: it is down, or the network between. "
        "bash setup-utils/check.sh --hosts ... tells how it stands now"
    )


def still_sentence(records: Sequence[Record], size: int, now: float, patience: float, stopped: Sequence[int]) -> str:
    """For a job in which nothing has moved for ``patience`` seconds.

    Args:
        records: of all ranks that there are.
        size: how many there should be.
        now: the time.
        patience: see above.
        stopped: the ranks whose processes are held by SIGSTOP.
    """
    halted = [record for record in records if record.rank in stopped]
    blamed = halted[0] if halted else stalled_rank(records)
    waiting = [record for record in records if record.waiting and record is not blamed]
    if blamed is not None:
        held = " and is stopped (SIGSTOP or a debugger)" if halted else ""
        told = f"{_who(blamed)} has not moved for {now - blamed.moved:.0f} s{held}: it stands {_where(blamed)}"
        return told + (f"; {_waiting(waiting)} for it" if waiting else "")
    absent = missing(records, size)
    if absent:
        return f"{_ranks(absent)} cannot be seen from here, and {_waiting(waiting)} for {patience:.0f} s"
    return f"the ranks wait for each other in different places for {patience:.0f} s: {_waiting(waiting)}"


def absent_sentence(records: Sequence[Record], size: int, seconds: float) -> str:
    """For a job that has not come together ``seconds`` after its start."""
    absent = missing(records, size)
    if absent:
        return f"{_ranks(absent)} of {size} did not come within {seconds:.0f} s of the start"
    late = [record for record in records if not record.waiting]
    if late:
        return f"{_who(late[0])} did not get to the others within {seconds:.0f} s: it stands {_where(late[0])}"
    return f"the {size} ranks did not find each other within {seconds:.0f} s: see that their hosts reach each other"


def _who(record: Record) -> str:
    return f"rank {record.rank} (process {record.pid} on {record.host})"


def _where(record: Record) -> str:
    update = f"at update {record.num_update}, " if record.num_update >= 0 else ""
    return f"{update}in {record.doing}"


def _waiting(records: Sequence[Record]) -> str:
    shown = [f"rank {record.rank} waits in {record.doing}" for record in records[:8]]
    return ", ".join(shown) + (f" and {len(records) - 8} more wait" if len(records) > 8 else "")


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
