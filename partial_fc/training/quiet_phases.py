"""Log lines during the long phases of a training that log nothing themselves."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from partial_fc.distributed.collectives import Collectives

SECONDS = 10.0  # without a line
# Names of work on all ranks, up to a period -> phase.
PHASES = {
    "baselines": "baselines without training",
    "checkpoint": "checkpoint",
    "embed": "verification",
    "evaluations": "reading the validation sets",
    "export": "trial export",
    "mean_embeddings": "new class centers",
    "report": "report",
    "results": "results",
    "save_centers": "saving class centers",
    "save_model": "saving and exporting the model",
}


class _LastLine(logging.Handler):
    time = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        self.time = monotonic()


@contextmanager
def lines_in_quiet_phases(collectives: Collectives, seconds: float = SECONDS) -> Iterator[None]:
    """A context in which rank 0 logs the phase whenever it has logged nothing for some seconds of the phase."""
    if collectives.rank or collectives.watchdog is None:
        yield
        return
    status, last_line, end = collectives.watchdog.rank_status, _LastLine(), threading.Event()

    def watch() -> None:
        current, since = "", 0.0
        while not end.wait(seconds / 20):
            name = status.doing.rpartition(" ")[2].removeprefix("status.")  # all-gather status.<name>
            if name != current:
                current, since = name, monotonic()
            phase, detail = PHASES.get(name.partition(".")[0]), name.partition(".")[2]
            if phase and monotonic() - max(since, last_line.time) > seconds:
                logging.info("%s%s: %.0f s so far", phase, f" {detail}" if detail else "", monotonic() - since)

    thread = threading.Thread(target=watch, daemon=True)
    logging.getLogger().addHandler(last_line)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        logging.getLogger().removeHandler(last_line)
