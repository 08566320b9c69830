"""Kinds that are not Kubernetes' own: the fields that we set, as their definitions say in these versions.

Written down here, not copied: prometheus-operator 0.93, KEDA 2.20, the Gateway API 1.6, its Inference Extension 1.6,
LeaderWorkerSet 0.10 and KubeRay 1.7. A field that is not here is refused. So one that is set for the first time is
looked up in the definition, added here, and compared with it:

    python -m tests.deploy.custom_resources DEFINITION.yaml…    what of this table published definitions lack
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

Schema = dict[str, Any]
NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
WHOLE: Schema = {"type": "integer"}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
PROMETHEUS_TIME: Schema = {"type": "string", "pattern": "^([0-9]+[ywdhms])+$"}


def several(item: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": item, **bounds}


def fields(*required: str, **properties: Schema) -> Schema:
    """An object with no other fields."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


LABELLED = fields(matchLabels=TEXTS)
RULE = fields("expr", alert=TEXT, expr=TEXT, labels=TEXTS, annotations=TEXTS, **{"for": PROMETHEUS_TIME})
POLICY = fields("type", "value", "periodSeconds", type=TEXT, value=WHOLE, periodSeconds=WHOLE)
SCALING = fields(stabilizationWindowSeconds=WHOLE, policies=several(POLICY))
BEHAVIOR = fields(scaleUp=SCALING, scaleDown=SCALING)
TRIGGER = fields("type", "metadata", type=TEXT, metricType=TEXT, metadata=TEXTS)
BACKEND = fields("name", group=TEXT, kind=TEXT, name=TEXT, port=PORT)
TEMPLATE: Schema = {"type": "object"}  # of a pod: Kubernetes' own schema says what it may hold
PATH = fields(type={"enum": ["Exact", "PathPrefix", "RegularExpression"]}, value=TEXT)
ROUTE_RULE = fields(
    matches=several(fields(path=PATH), maxItems=64),
    backendRefs=several(BACKEND, maxItems=16),
    timeouts=fields(request={"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}),
)

COUNT: Schema = {"type": "integer", "minimum": 0}
POD_TEMPLATE: Schema = {"type": "object", "required": ["metadata", "spec"]}  # of Kubernetes' own kind

SPECS: Mapping[tuple[str, str], Schema] = {
    ("monitoring.coreos.com/v1", "PodMonitor"): fields(
        "selector",
        selector=LABELLED,
        podMetricsEndpoints=several(fields(port=TEXT, path=TEXT, interval=PROMETHEUS_TIME)),
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): fields(
        groups=several(fields("name", name={"type": "string", "minLength": 1}, rules=several(RULE))),
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): fields(
        "scaleTargetRef",
        "triggers",
        scaleTargetRef=fields("name", apiVersion=TEXT, kind=TEXT, name=TEXT),
        minReplicaCount={"type": "integer", "minimum": 0},
        maxReplicaCount={"type": "integer", "minimum": 1},
        advanced=fields(horizontalPodAutoscalerConfig=fields(behavior=BEHAVIOR)),
        triggers=several(TRIGGER, minItems=1),
    ),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): fields(
        "leaderWorkerTemplate",
        replicas=COUNT,
        rolloutStrategy=fields(
            "type",
            type={"enum": ["RollingUpdate"]},
            rollingUpdateConfiguration=fields(maxSurge=COUNT, maxUnavailable=COUNT),
        ),
        startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
        leaderWorkerTemplate=fields(
            "workerTemplate",
            size={"type": "integer", "minimum": 1},
            restartPolicy={"enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
            leaderTemplate=POD_TEMPLATE,
            workerTemplate=POD_TEMPLATE,
        ),
    ),
    ("inference.networking.k8s.io/v1", "InferencePool"): fields(
        "selector",
        "targetPorts",
        selector=fields("matchLabels", matchLabels={**TEXTS, "minProperties": 1, "maxProperties": 64}),
        targetPorts=several(fields("number", number=PORT), minItems=1, maxItems=8),
        endpointPickerRef=fields(
            "name",
            "port",  # of a Service, which is what has no kind
            name={"type": "string", "minLength": 1, "maxLength": 253},
            port=fields("number", number=PORT),
            failureMode={"enum": ["FailOpen", "FailClose"]},
        ),
    ),
    ("ray.io/v1", "RayService"): fields(
        "rayClusterConfig",
        serveConfigV2=TEXT,
        rayClusterConfig=fields(
            "headGroupSpec",
            rayVersion=TEXT,
            enableInTreeAutoscaling={"type": "boolean"},
            headGroupSpec=fields("rayStartParams", "template", rayStartParams=TEXTS, template=TEMPLATE),
            workerGroupSpecs=several(
                fields(
                    *("groupName", "maxReplicas", "minReplicas", "rayStartParams", "template"),
                    groupName=TEXT,
                    replicas=WHOLE,
                    minReplicas=WHOLE,
                    maxReplicas=WHOLE,
                    rayStartParams=TEXTS,
                    template=TEMPLATE,
                )
            ),
        ),
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): fields(
        parentRefs=several(fields("name", name=TEXT, namespace=TEXT, sectionName=TEXT), maxItems=32),
        hostnames=several({"type": "string", "pattern": r"^(\*\.)?" + NAME[1:]}, maxItems=16),
        rules=several(ROUTE_RULE, minItems=1, maxItems=16),
    ),
}
METADATA = fields(
    "name", name={"type": "string", "pattern": NAME, "maxLength": 253}, namespace=TEXT, labels=TEXTS, annotations=TEXTS
)


def problems(thing: dict[str, Any]) -> list[str]:
    """What is wrong with an object, an unknown field too.

    Raises:
        KeyError: the table has no such kind.
    """
    spec = SPECS[thing["apiVersion"], thing["kind"]]
    whole = fields("apiVersion", "kind", "metadata", "spec", apiVersion=TEXT, kind=TEXT, metadata=METADATA, spec=spec)
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(whole).iter_errors(thing)]


def missing(ours: Schema, theirs: Schema, path: str = "spec") -> Iterator[str]:
    """Fields, types, choices and demands of a kind in which `ours` is at odds with its published schema `theirs`."""
    if "type" in theirs and ours.get("type", theirs["type"]) != theirs["type"]:
        yield f"{path} is a {theirs['type']}"
    if not set(theirs.get("required", ())) <= set(ours.get("required", theirs.get("required", ()))):
        yield f"{path} needs {theirs['required']}"
    if "enum" in ours and ours["enum"] != theirs.get("enum"):
        yield f"{path} is one of {theirs.get('enum')}"
    for name, its in ours.get("properties", {}).items():
        if name not in theirs.get("properties", {}):
            yield f"{path} has no {name}"
        else:
            yield from missing(its, theirs["properties"][name], f"{path}.{name}")
    if "items" in ours:
        yield from missing(ours["items"], theirs.get("items", {}), f"{path}[]")


def compare(definition: dict[str, Any]) -> Iterator[str]:
    """What the table says of a kind and its published definition, a CustomResourceDefinition, does not."""
    defined = definition["spec"]
    for version in defined["versions"]:
        key = (f"{defined['group']}/{version['name']}", defined["names"]["kind"])
        if key in SPECS:
            published = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
            yield from (f"{' '.join(key)}: {each}" for each in missing(SPECS[key], published))


def main(paths: list[str]) -> int:
    definitions = [each for path in paths for each in yaml.safe_load_all(Path(path).read_text()) if each]
    differences = [line for each in definitions for line in compare(each)]
    print("\n".join(differences) or f"{len(definitions)} definitions have all that the table says")
    return min(1, len(differences))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
