"""Reads randomly damaged copies of a file for a second, with a fixed seed: each is read, or an error names it."""

import random
import time
import warnings
from contextlib import contextmanager

EXTREME = [0, 1, -1, 2**31 - 1, -(2**31), 2**32 - 1, 2**62, 2**63 - 1, -(2**63)]


def damaged(content, rng):
    """Returns the content with one to three bytes changed, an integer replaced, or a part cut out or repeated."""
    data = bytearray(content)
    place = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            for _ in range(rng.randint(1, 3)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        case 1:
            size = rng.choice([2, 4, 8])
            data[place : place + size] = (rng.choice(EXTREME) % 2 ** (8 * size)).to_bytes(size, "little")
        case 2:
            del data[place : place + rng.randint(1, 40)]
        case 3:
            data[place:place] = data[place : place + rng.randint(1, 40)]
    return bytes(data)


@contextmanager
def memory_below(megabytes):
    """Fails if the peak of this process's own resident memory grows by this much in the context."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak
    before = _peak()
    yield
    assert _peak() - before < megabytes << 10, f"{(_peak() - before) >> 10} MB"


def _peak():
    """Returns the peak in KiB, less the pages of files: some kernels reclaim those of libraries, which then return."""
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["VmHWM"].split()[0]) - int(fields["RssFile"].split()[0])


def check_damaged(path, content, read, write=None, draw=damaged, seconds=1.0, megabytes=64):
    """Writes and reads damaged copies of a file.

    Args:
        path, content: path and content of the file.
        read: reads the file; called with the path.
        write: writes the file; called with the result of ``draw``. By default, the result is the file's content.
        draw: damages the content; called with the content and a random generator.
        seconds: duration.
        megabytes: limit on the growth of memory.
    """
    named = str(path.parent / path.name.split(".")[0])  # an error may name the other file of a set
    rng, end, refused = random.Random(32), time.monotonic() + seconds, 0
    with memory_below(megabytes), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pickletools warns about escape sequences
        for number in range(5000):
            data = draw(content, rng)
            write(data) if write else path.write_bytes(data)
            try:
                read(str(path))
            except (OSError, ValueError) as error:
                assert named in str(error) and "\n" not in str(error), (number, error)
                refused += 1
            if time.monotonic() > end:
                break
    assert refused
