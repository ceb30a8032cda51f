"""Batches of worker processes equal those of threads, and no worker is left or waited for, whatever happens."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from own_items import Deadly, Endless, Faulty, OfProcess, Unsendable, open_items
from partial_fc.data.training_data import DataLoader
from partial_fc.data.worker_batches import WorkerBatches
from paths import ROOT
from waiting import happens


def load(open_batches, processes):
    """A DataLoader of NumPy batches, read by worker processes, or by threads if `processes` is 0."""
    batches = open_batches()
    if processes:
        batches = WorkerBatches(batches, open_batches, processes)
    return DataLoader(batches, processes or 2, lambda position: batches.batch(*position))


def next_batches(data, count):
    read = []
    while len(read) < count:
        try:
            read.append(data.next())
        except StopIteration:
            data.reset()
    return [b"".join(array.tobytes() for array in (*batch.inputs.values(), batch.labels)) for batch in read]


def test_batches_counters_bad_items_and_resumed_positions_are_those_of_threads(caplog):
    open_batches = partial(open_items, skip=3, bad=(2, 30, 31))
    threads, processes = load(open_batches, 0), load(open_batches, 2)
    expected = next_batches(threads, 16)
    assert next_batches(processes, 12) == expected[:12]
    resumed = load(open_batches, 2)
    resumed.restore(processes.state())
    assert next_batches(resumed, 4) == expected[12:]
    for data in (threads, processes):
        data.next()
        data.close()
    resumed.close()
    of_threads, of_processes = threads.batches.log, processes.batches.log
    assert of_processes.bad == of_threads.bad and set(of_threads.bad) == {2, 30, 31}
    assert of_processes.counters.images >= 48 and of_processes.counters.bytes >= 48 * 40
    assert of_processes.counters.cpu_seconds > 0
    assert caplog.text.count("Signals[2] cannot") == 2  # once in each loader


def test_each_read_is_counted_once():
    open_batches = partial(open_items, skip=3, bad=(2, 30, 31))
    local, batches = open_batches(), WorkerBatches(open_batches(), open_batches, 1)
    for read in (local, batches):
        for first in (0, 4, 28, 0):
            read.batch(0, first)
    batches.close()
    counted, expected = batches.log.counters, local.log.counters
    assert (counted.images, counted.bytes) == (expected.images, expected.bytes) == (16, 16 * 40)
    assert batches.log.bad == local.log.bad and len(local.log.bad) == 3


def test_the_limit_of_bad_items_is_that_of_the_rank():
    """No single worker has reached the limit."""
    batches = WorkerBatches(open_items(skip=1), partial(open_items, skip=1, bad=(0, 20)), 2)
    read = [batches.batch(0, 0)]
    with pytest.raises(ValueError, match=r"Signals\[20\] cannot be read \(OSError.*skip_bad_images=1, 1 were skipped"):
        read.append(batches.batch(0, 20))
    batches.close()
    assert len(read) == 1


@pytest.mark.parametrize(
    "open_batches, message",
    [
        (partial(open_items, OfProcess), r"has opened another set than its rank: \{'data_set': .*sort items"),
        (partial(open_items, items=Unsendable), "cannot send the batch .*TypeError: cannot pickle.*read arrays"),
    ],
)
def test_a_set_of_another_order_and_a_batch_that_cannot_be_sent_are_refused(open_batches, message):
    batches = WorkerBatches(open_batches(), open_batches, 1)
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            batches.batch(0, 0)
    batches.close()


def test_ctrl_c_while_closing_ends_the_workers():
    batches = WorkerBatches(open_items(), partial(open_items, Endless), 2)
    processes = [worker.process for worker in batches._stop._args[0]]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(batches.batch, 0, 20)
        time.sleep(0.2)  # now it waits for a worker
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
            batches.close()
        # The reading thread joins its worker, too, so the state of the process may be updated a little later.
        assert happens(lambda: not any(process.is_alive() for process in processes), 10)
        with pytest.raises(OSError, match="which read batches"):
            reading.result(10)


def test_an_error_of_the_user_has_its_traceback_even_if_it_cannot_be_sent():
    batches = WorkerBatches(open_items(), partial(open_items, items=Faulty), 1)
    with pytest.raises(RuntimeError, match="StrangeError: this and that") as raised:
        batches.batch(0, 0)
    assert 'raise StrangeError("this", "that")' in str(raised.value.__cause__)
    batches.close()


def test_a_worker_that_dies_is_an_error_for_every_thread():
    batches = WorkerBatches(open_items(), partial(open_items, Deadly), 1)
    batches.batch(0, 16)
    for _ in range(2):
        with pytest.raises(OSError, match="was ended by signal 9 .out of memory.*set a smaller decode_processes"):
            batches.batch(0, 20)
    batches.close()
    batches.close()


PROGRAM = """
import signal, sys
from functools import partial
from own_items import Endless, open_items
from partial_fc.data.worker_batches import WorkerBatches
import threading, time

def main():
    batches = WorkerBatches(open_items(), partial(open_items, Endless), 2)
    batches.batch(0, 0), batches.batch(0, 0)
    if sys.argv[1:]:  # reading never ends
        threading.Thread(target=batches.batch, args=(0, 20), daemon=True).start()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(*(worker.process.pid for worker in batches._stop._args[0]), flush=True)
    for line in sys.stdin:
        batches.batch(0, 4), batches.batch(0, 8)
        print("read", flush=True)

if __name__ == "__main__":
    main()
"""


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_workers_ignore_signals_and_end_with_the_program(end, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), *["endless"] * (end == "kill")]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        try:
            workers = list(map(int, process.stdout.readline().split()))
            assert len(workers) == 2 and all(map(is_alive, workers))
            if end == "kill":
                process.kill()
            else:
                for number in (signal.SIGTERM, signal.SIGUSR1):
                    os.killpg(process.pid, number)
                for worker in workers:
                    os.kill(worker, signal.SIGINT)
                process.stdin.write("more\n")
                process.stdin.flush()
                assert process.stdout.readline() == "read\n"
                process.stdin.close()  # the program ends without closing the batches
                assert process.wait(30) == 0
            assert happens(lambda: not any(map(is_alive, workers)), 30)
        finally:
            process.kill()
