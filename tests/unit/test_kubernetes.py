"""The manifests of deploy/cluster/ fit the schemas of Pods and of the two operators' jobs; no cluster was available."""

import jsonschema
import kubernetes_validate
import pytest
import yaml

from paths import ROOT

KUBERNETES = "1.37"
COUNT, TEXT, OBJECT, LIST, FLAG = ({"type": name} for name in ("integer", "string", "object", "array", "boolean"))
COUNT["minimum"] = 0


def fields(required="", counts="", texts="", objects="", lists="", flags="", **others):
    """The schema of an object with these fields only; the names of those of one type stand in one text."""
    types = ((counts, COUNT), (texts, TEXT), (objects, OBJECT), (lists, LIST), (flags, FLAG))
    properties = {name: kind for names, kind in types for name in names.split()} | others
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def one_of(*values):
    return {"enum": list(values)}


def job(api_version, kind, spec):
    metadata = fields("name", texts="name namespace", objects="labels annotations")
    top = {"apiVersion": one_of(api_version), "kind": one_of(kind), "metadata": metadata, "spec": spec}
    return fields("apiVersion kind metadata spec", **top)


def replica(*policies):
    return fields("template", counts="replicas", restartPolicy=one_of(*policies), objects="template")


RUN_POLICY = fields(
    counts="activeDeadlineSeconds backoffLimit ttlSecondsAfterFinished",
    texts="managedBy",
    objects="schedulingPolicy",
    flags="suspend",
    cleanPodPolicy=one_of("None", "Running", "All"),
)
ELASTIC = fields(
    counts="maxReplicas maxRestarts minReplicas nProcPerNode rdzvPort",
    texts="rdzvBackend rdzvHost rdzvId",
    lists="metrics",
    flags="standalone",
    rdzvConf={"type": "array", "items": fields(texts="key value")},
)
TORCH_REPLICA = replica("Always", "OnFailure", "Never", "ExitCode")
TORCH_REPLICAS = fields(Master=TORCH_REPLICA, Worker=TORCH_REPLICA)
TORCH_SPEC = {"pytorchReplicaSpecs": TORCH_REPLICAS, "elasticPolicy": ELASTIC, "runPolicy": RUN_POLICY}
MPI_REPLICA = replica("OnFailure", "Never")
MPI_SPEC = {
    "mpiReplicaSpecs": fields("Launcher", Launcher=MPI_REPLICA, Worker=MPI_REPLICA),
    "launcherCreationPolicy": one_of("AtStartup", "WaitForWorkersReady"),
    "mpiImplementation": one_of("OpenMPI", "Intel", "MPICH"),
    "runPolicy": RUN_POLICY,
}
# What the definitions of kubeflow/trainer (manifests/base/crds/kubeflow.org_pytorchjobs.yaml, release 1.9) and of
# kubeflow/mpi-operator (deploy/v2beta1/mpi-operator.yaml, 0.6) accept, without the Pods. A server drops other fields.
SCHEMAS = {
    "pytorchjob.yaml": job(
        "kubeflow.org/v1", "PyTorchJob", fields("pytorchReplicaSpecs", texts="nprocPerNode", **TORCH_SPEC)
    ),
    "mpijob.yaml": job(
        "kubeflow.org/v2beta1",
        "MPIJob",
        fields("mpiReplicaSpecs", "slotsPerWorker", "sshAuthMountPath", flags="runLauncherAsWorker", **MPI_SPEC),
    ),
}


def manifest(name):
    return yaml.safe_load((ROOT / "deploy" / "cluster" / name).read_text())


def replicas(content):
    """The replicas of each kind of a job."""
    (specs,) = (value for key, value in content["spec"].items() if key.endswith("ReplicaSpecs"))
    return specs


@pytest.mark.parametrize("name", SCHEMAS)
def test_manifest_follows_its_schema(name):
    content = manifest(name)
    jsonschema.validate(content, SCHEMAS[name])
    for kind, made in replicas(content).items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": kind.lower()}, "spec": made["template"]["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_manifests_start_files_that_exist_and_mount_volumes_that_they_define():
    for name in SCHEMAS:
        for made in replicas(manifest(name)).values():
            spec = made["template"]["spec"]
            (container,) = spec["containers"]
            assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["fsGroup"]
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            started = [word for word in container["command"] if word.endswith((".py", ".sh"))]
            assert started and all((ROOT / word).exists() for word in started)
            mounted, defined = (
                {entry["name"] for entry in entries} for entries in (container["volumeMounts"], spec["volumes"])
            )
            assert mounted == defined
