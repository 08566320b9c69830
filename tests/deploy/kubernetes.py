"""Kubernetes' own kinds: what of an object its API server would refuse, by the schemas of several versions."""

import functools
import json
import re
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from tests.deploy import fetched

OLDEST = "1.30"  # that the chart admits
VERSIONS = (OLDEST, "1.34", "1.37")


def problems(thing: dict[str, Any], version: str) -> list[str]:
    """What is wrong with an object, an unknown field too.

    Raises:
        KeyError: that version has no such kind.
    """
    api = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", thing["apiVersion"])  # apps/v1: apps-v1; policy/v1: policy-v1
    return found(thing, f"{thing['kind'].lower()}-{api}", version)


def found(value: Any, schema: str, version: str) -> list[str]:
    """What is wrong with `value` by a schema's file name, such as `container-v1`."""
    errors = Draft202012Validator(_json(schema, version), registry=_definitions(version)).iter_errors(value)
    return [f"{error.json_path}: {error.message}" for error in errors]


@functools.cache
def _json(schema: str, version: str) -> Any:
    path = f"kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict/{schema}.json"
    return json.loads(fetched.wheel(fetched.KUBERNETES_SCHEMAS).read(path))


@functools.cache
def _definitions(version: str) -> "Registry[Any]":
    definitions = DRAFT202012.create_resource(_json("_definitions", version))
    return Registry().with_resource("_definitions.json", definitions).crawl()
