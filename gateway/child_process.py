"""How a child process that runs our code is started: nothing in the directory somebody happened to be in is run by it.

Python looks for modules where it is started, and a `secrets.py` lying there would be taken for its own. So a child
starts with `-P`, which leaves that out, in another directory, and with those variables only that it has a use for. What
of them names a file is made absolute: it means there what it means here.
"""

import os
import site
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

NOWHERE = Path("/")  # to be in, for who has no directory of its own
HERE = str(Path(__file__).absolute().parent.parent)  # where the packages lie, installed or not

NAMES = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "TZ")  # for every child
NETWORK = (  # for those that connect to others
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NETRC"),
)
SEARCHED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")  # for code
FILES = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NETRC", "TMPDIR"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"),
    *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH"),
    *("PIP_CACHE_DIR", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_CONFIG_FILE"),
    *("JAX_COMPILATION_CACHE_DIR", "CUDA_CACHE_PATH", "CUDA_HOME", "CUDA_PATH", "NCCL_CONF_FILE"),
    *("OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_KEY"),
)


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs `module`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(ours: Mapping[str, str], names: Collection[str] = (), prefixes: tuple[str, ...] = ()) -> dict[str, str]:
    """What a child may see of `ours`: what every one needs, `names`, and those that begin with one of `prefixes`."""
    allowed = {
        name: _as_here(name, value)
        for name, value in ours.items()
        if name in NAMES or name in names or name.startswith(prefixes)
    }
    return {**allowed, "PYTHONPATH": _with_packages(allowed.get("PYTHONPATH", ""))}


def absolute(path: str) -> str:
    """What a user wrote, as long as our working directory is what it is relative to."""
    return str(Path(os.path.expanduser(path)).absolute())


def _as_here(name: str, value: str) -> str:
    if name in SEARCHED:  # an empty entry means the working directory
        return os.pathsep.join(filter(os.path.isabs, value.split(os.pathsep)))
    if name == "PIP_FIND_LINKS":  # several, with spaces between, or their URLs
        return " ".join(each if "://" in each else absolute(each) for each in value.split())
    return absolute(value) if name in FILES and value else value


def _with_packages(search: str) -> str:
    """PYTHONPATH with the directory of our packages. Where they are installed Python finds them, and all else that lies
    there must not come before its own library.
    """
    if HERE in (*site.getsitepackages(), site.getusersitepackages()):
        return search
    return os.pathsep.join(dict.fromkeys([HERE, *filter(None, search.split(os.pathsep))]))
