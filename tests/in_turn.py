"""Runs modules one after the other:  in_turn.py PROCESSES MODULE ARGUMENT ... -- PROCESSES MODULE ...

Each runs in as many processes, as torchrun starts them. They are children of this one, which has imported PyTorch, most
of the work of a start. Rank 0 alone prints.
"""

import os
import runpy
import socket
import sys

import torch._dynamo  # noqa: F401  what DistributedDataParallel imports


def job(size, rank, port):
    """The variables of a process; one alone has none."""
    both = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    own = {**both, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "1"}
    return {name: str(value) for name, value in own.items()} if size > 1 else {}


def start(module, arguments, size, rank, port):
    """Returns the id of a process that runs a module as this rank."""
    child = os.fork()
    if not child:
        os.environ.update(job(size, rank, port))
        sys.argv[1:] = arguments
        sys.stdout = sys.stdout if rank == 0 else open(os.devnull, "w")
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()
    return child


for words in " ".join(sys.argv[1:]).split(" -- "):
    print(f"== {words}", flush=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    size, module, *arguments = words.split()
    children = [start(module, arguments, int(size), rank, port) for rank in range(int(size))]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        sys.exit(f"{words} ended with {codes}")
