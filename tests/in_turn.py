"""Runs modules one after the other, each in PROCESSES ranks with the environment variables of torchrun:

    in_turn.py PROCESSES MODULE ARGUMENT ... [-- PROCESSES MODULE ...]
    in_turn.py --serve SOCKET PID    serves the requests of `ask` until the process PID has ended

The ranks are forks of a process that has imported PyTorch, because the import takes longest. Only rank 0 prints.
"""

import faulthandler
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

# The imports of a training, except onnxruntime: forks of a process that has imported it abort when they exit.
PRELOADED = "matplotlib.figure", "onnx", "torch._dynamo", "torch.onnx"


def environment(size, rank, port):
    """Returns the environment variables of a rank; a single process needs none."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    group = {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "1"}
    return {name: str(value) for name, value in group.items()} if size > 1 else {}


def start(module, arguments, size, rank, port):
    """Starts a process that runs a module as this rank; returns its id."""
    child = os.fork()
    if not child:
        os.environ.update(environment(size, rank, port))
        sys.argv[1:] = arguments
        sys.stdout = sys.stdout if rank == 0 else open(os.devnull, "w")
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.stdout.flush()
        if size > 1:
            # As train.py does. PyTorch's DistributedDataParallel destroys Gloo's threads with Python's lock held, which
            # hangs if one of them needs the lock to free its last collective.
            os._exit(0)
        sys.exit()
    return child


def run(words):
    """Runs the jobs until one fails; returns the exit code of its first failed rank, or 0."""
    jobs = " ".join(words).split(" -- ")
    for job in jobs:
        print(f"== {job}", flush=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        size, module, *arguments = job.split()
        children = [start(module, arguments, int(size), rank, port) for rank in range(int(size))]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            if len(jobs) > 1:
                print(f"{job} ended with {codes}", file=sys.stderr)
            return next(filter(None, codes))
    return 0


def serve(path, client):
    """Answers requests, each in a fork, until the client has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forks
    end = os.pidfd_open(client)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path}.new")
        server.listen()
        os.rename(f"{path}.new", path)
        while end not in select.select([server, end], [], [])[0]:
            connection, _ = server.accept()
            if not os.fork():
                answer(connection)
            connection.close()


def give_up(*_):
    """Kills the ranks of a request that timed out, after each has written where it is."""
    signal.signal(signal.SIGABRT, signal.SIG_IGN)
    os.killpg(0, signal.SIGABRT)
    time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def answer(connection):
    """Runs a request's words in its folder and environment, with its output streams; sends the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    _, streams, *_ = socket.recv_fds(connection, 1, 2)
    request = json.loads(connection.makefile().readline())
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(request["timeout"])
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
    faulthandler.enable()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[1:1] = filter(None, request["environment"].get("PYTHONPATH", "").split(":"))
    code = run(request["words"])
    connection.sendall(str(code).encode())
    sys.stdout.flush()
    os._exit(0)


def ask(path, words, folder, environment, timeout):
    """Makes the server at this socket run these words; returns a CompletedProcess, as subprocess.run does."""
    request = {"words": words, "folder": str(folder), "environment": environment, "timeout": timeout}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            socket.send_fds(connection, [b"x"], [output.fileno(), errors.fileno()])
            connection.sendall(json.dumps(request).encode() + b"\n")
            code = connection.recv(16)  # nothing if the server has killed the ranks at the timeout
        output.seek(0), errors.seek(0)
        if not code:
            raise subprocess.TimeoutExpired(words, timeout, output.read(), errors.read())
        return subprocess.CompletedProcess(words, int(code), output.read(), errors.read())


if __name__ == "__main__":
    for name in PRELOADED if sys.argv[1] == "--serve" else ["torch._dynamo"]:
        __import__(name)
    sys.exit(serve(sys.argv[2], int(sys.argv[3])) if sys.argv[1] == "--serve" else run(sys.argv[1:]))
