"""Values of the chart that are handed on as they are: each one arrives at its place."""

from typing import Any

import pytest

from tests.deploy.chart import GATEWAY, KEDA, rendered

NODE = {"nvidia.com/gpu.product": "NVIDIA-H200"}
TOLERATION = {"key": "gpu", "operator": "Exists"}
AFFINITY = {"podAntiAffinity": {}}
VOLUME = {"name": "models", "emptyDir": {}}
MOUNT = {"name": "models", "mountPath": "/models"}
PEER = {"podSelector": {}}
SHARED = {"cache": {"accessMode": "ReadWriteMany"}}
HPA = {"autoscaling": {"type": "hpa", "min": 2, "max": 7, "scaleDownSeconds": 900}, **SHARED}
ROUTE = {"route": GATEWAY["route"], "service": {"port": 8000}}
PICKER = {"name": "picker", "port": 9009, "failureMode": "FailClose"}
SCRAPED = {"podMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "mine"}}}

DELETED = "before-hook-creation,hook-succeeded"
POD = "spec.template.spec"
SERVER, FETCHER = f"{POD}.containers.0", f"{POD}.initContainers.0"
TEST = "spec.containers.0"
POOL = "spec.endpointPickerRef"

# Values, a kind, the path to a field of its object, and what is there; None where there is no such field.
PLACES: list[tuple[dict[str, Any], str, str, Any]] = [
    ({"image": {"repository": "r.example/a", "tag": "v2"}}, "Deployment", f"{SERVER}.image", "r.example/a:v2"),
    ({"image": {"repository": "r.example/a", "tag": "v2"}}, "Deployment", f"{FETCHER}.image", "r.example/a:v2"),
    ({"image": {"repository": "r.example/a", "tag": "v2"}}, "Pod", f"{TEST}.image", "r.example/a:v2"),
    ({"image": {"pullPolicy": "Never"}}, "Deployment", f"{SERVER}.imagePullPolicy", "Never"),
    ({"image": {"pullPolicy": "Never"}}, "Deployment", f"{FETCHER}.imagePullPolicy", "Never"),
    ({"image": {"pullPolicy": "Never"}}, "Pod", f"{TEST}.imagePullPolicy", "Never"),
    ({"image": {"pullSecrets": ["a", "b"]}}, "Deployment", f"{POD}.imagePullSecrets", [{"name": "a"}, {"name": "b"}]),
    ({"image": {"pullSecrets": ["a"]}}, "Pod", "spec.imagePullSecrets", [{"name": "a"}]),
    ({"model": {"tokenSecret": {"name": "hub", "key": "t"}}}, "Deployment", f"{POD}.volumes.3.secret.items.0.key", "t"),
    ({"apiKeys": {"secretName": "mine", "key": "k"}}, "Deployment", f"{POD}.volumes.3.secret.items.0.key", "k"),
    ({"apiKeys": {"secretName": "mine", "key": "k"}}, "Pod", "spec.volumes.0.secret.items.0.key", "k"),
    ({"server": {"gracefulTerminationSeconds": 300}}, "Deployment", f"{POD}.terminationGracePeriodSeconds", 320),
    ({"replicas": 3, **SHARED}, "Deployment", "spec.replicas", 3),
    ({"replicas": 0}, "Deployment", "spec.replicas", 0),
    ({"resources": {"requests": {"cpu": "4"}}}, "Deployment", f"{SERVER}.resources.requests.cpu", "4"),
    ({"resources": {"limits": {"memory": "9Gi"}}}, "Deployment", f"{FETCHER}.resources.limits.memory", "9Gi"),
    ({"cache": {"size": "7Gi"}}, "PersistentVolumeClaim", "spec.resources.requests.storage", "7Gi"),
    ({"cache": {"storageClass": "fast"}}, "PersistentVolumeClaim", "spec.storageClassName", "fast"),
    ({}, "PersistentVolumeClaim", "spec.storageClassName", None),
    (SHARED, "PersistentVolumeClaim", "spec.accessModes", ["ReadWriteMany"]),
    ({}, "Deployment", f"{POD}.volumes.0.persistentVolumeClaim.claimName", "demo-text-generation-jax"),
    (
        {"cache": {"existingClaim": "weights"}},
        "Deployment",
        f"{POD}.volumes.0.persistentVolumeClaim.claimName",
        "weights",
    ),
    ({"cache": {"existingClaim": "weights"}}, "PersistentVolumeClaim", "", None),
    (
        {"cache": {"type": "perPod", "storageClass": "fast", "size": "7Gi"}},
        "Deployment",
        f"{POD}.volumes.0.ephemeral.volumeClaimTemplate.spec",
        {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast",
            "resources": {"requests": {"storage": "7Gi"}},
        },
    ),
    (
        {"cache": {"type": "emptyDir", "size": "7Gi"}},
        "Deployment",
        f"{POD}.volumes.0.emptyDir",
        {"sizeLimit": "7Gi"},
    ),
    ({"tmpSize": "7Gi"}, "Deployment", f"{POD}.volumes.1.emptyDir.sizeLimit", "7Gi"),
    ({"shmSize": "7Gi"}, "Deployment", f"{POD}.volumes.2.emptyDir", {"medium": "Memory", "sizeLimit": "7Gi"}),
    ({"service": {"type": "NodePort"}}, "Service", "spec.type", "NodePort"),
    ({"service": {"port": 8000}}, "Service", "spec.ports.0.port", 8000),
    # Never fewer pods than there are to be: the others would get all requests.
    (SHARED, "Deployment", "spec.strategy.rollingUpdate", {"maxSurge": 1, "maxUnavailable": 0}),
    (HPA, "HorizontalPodAutoscaler", "spec.minReplicas", 2),
    (HPA, "HorizontalPodAutoscaler", "spec.maxReplicas", 7),
    (HPA, "HorizontalPodAutoscaler", "spec.scaleTargetRef.name", "demo-text-generation-jax"),
    (HPA, "HorizontalPodAutoscaler", "spec.behavior.scaleDown.stabilizationWindowSeconds", 900),
    (
        {"autoscaling": KEDA, "monitoring": SCRAPED, **SHARED},
        "ScaledObject",
        "spec.triggers.0.metricType",
        "AverageValue",  # of the pods, whose sum the query is
    ),
    (
        {"autoscaling": KEDA, "monitoring": SCRAPED, **SHARED},
        "ScaledObject",
        "spec.triggers.0.metadata.serverAddress",
        KEDA["prometheus"],
    ),
    ({"monitoring": SCRAPED}, "PodMonitor", "metadata.labels.release", "mine"),
    (
        {"monitoring": SCRAPED},
        "PodMonitor",
        "spec.podMetricsEndpoints",
        [{"port": "admin", "path": "/metrics", "interval": "30s"}],
    ),
    (
        {"monitoring": {**SCRAPED, "rules": {"enabled": True, "labels": {"a": "b"}}}},
        "PrometheusRule",
        "metadata.labels.a",
        "b",
    ),
    ({"monitoring": {"dashboard": {"enabled": True}}}, "ConfigMap", "metadata.labels.grafana_dashboard", "1"),
    ({}, "PodDisruptionBudget", "spec.maxUnavailable", 1),
    ({"disruptionBudget": False}, "PodDisruptionBudget", "", None),
    ({}, "NetworkPolicy", "", None),
    ({"networkPolicy": {"enabled": True, "clients": [PEER]}}, "NetworkPolicy", "spec.ingress.0.from.1", PEER),
    ({"networkPolicy": {"enabled": True}}, "NetworkPolicy", "spec.ingress.1", None),
    ({"inferencePool": {"enabled": True, "endpointPicker": PICKER}}, "InferencePool", f"{POOL}.name", "picker"),
    ({"inferencePool": {"enabled": True, "endpointPicker": PICKER}}, "InferencePool", f"{POOL}.port.number", 9009),
    (
        {"inferencePool": {"enabled": True, "endpointPicker": PICKER}},
        "InferencePool",
        f"{POOL}.failureMode",
        "FailClose",
    ),
    (ROUTE, "HTTPRoute", "spec.hostnames", ["llm.example.com"]),
    (ROUTE, "HTTPRoute", "spec.parentRefs", [{"name": "gateway"}]),
    (
        ROUTE,
        "HTTPRoute",
        "spec.rules.0.backendRefs",
        [{"name": "demo-text-generation-jax", "port": 8000}],
    ),
    (
        GATEWAY,
        "HTTPRoute",
        "spec.rules.0.backendRefs",
        [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "demo-text-generation-jax"}],
    ),
    ({"serviceAccountName": "a"}, "Deployment", f"{POD}.serviceAccountName", "a"),
    ({"runtimeClassName": "a"}, "Deployment", f"{POD}.runtimeClassName", "a"),
    ({"priorityClassName": "a"}, "Deployment", f"{POD}.priorityClassName", "a"),
    ({"nodeSelector": NODE}, "Deployment", f"{POD}.nodeSelector", NODE),
    ({"nodeSelector": NODE}, "Pod", "spec.nodeSelector", NODE),
    ({"tolerations": [TOLERATION]}, "Deployment", f"{POD}.tolerations", [TOLERATION]),
    ({"tolerations": [TOLERATION]}, "Pod", "spec.tolerations", [TOLERATION]),
    ({"affinity": AFFINITY}, "Deployment", f"{POD}.affinity", AFFINITY),
    ({}, "Deployment", f"{POD}.topologySpreadConstraints.0.whenUnsatisfiable", "ScheduleAnyway"),
    ({"spreadOverNodes": False}, "Deployment", f"{POD}.topologySpreadConstraints", None),
    ({"podLabels": {"team": "ml"}}, "Deployment", "spec.template.metadata.labels.team", "ml"),
    ({"podAnnotations": {"note": "yes"}}, "Deployment", "spec.template.metadata.annotations.note", "yes"),
    ({"extraVolumes": [VOLUME]}, "Deployment", f"{POD}.volumes.3", VOLUME),
    ({"extraVolumeMounts": [MOUNT]}, "Deployment", f"{SERVER}.volumeMounts.2", MOUNT),
    ({"extraVolumeMounts": [MOUNT]}, "Deployment", f"{FETCHER}.volumeMounts.2", MOUNT),
    # Only `helm test` starts it, and once.
    ({}, "Pod", "metadata.annotations", {"helm.sh/hook": "test", "helm.sh/hook-delete-policy": DELETED}),
    ({}, "Pod", "spec.restartPolicy", "Never"),
]


def at(place: Any, path: str) -> Any:
    """What lies at a path, or None."""
    for step in path.split(".") if path else ():
        if isinstance(place, list):
            place = dict(enumerate(place)).get(int(step))
        elif place is not None:
            place = place.get(step)
    return place


@pytest.mark.parametrize(("values", "kind", "path", "expected"), PLACES, ids=[f"{row[1]} {row[2]}" for row in PLACES])
def test_a_value_arrives(values: dict[str, Any], kind: str, path: str, expected: Any) -> None:
    things = [thing for thing in rendered(values) if thing["kind"] == kind]
    assert len(things) == 1 or (things, expected) == ([], None)
    assert (at(things[0], path) if things else None) == expected
