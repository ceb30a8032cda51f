"""The PyTorch trainer on virtual hosts: the tutorial's commands, lost hosts and elastic jobs, see virtual_hosts.py."""

import contextlib
import os
import signal
import time

import groups
import pytest
from conftest import LIMIT, TORCH, needs_hosts, needs_torch
from groups import SILENCE, checkpoints_in, digests, endless, ranks_with, wait_until

from partial_fc.checkpoint import CheckpointFolder, read_manifest

pytestmark = [pytest.mark.timed, needs_torch, needs_hosts]


def launch(host, *options):
    """Returns the tutorial's command for one of two hosts with one process each."""
    node = {"hosta": 0, "hostb": 1}[host]
    command = f"-m torch.distributed.launch --nproc_per_node=1 --nnodes=2 --node_rank={node} --master_addr=hosta"
    return [TORCH / "python", *command.split(), "--master_port=1234", "train.py", *options]


def started(hosts, host, command, arguments, **environment):
    return groups.started_on(hosts, host, [*command, *arguments], OMP_NUM_THREADS="1", **environment)


def test_the_tutorials_commands_for_two_hosts_save_what_one_machine_saves(hosts, settings, succeed, tmp_path):
    # As Debian's installer writes it: a host's own name is a loopback address.
    (tmp_path / "etc_hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 hostb\n{hosts.address['hosta']} hosta\n")
    hosts.run("hostb", ["mount", "--bind", tmp_path / "etc_hosts", "/etc/hosts"])
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(started(hosts, host, launch(host), settings)) for host in ("hosta", "hostb")]
        for group in both:
            output, _ = group.communicate(timeout=LIMIT)
            assert group.returncode == 0, output
    alone = [word for word in settings if not word.startswith("models_root=")] + [f"models_root={tmp_path / 'one'}"]
    succeed(*groups.TWO_RANKS, *alone)
    patterns = ["rank_*.pt", "checkpoints/step-*/backbone.npz"]
    expected, saved = (digests(tmp_path / name, *patterns) for name in ("one", "models"))
    assert saved == expected and len(saved) == 5  # centers and momentum of two ranks, the backbone


def newest(models):
    """Returns the manifest of the newest complete checkpoint, or None."""
    for folder in models.glob("*/checkpoints"):
        with contextlib.suppress(FileNotFoundError):  # a newer checkpoint has just replaced it
            for _, path in CheckpointFolder(str(folder), 2).complete():
                return read_manifest(path)
    return None


def signal_processes(hosts, host, folder, number):
    """Sends a signal to torchrun and its process on a host."""
    for pid in groups.processes_with(folder):
        with contextlib.suppress(OSError):  # it has just ended
            if hosts.has(host, pid):
                os.kill(pid, number)


def test_a_lost_host_is_named_and_both_sides_end(hosts, settings, tmp_path):
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(started(hosts, h, launch(h), endless(settings))) for h in ("hosta", "hostb")]
        wait_until(lambda: checkpoints_in(tmp_path / "models"), both[0])
        lost = time.monotonic()
        hosts.drop("hostb")
        outputs = [group.communicate(timeout=LIMIT)[0] for group in both]
        assert time.monotonic() - lost < SILENCE + 20, outputs
    assert f"error: nothing received from host hostb (rank 1) for {SILENCE} s at update" in outputs[0], outputs
    assert outputs[0].count("error: ") == 1 and not ranks_with(settings[1])


def test_an_elastic_job_goes_on_without_a_lost_host_and_takes_it_back(hosts, settings, tmp_path):
    models = tmp_path / "models"
    options = "--nnodes=1:2 --nproc_per_node=1 --rdzv-backend=c10d --rdzv-endpoint=hosta:29400 --max-restarts=3"
    command = [TORCH / "torchrun", *options.split(), "--rdzv-conf=last_call_timeout=2", "train.py", "--resume", "auto"]

    # Otherwise torchrun 2.13 waits in vain for a host that comes back, because rank 0 announces its store only once.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def trained_by(ranks):
        manifest = newest(models)
        return manifest and manifest.ranks == ranks and manifest.num_update

    with contextlib.ExitStack() as stack:
        first = stack.enter_context(started(hosts, "hosta", command, endless(settings), **own_store))
        stack.enter_context(started(hosts, "hostb", command, endless(settings), **own_store))
        wait_until(lambda: trained_by(2), first)
        hosts.drop("hostb")
        signal_processes(hosts, "hostb", models, signal.SIGKILL)
        alone = wait_until(lambda: trained_by(1), first)
        hosts.heal("hostb")
        again = stack.enter_context(started(hosts, "hostb", command, endless(settings), **own_store))
        assert wait_until(lambda: trained_by(2), first) > alone
        signal_processes(hosts, "hosta", models, signal.SIGTERM)
        output, _ = first.communicate(timeout=LIMIT)
        again.communicate(timeout=LIMIT)
    (log,) = models.glob("*/training.log")
    text = log.read_text()
    assert "saved by 2 ranks" in text and "saved by 1 rank" in text, output
