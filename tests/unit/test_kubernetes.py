"""The manifests of cluster/, against the schemas of Pods and of the two operators' jobs. No cluster was available."""

import copy

import jsonschema
import kubernetes_validate
import pytest
import yaml

from paths import ROOT

KUBERNETES = "1.37"
COUNT = {"type": "integer", "minimum": 0}
TEXT = {"type": "string"}


def fields(required=(), **properties):
    """The schema of an object with these fields only."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def one_of(*values):
    return {"enum": list(values)}


def job(api_version, kind, spec):
    metadata = fields(["name"], name=TEXT, namespace=TEXT, labels={"type": "object"}, annotations={"type": "object"})
    top = {"apiVersion": one_of(api_version), "kind": one_of(kind), "metadata": metadata, "spec": spec}
    return fields(top, **top)


def replica(*policies):
    return fields(["template"], replicas=COUNT, restartPolicy=one_of(*policies), template={"type": "object"})


RUN_POLICY = fields(
    activeDeadlineSeconds=COUNT,
    backoffLimit=COUNT,
    cleanPodPolicy=one_of("None", "Running", "All"),
    managedBy=TEXT,
    schedulingPolicy={"type": "object"},
    suspend={"type": "boolean"},
    ttlSecondsAfterFinished=COUNT,
)
TORCH_REPLICA = replica("Always", "OnFailure", "Never", "ExitCode")
MPI_REPLICA = replica("OnFailure", "Never")
# What the definitions of kubeflow/trainer (manifests/base/crds/kubeflow.org_pytorchjobs.yaml, release 1.9) and of
# kubeflow/mpi-operator (deploy/v2beta1/mpi-operator.yaml, 0.6) accept, without the Pods. A server drops other fields.
SCHEMAS = {
    "pytorchjob.yaml": job(
        "kubeflow.org/v1",
        "PyTorchJob",
        fields(
            ["pytorchReplicaSpecs"],
            elasticPolicy=fields(
                maxReplicas=COUNT,
                maxRestarts=COUNT,
                metrics={"type": "array"},
                minReplicas=COUNT,
                nProcPerNode=COUNT,
                rdzvBackend=TEXT,
                rdzvConf={"type": "array", "items": fields(key=TEXT, value=TEXT)},
                rdzvHost=TEXT,
                rdzvId=TEXT,
                rdzvPort=COUNT,
                standalone={"type": "boolean"},
            ),
            nprocPerNode=TEXT,
            pytorchReplicaSpecs=fields(Master=TORCH_REPLICA, Worker=TORCH_REPLICA),
            runPolicy=RUN_POLICY,
        ),
    ),
    "mpijob.yaml": job(
        "kubeflow.org/v2beta1",
        "MPIJob",
        fields(
            ["mpiReplicaSpecs"],
            launcherCreationPolicy=one_of("AtStartup", "WaitForWorkersReady"),
            mpiImplementation=one_of("OpenMPI", "Intel", "MPICH"),
            mpiReplicaSpecs=fields(["Launcher"], Launcher=MPI_REPLICA, Worker=MPI_REPLICA),
            runLauncherAsWorker={"type": "boolean"},
            runPolicy=RUN_POLICY,
            slotsPerWorker=COUNT,
            sshAuthMountPath=TEXT,
        ),
    ),
}


def manifest(name):
    return yaml.safe_load((ROOT / "cluster" / name).read_text())


def replicas(content):
    """The replicas of each kind of a job."""
    (specs,) = (value for key, value in content["spec"].items() if key.endswith("ReplicaSpecs"))
    return specs


def validate(name, content):
    jsonschema.validate(content, SCHEMAS[name])
    for kind, made in replicas(content).items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": kind.lower()}, "spec": made["template"]["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def errors(name, content):
    try:
        validate(name, content)
    except jsonschema.ValidationError as error:
        return error.message
    return ""


@pytest.mark.parametrize("name", SCHEMAS)
def test_manifest_follows_its_schema(name):
    assert errors(name, manifest(name)) == ""


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_find_misspelled_fields_and_wrong_types(name):
    def broken(change):
        content = copy.deepcopy(manifest(name))
        change(content, replicas(content)["Worker"]["template"]["spec"]["containers"][0])
        return errors(name, content)

    assert "'slots'" in broken(lambda job, _: job["spec"].update(slots=8))
    assert "'gpu'" in broken(lambda _, container: container["resources"].update(gpu=8))
    assert "not of type" in broken(lambda _, container: container.update(command="train.py"))


def test_manifests_start_files_that_exist_and_mount_volumes_that_they_define():
    for name in SCHEMAS:
        for made in replicas(manifest(name)).values():
            spec = made["template"]["spec"]
            (container,) = spec["containers"]
            started = [word for word in container["command"] if word.endswith((".py", ".sh"))]
            assert started and all((ROOT / word).exists() for word in started)
            mounted, defined = (
                {entry["name"] for entry in entries} for entries in (container["volumeMounts"], spec["volumes"])
            )
            assert mounted == defined
