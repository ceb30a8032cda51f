"""The process can exit while a read, such as from a dead network file system, never returns."""

import os
import signal
import subprocess
import sys
import threading
from itertools import product

from paths import ROOT

PROGRAM = """
import sys
from functools import partial
from own_items import EndlessItems, open_items
from partial_fc.data.training_data import DataLoader
from partial_fc.data.worker_batches import WorkerBatches

def main(readers, end):
    open_batches = partial(open_items, items=EndlessItems)
    batches = open_batches()
    if readers == "processes":
        batches = WorkerBatches(batches, open_batches, 2)
    data = DataLoader(batches, 2, lambda position: batches.batch(*position))
    for _ in range(5):
        data.next()
    print("one thread is stuck", flush=True)
    try:
        if end == "interrupt":
            data.next()
    finally:
        if end != "exit":
            data.close()

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def test_the_process_ends_when_it_closes_exits_or_is_interrupted(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    started = {}
    for case in product(("threads", "processes"), ("close", "exit", "interrupt")):
        command = [sys.executable, str(tmp_path / "program.py"), *case]
        started[case] = subprocess.Popen(command, env=environment, **pipes)
    limit = threading.Timer(120, lambda: [process.kill() for process in started.values()])
    limit.start()
    try:
        for (_, end), process in started.items():
            assert process.stdout.readline()
            if end == "interrupt":
                process.send_signal(signal.SIGINT)
        ended = {case: process.wait(timeout=60) for case, process in started.items()}
    finally:
        limit.cancel()
        for process in started.values():
            process.kill()
            process.communicate()
    assert ended == {case: -signal.SIGINT if case[1] == "interrupt" else 0 for case in ended}
