"""The environment variables of run.sh, and the mpirun command that it prints."""

import re
import subprocess
from pathlib import Path

import pytest
from conftest import needs_hosts, needs_torch
from groups import ranks_with, started, wait_until

from paths import ROOT


def test_the_printed_command_does_the_same_and_a_refused_training_is_not_restarted(run, tmp_path):
    # Only the ranks notice that the data set is missing.
    arguments = ["--dataset", "emore", f"data_root={tmp_path}", f"models_root={tmp_path}/a folder"]
    variables = {"BIND_TO": "core", "INTERFACE": "lo", "FORWARD": "HOME LANG", "LANG": "C.UTF-8", "MAX_RESTARTS": "2"}
    done = run("bash", "run.sh", *arguments, NP="1", **variables)
    assert done.returncode == 2 and f"{tmp_path}/emore does not exist" in done.stderr and "restart" not in done.stderr
    (line,) = re.findall("^run.sh: (.*mpirun.*)", done.stderr, re.MULTILINE)
    options = ("-np 1 ", "-bind-to core:overload-allowed ", "-mca btl_tcp_if_include lo ", "-x HOME -x LANG ")
    assert all(part in line for part in (*options, "a\\ folder"))
    again = run("bash", "-c", f". setup-utils/env.sh; {line}", LANG="C.UTF-8", PARTIAL_FC_RUN="a")
    assert again.returncode == 2
    assert again.stderr.splitlines()[-1] == done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name, value", [("BIND_TO", "cores"), ("TMPDIR", __file__)])
def test_an_invalid_variable_is_refused_in_one_line(name, value, run):
    done = run("bash", "run.sh", "sample_ratio=7", **{name: value})  # which ranks would refuse
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "") and line.startswith("run.sh: ") and f"{name}={value}" in line


@pytest.mark.skipif(subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode != 0, reason="needs root")
@pytest.mark.parametrize("script", ["run.sh", pytest.param("pytorch/run.sh", marks=[needs_torch, pytest.mark.slow])])
def test_a_host_without_a_network_interface_is_named(script, settings, run):
    done = run("unshare", "-n", "bash", script, *settings, NP="2", OMP_NUM_THREADS="1")
    message = "this host has no interface in the network 127.0.0.0/8, but: lo without an address"
    assert done.returncode == 2 and done.stderr.count(message) == 1, done.stderr
    assert script == "pytorch/run.sh" or done.stderr == f"run.sh: {message}\n"


@pytest.mark.slow
def test_a_training_whose_reader_is_gone_goes_on_and_logs_so_once(settings, run, tmp_path):
    command = 'set -o pipefail; bash "$@" 2>&1 | head -3'
    done = run("bash", "-c", command, "-", "run.sh", *settings, NP="2", OMP_NUM_THREADS="1")
    (folder,) = (tmp_path / "models").iterdir()
    log = (folder / "training.log").read_text()
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 3, done.stderr + log
    assert log.count("the output cannot be written any more (Broken pipe): the training goes on, and logs here") == 1
    assert "Global Step: 7 " in log and "7 updates in " in log and (folder / "summary.json").exists()


@needs_hosts
def test_variables_of_the_user_reach_other_hosts(hosts, settings):
    command = hosts.command("hosta", ["bash", "run.sh", *settings, "max_update=100000"], ROOT)
    user = {"FORWARD": "GREETING", "GREETING": "good day", "MXNET_CPU_WORKER_NTHREADS": "1", "UNNAMED": "1"}
    with started(command, HOSTS="hosta:1,hostb:1", OMP_NUM_THREADS="3", **user):
        ranks = wait_until(lambda: len(ranks_with(settings[1])) == 2 and ranks_with(settings[1]))
        there = next(pid for pid in ranks if hosts.has("hostb", pid))
        environment = Path(f"/proc/{there}/environ").read_text().split("\0")
    expected = {
        "GREETING=good day",
        "OMP_NUM_THREADS=3",
        "MXNET_CPU_WORKER_NTHREADS=1",
        "OMPI_MCA_btl_tcp_if_include=10.77.0.0/24",
    }
    assert expected <= set(environment)
    assert "UNNAMED=1" not in environment
