"""The chart `deploy/helm` as Helm renders it, and the values that the tests render it with."""

import functools
import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

import yaml

from tests.deploy import fetched
from tests.processes import ROOT

CHART = ROOT / "deploy" / "helm"
Object = dict[str, Any]  # of Kubernetes

GATEWAY = {
    "inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}},
    "route": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["llm.example.com"]},
}
MONITORING = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "rules": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
}
KEDA = {"type": "keda", "prometheus": "http://prometheus.monitoring:9090"}
MATRIX: dict[str, Mapping[str, Any]] = {
    "default": {},
    "tensor parallel": {"server": {"numShard": 8}, "shmSize": "16Gi"},
    "engines": {"server": {"replicas": 8}},
    "CPU": {"server": {"device": "cpu"}, "cache": {"type": "emptyDir"}, "tolerations": []},
    "KEDA": {
        "autoscaling": KEDA,
        "cache": {"type": "perPod", "storageClass": "fast"},
        "monitoring": {"podMonitor": {"enabled": True}},
    },
    "HPA": {
        "autoscaling": {"type": "hpa", "metric": "running", "target": 48},
        "cache": {"accessMode": "ReadWriteMany"},
    },
    "inference pool": GATEWAY,
    "OpenShift": {"user": None, "cache": {"existingClaim": "weights"}},
    "everything": {
        "image": {"repository": "registry.example/team/text-generation", "digest": "sha256:" + "ab" * 32},
        "model": {
            "id": "org/model",
            "revision": "refs/pr/1",
            "names": ["mine", "claude-sonnet-4-5"],
            "tokenSecret": {"name": "hub"},
        },
        "server": {
            "numShard": 2,
            "replicas": 4,
            "options": {
                "max-batch-total-tokens": 1048576,
                "cuda-memory-fraction": 0.85,
                "lora-adapters": ["sql=org/sql", "tone=org/tone"],
                "enable-lora": True,
                "speculative-config": '{"method": "ngram", "num_speculative_tokens": 4}',
            },
            "env": [{"name": "HF_ENDPOINT", "value": "https://hub.example"}],
        },
        "apiKeys": {"secretName": "keys"},
        "replicas": 2,
        "cache": {"accessMode": "ReadWriteMany", "storageClass": "nfs"},
        "autoscaling": {**KEDA, "min": 2, "max": 8},
        "monitoring": MONITORING,
        "networkPolicy": {
            "enabled": True,
            "clients": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}],
            "monitoring": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "egress": [{"to": [{"podSelector": {}}], "ports": [{"port": 4317}]}],
        },
        **GATEWAY,
        "serviceAccountName": "text-generation",
        "runtimeClassName": "nvidia",
        "priorityClassName": "high",
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"},
        "affinity": {"podAntiAffinity": {}},
        "podLabels": {"team": "ml"},
        "podAnnotations": {"example.com/note": "yes"},
        "extraVolumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}}],
        "extraVolumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    },
    "hosts": {"hosts": 2, "server": {"numShard": 8}, "cache": {"type": "perPod"}},
    "hosts without GPUs": {"hosts": 3, "server": {"device": "cpu"}, "cache": {"type": "emptyDir"}},
}
MATRIX["everything over hosts"] = {
    **MATRIX["everything"],
    "hosts": 4,
    "group": {"keySecret": {"name": "ours", "key": "secret"}, "exclusiveTopology": "example.com/rack"},
    "server": {**MATRIX["everything"]["server"], "numShard": 8, "replicas": 1},
}


def run(*arguments: str, values: Mapping[str, Any] | None = None) -> "subprocess.CompletedProcess[str]":
    """Helm with no cluster and nothing of the user's."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    command = [str(fetched.helm()), *arguments, *(["--values=-"] if values is not None else [])]
    return subprocess.run(
        command, env=environment, input=json.dumps(values), capture_output=True, text=True, timeout=60
    )


def rendered(values: Mapping[str, Any], release: str = "demo", namespace: str = "models") -> list[Object]:
    """What `helm install demo --namespace models` would create, hooks too."""
    return _rendered(json.dumps(values), release, namespace)


@functools.cache
def _rendered(values: str, release: str, namespace: str) -> list[Object]:
    done = run("template", release, str(CHART), f"--namespace={namespace}", values=json.loads(values))
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each is not None]


def refusal(values: Mapping[str, Any], release: str = "demo") -> str:
    """Why Helm does not render it."""
    done = run("template", release, str(CHART), values=values)
    assert done.returncode != 0, "it was rendered"
    return done.stderr


def the(kind: str, values: Mapping[str, Any]) -> Object:
    """The only object of a kind; of pods, which only `helm test` starts, too."""
    [found] = [each for each in rendered(values) if each["kind"] == kind]
    return found


def pod_templates(values: Mapping[str, Any]) -> list[Object]:
    """Of the pod that serves, and, where it leads others, of these."""
    if values.get("hosts", 1) == 1:
        return [the("Deployment", values)["spec"]["template"]]
    group = the("LeaderWorkerSet", values)["spec"]["leaderWorkerTemplate"]
    return [group["leaderTemplate"], group["workerTemplate"]]


def pod_spec(values: Mapping[str, Any]) -> Object:
    """Of the pod that serves."""
    spec: Object = pod_templates(values)[0]["spec"]
    return spec


def launched(spec: Object) -> Object:
    """The container of a pod in which the launcher runs."""
    [found] = spec["containers"]
    assert found["name"] == "server"
    container: Object = found
    return container


def server(values: Mapping[str, Any]) -> Object:
    """The server's container."""
    return launched(pod_spec(values))


POD_ADDRESS = "127.0.0.1"


def environment(container: Object) -> dict[str, str]:
    """A container's variables, in a pod of that address."""
    fields = {"status.podIP": POD_ADDRESS}
    return {
        each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container.get("env", ())
    }


def arguments(container: Object) -> list[str]:
    """A container's arguments, with its variables where they name these."""
    texts = [*container["args"]]
    for name, value in environment(container).items():
        texts = [each.replace(f"$({name})", value) for each in texts]
    return texts


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a selector is of pods with these labels."""
    wanted = selector.get("matchExpressions", ())
    assert all(each["operator"] == "In" for each in wanted)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in wanted
    )
