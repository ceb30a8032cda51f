"""torchrun for pytorch/run.sh: ends with the exit code of the process that failed first, and prints no traceback.

torchrun itself ends with 1 whatever that code was. The processes report their errors themselves.
"""

import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main


def launch() -> int:
    """Runs torchrun with the arguments of this program; returns the exit code as a shell counts it."""
    try:
        main()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            return failure.exitcode
        name = signal.Signals(-failure.exitcode).name
        print(f"error: the process of rank {rank} was killed by {name}", file=sys.stderr)
        return 128 - failure.exitcode
    except SignalException as stop:
        return 128 + stop.sigval
    return 0


if __name__ == "__main__":
    sys.exit(launch())
