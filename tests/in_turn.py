"""Runs modules one after the other, in two processes as torchrun starts them:  in_turn.py MODULE ARGUMENT ... -- ...

The processes are children of this one, which has imported PyTorch, most of the work of a start. Rank 0 alone prints.
"""

import os
import runpy
import socket
import sys

import torch._dynamo  # noqa: F401  what DistributedDataParallel imports

SIZE = 2
JOB = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(SIZE), "LOCAL_WORLD_SIZE": str(SIZE), "TORCHELASTIC_RUN_ID": "1"}


def start(module, arguments, rank, port):
    """Returns the id of a process that runs a module as this rank."""
    child = os.fork()
    if not child:
        os.environ.update(JOB, MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank))
        sys.argv[1:] = arguments
        sys.stdout = sys.stdout if rank == 0 else open(os.devnull, "w")
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()
    return child


for words in " ".join(sys.argv[1:]).split(" -- "):
    print(f"== {words}", flush=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    module, *arguments = words.split()
    children = [start(module, arguments, rank, port) for rank in range(SIZE)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        sys.exit(f"{words} ended with {codes}")
