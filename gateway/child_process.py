"""How a child process that runs our code is started, so that it runs no file of the user's working directory.

Python looks for modules in the directory where it is started, and would import a `secrets.py` that lies there instead
of its own. So a child starts with `-P`, which switches that off, in another directory, and with only those environment
variables that it needs. Variables that name a file are made absolute: they name the same file in the child.
"""

import os
import site
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

NEUTRAL_DIRECTORY = Path("/")  # working directory of a child that has none of its own
PACKAGES_DIRECTORY = str(Path(__file__).absolute().parent.parent)  # where the packages lie, installed or not

NAMES = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "TZ")  # for every child
NETWORK = (  # for children that connect to other machines
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NETRC"),
)
SEARCHED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")  # directories that are searched for code
FILES = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NETRC", "TMPDIR"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"),
    *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH"),
    *("PIP_CACHE_DIR", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_CONFIG_FILE"),
    *("JAX_COMPILATION_CACHE_DIR", "CUDA_CACHE_PATH", "CUDA_HOME", "CUDA_PATH", "NCCL_CONF_FILE"),
    *("OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_KEY"),
)


def python(module: str, *arguments: str) -> list[str]:
    """The command line that runs `module`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(ours: Mapping[str, str], names: Collection[str] = (), prefixes: tuple[str, ...] = ()) -> dict[str, str]:
    """The part of environment `ours` for a child: `NAMES`, `names`, and variables that begin with one of `prefixes`."""
    allowed = {
        name: _made_absolute(name, value)
        for name, value in ours.items()
        if name in NAMES or name in names or name.startswith(prefixes)
    }
    return {**allowed, "PYTHONPATH": _with_packages(allowed.get("PYTHONPATH", ""))}


def absolute(path: str) -> str:
    """A path as the user wrote it, made absolute while our working directory is still the user's."""
    return str(Path(os.path.expanduser(path)).absolute())


def _made_absolute(name: str, value: str) -> str:
    if name in SEARCHED:  # an empty entry means the working directory
        return os.pathsep.join(filter(os.path.isabs, value.split(os.pathsep)))
    if name == "PIP_FIND_LINKS":  # several paths or URLs, separated by spaces
        return " ".join(each if "://" in each else absolute(each) for each in value.split())
    return absolute(value) if name in FILES and value else value


def _with_packages(search: str) -> str:
    """PYTHONPATH with the directory of our packages first, unless they are installed.

    Installed packages are found without it, and putting their directory first would place every other package there
    before Python's own library.
    """
    if PACKAGES_DIRECTORY in (*site.getsitepackages(), site.getusersitepackages()):
        return search
    return os.pathsep.join(dict.fromkeys([PACKAGES_DIRECTORY, *filter(None, search.split(os.pathsep))]))
