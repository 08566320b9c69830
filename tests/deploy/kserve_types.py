"""KServe's kinds: what of an object does not fit the classes of its SDK, which are made from its definitions."""

import ast
import functools
import re
from typing import Any

from tests.deploy import fetched, kubernetes

MODELS = "kserve/models/"
PLAIN = {"str": str, "int": int, "bool": bool, "object": dict}
GROUP = "serving.kserve.io/"


def problems(thing: dict[str, Any]) -> list[str]:
    """What is wrong with an object, an unknown field too; what is Kubernetes' own in it, by its latest schema.

    Raises:
        KeyError: KServe has no such kind.
    """
    version = thing["apiVersion"].removeprefix(GROUP)
    return _problems(thing, version[0].upper() + version[1:] + thing["kind"], thing["kind"])


def _problems(value: Any, kind: str, path: str) -> list[str]:
    if kind in PLAIN:
        return [] if isinstance(value, PLAIN[kind]) else [f"{path}: {value!r} is not of type {kind}"]
    if item := re.fullmatch(r"list\[(\w+)\]", kind):
        return [line for n, each in enumerate(value) for line in _problems(each, item[1], f"{path}[{n}]")]
    if item := re.fullmatch(r"dict\(str, (\w+)\)", kind):
        return [line for key, each in value.items() for line in _problems(each, item[1], f"{path}.{key}")]
    if kind not in _classes():
        return [f"{path}: {line}" for line in kubernetes.found(value, _schema(kind), kubernetes.VERSIONS[-1])]
    types = _classes()[kind]
    unknown = [f"{path}: {name!r} is no field of {kind}" for name in value.keys() - types.keys()]
    known = [(name, types[name], each) for name, each in value.items() if name in types]
    return unknown + [line for name, its, each in known for line in _problems(each, its, f"{path}.{name}")]


def _schema(kind: str) -> str:
    """The file of one of Kubernetes' own types: V1Container is container-v1."""
    return "objectmeta-meta-v1" if kind == "V1ObjectMeta" else kind.removeprefix("V1").lower() + "-v1"


@functools.cache
def _classes() -> dict[str, dict[str, str]]:
    """Of each class, the types of its fields as they are called in manifests."""
    package = fetched.wheel(fetched.KSERVE)
    files = [name for name in package.namelist() if name.startswith(MODELS) and name.endswith(".py")]
    defined = [node for file in files for node in ast.parse(package.read(file)).body if isinstance(node, ast.ClassDef)]
    return {each.name: _types(each) for each in defined}


def _types(defined: ast.ClassDef) -> dict[str, str]:
    tables = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in defined.body
        if isinstance(node, ast.Assign)
    }
    names = tables["attribute_map"]
    return {names[attribute]: kind for attribute, kind in tables["openapi_types"].items()}
