"""The signals that ask a rank to stop, in a process that is paused or destroys an object."""

import signal
import subprocess
import sys
import time

from paths import with_root

WAITING = """
from partial_fc.distributed.signals import block_signals, wait_for_signal
block_signals()
print("ready", flush=True)
while (number := wait_for_signal(0.02)) is None:
    print(".", end="", flush=True)
print(number)
"""


def test_a_pause_is_no_stop_request():
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(command, env=with_root(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            for _ in range(10):
                process.send_signal(signal.SIGSTOP)
                time.sleep(0.05)
                process.send_signal(signal.SIGCONT)
                assert process.stdout.read(3) == "..."  # it waits on
            process.send_signal(signal.SIGUSR1)
            rest, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert rest.strip(".\n") == str(int(signal.SIGUSR1))


INTERRUPTED = """
import os, signal, time
from partial_fc.distributed.signals import repeat_lost_interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background commands inherit that it is ignored
repeat_lost_interrupts()
class Slow:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
try:
    slow = Slow()
    del slow
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_in_a_destructor_is_not_lost():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], env=with_root(), capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
