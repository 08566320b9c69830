"""The kinds of values that an option's text may have: the engine's kinds, and those that only the launcher needs."""

import json
import re
from ipaddress import ip_network
from pathlib import Path

from gateway.child_process import absolute
from jaxengine.options.adapters import NamedAdapter
from jaxengine.options.values import Value, any_case, flag, known_as, number, one_of, text, url, whole

__all__ = [
    "Value",
    "any_case",
    "domain",
    "edge",
    "existing_directory",
    "existing_file",
    "flag",
    "key_file",
    "keys",
    "known_as",
    "label",
    "lora_module",
    "number",
    "one_of",
    "origin",
    "path",
    "prefix",
    "route",
    "text",
    "token",
    "token_file",
    "url",
    "whole",
]


def _label(text: str) -> str:
    """Text that an HTTP header may hold."""
    if not text.isascii() or not text.isprintable() or text.strip() != text or not text:
        raise ValueError("must be printable ASCII without spaces around it")
    return text


def _path(text: str) -> Path:
    """An absolute path, because it is passed to processes with other working directories. Nothing, as of a variable
    that a script forgot to set, would be the working directory itself.
    """
    if not text.strip():
        raise ValueError("must not be empty")
    return Path(absolute(text))


def _existing_directory(text: str) -> Path:
    if not _path(text).is_dir():
        raise ValueError("must be an existing directory")
    return _path(text)


def _existing_file(text: str) -> Path:
    if not _path(text).is_file():
        raise ValueError("must be an existing file")
    return _path(text)


def _keys(text: str) -> str:
    """One or several API keys, one on each line."""
    for line in text.splitlines() or [""]:
        if not line.isascii() or not line.isprintable() or line.strip() != line or not line:
            raise ValueError("must be printable ASCII without spaces at its ends")
    return text


def _key_file(text: str) -> str:
    """The API keys in a file: its lines without the empty ones."""
    found = _lines(_existing_file(text))
    if not found:
        raise ValueError("must hold at least one key")
    return _keys("\n".join(found))


def _token(text: str) -> str:
    if not text.isascii() or not text.isprintable() or " " in text or not text:
        raise ValueError("must be one token: printable ASCII without spaces")
    return text


def _token_file(text: str) -> str:
    """The token in a file, which holds nothing else but space around it."""
    found = _lines(_existing_file(text))
    if len(found) != 1:
        raise ValueError("must hold one token and nothing else")
    return _token(found[0])


def _lines(path: Path) -> list[str]:
    """The lines of a file without the empty ones and without space around them."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ValueError("must be UTF-8 text that can be read") from None
    return [line.strip() for line in lines if line.strip()]


def _edge(text: str) -> str:
    """An edge of ngrok's by its id, or a domain."""
    if not re.fullmatch(r"edghts_[A-Za-z0-9]+|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", text):
        raise ValueError("must be a domain such as name.ngrok.app, without https://, or an edge such as edghts_2b7")
    return text


def _domain(text: str) -> str:
    """What `gateway.images.domains` reads: a host, `*.` and the name below which hosts lie, an address or a network."""
    match = re.fullmatch(r"(\[[0-9a-f:./]+\]|[^:\[\]]+)(:[1-9][0-9]{0,4})?", text.lower())
    host = match[1].strip("[]") if match else ""
    if re.fullmatch(r"[0-9./]+|[0-9a-f:./]*:[0-9a-f:./]*", host):
        _reachable(host)
    elif not re.fullmatch(r"\*|(\*\.)?([a-z0-9_-]+\.)*[a-z0-9_-]+", host):
        raise ValueError("must be a host such as images.example.com, or *.example.com, without https://")
    return text.lower()


def _reachable(text: str) -> None:
    """Link-local addresses are where clouds keep credentials."""
    try:
        network = ip_network(text)
    except ValueError:
        raise ValueError("must be an address, or a network such as 10.1.0.0/16") from None
    if network.is_link_local or network.is_multicast or not network.prefixlen:
        raise ValueError("must not be link-local, multicast or the whole internet")


def _origin(text: str) -> str:
    if text != "*" and not text.startswith(("http://", "https://")):
        raise ValueError("must be '*' or start with http:// or https://")
    return text.rstrip("/")


def _route(text: str) -> str:
    if not text.startswith("/") or not text.isprintable() or not text.isascii() or set(text) & set(" {}?#"):
        raise ValueError("must be a path that begins with /, without spaces, braces, ? or #")
    return text


def _prefix(text: str) -> str:
    """A route without the slash at its end; "/" becomes empty."""
    return _route(text).rstrip("/")


def _lora_module(text: str) -> str:
    """An entry of `--lora-adapters`. vLLM's `base_model_name` names the model that is served, which needs no name."""
    if not text.lstrip().startswith("{"):
        if "=" not in text:
            raise ValueError("must be name=path, or JSON with name and path")
        return str(NamedAdapter.parse(text))
    try:
        fields = {name: value for name, value in json.loads(text).items() if value is not None}
    except ValueError:
        raise ValueError("must be name=path, or JSON with name and path") from None
    if unknown := fields.keys() - {"name", "path", "base_model_name"}:
        raise ValueError(f"must have no other fields than name, path and base_model_name, has {min(unknown)!r}")
    if not all(isinstance(value, str) for value in fields.values()) or not {"name", "path"} <= fields.keys():
        raise ValueError("must have the fields name and path, both texts")
    return str(NamedAdapter(fields["name"], fields["path"]))


label = Value("TEXT", _label)
path = Value("PATH", _path)
existing_directory = Value("DIRECTORY", _existing_directory)
existing_file = Value("FILE", _existing_file)
keys = Value("KEYS", _keys)
key_file = Value("FILE", _key_file)
token = Value("TOKEN", _token)
token_file = Value("FILE", _token_file)
edge = Value("DOMAIN|EDGE", _edge)
domain = Value("HOST", _domain)
origin = Value("ORIGIN", _origin)
lora_module = Value("NAME=PATH", _lora_module)
route = Value("/PATH", _route)
prefix = Value("/PATH", _prefix)
