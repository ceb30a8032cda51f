"""The commands of the Kubernetes manifests, with the operators' environment, on virtual hosts instead of Pods."""

import groups
import pytest
import yaml
from conftest import LIMIT, TORCH, needs_hosts, needs_torch

from paths import ROOT

pytestmark = [pytest.mark.slow, needs_hosts]


def container(name, kind):
    spec = yaml.safe_load((ROOT / "deploy" / "cluster" / name).read_text())["spec"]
    (specs,) = (value for key, value in spec.items() if key.endswith("ReplicaSpecs"))
    (container_spec,) = specs[kind]["template"]["spec"]["containers"]
    return container_spec, {pair["name"]: pair["value"] for pair in container_spec["env"]}, spec


@needs_torch
def test_workers_of_the_pytorch_job_train_together(hosts, settings, tmp_path):
    worker, environment, spec = container("pytorchjob.yaml", "Worker")
    policy = spec["elasticPolicy"]
    environment.update(
        PET_RDZV_BACKEND=policy["rdzvBackend"],
        PET_RDZV_ENDPOINT="hosta:23456",
        PET_NNODES=f"{policy['minReplicas']}:{policy['maxReplicas']}",
        PET_MAX_RESTARTS=str(policy["maxRestarts"]),
        OMP_NUM_THREADS="1",
    )
    one_cpu = ["--nproc-per-node=1" if word == "--nproc-per-node=gpu" else word for word in worker["command"]]
    assert one_cpu != worker["command"] and worker["command"][0] == ".venv-torch/bin/torchrun"
    command = [TORCH / "torchrun", *one_cpu[1:], *settings]
    with (
        groups.started_on(hosts, "hosta", command, **environment) as first,
        groups.started_on(hosts, "hostb", command, **environment) as second,
    ):
        outputs = [group.communicate(timeout=LIMIT)[0] for group in (first, second)]
        assert (first.returncode, second.returncode) == (0, 0), outputs
    assert groups.checkpoints_in(tmp_path / "models") == [7]


def test_the_launcher_of_the_mpi_job_trains_on_the_workers(hosts, settings, tmp_path):
    launcher, environment, _ = container("mpijob.yaml", "Launcher")
    assert launcher["command"][:3] == ["bash", "deploy/docker/start-sshd.sh", "12345"]  # virtual hosts have their own
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("hostb slots=1\nhostc slots=1\n")
    assert environment["HOSTFILE"] == "/etc/mpi/hostfile"
    environment.update(
        HOSTFILE=str(hostfile),
        INTERFACE="net0",
        OMPI_MCA_orte_keep_fqdn_hostnames="true",
        OMPI_MCA_orte_default_hostfile=str(hostfile),
        OMPI_MCA_plm_rsh_args="-o ConnectionAttempts=10",
    )
    with groups.started_on(hosts, "hosta", [*launcher["command"][3:], *settings], **environment) as group:
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 0, output
    assert "2 ranks" in output and "-mca btl_tcp_if_include net0" in output
    assert groups.checkpoints_in(tmp_path / "models") == [7]
