"""Where a server listens: what cannot be had is one sentence that names the address, or the file of TLS."""

import subprocess
from pathlib import Path

import pytest
import trustme

from gateway.config.command_line import parse
from gateway.http.listener import CannotListen, bind, reserve, tls_problem


@pytest.mark.parametrize("name", ["a..b", "a" * 300, "\udcff"])
@pytest.mark.parametrize("listen", [bind, reserve])
def test_a_name_that_no_host_can_have_is_refused(name: str, listen: object) -> None:
    with pytest.raises(CannotListen, match=f"^cannot listen on {name[:255]}:0: no host can have this name$"):
        listen(name, 0)  # type: ignore[operator]


@pytest.fixture
def pems(tmp_path: Path) -> Path:
    """A directory with a certificate, its key, that key encrypted, the key of another one, and a cut certificate."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "chain.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.issue_cert("localhost").private_key_pem.write_to_path(tmp_path / "other.pem")
    (tmp_path / "cut.pem").write_bytes((tmp_path / "chain.pem").read_bytes()[:300])
    encrypt = ["openssl", "pkey", "-in", "key.pem", "-aes128", "-passout", "pass:secret", "-out", "encrypted.pem"]
    subprocess.run(encrypt, cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("certificate", "key", "reason"),
    [
        ("chain.pem", "other.pem", "the key is not that of the certificate"),
        ("chain.pem", "encrypted.pem", "the key is encrypted; openssl pkey -in KEY -out NEW writes one that is not"),
        ("chain.pem", "chain.pem", "{}/chain.pem holds no PRIVATE KEY in PEM"),
        ("key.pem", "chain.pem", "{0}/key.pem holds no CERTIFICATE in PEM; {0}/chain.pem holds no PRIVATE KEY in PEM"),
        ("cut.pem", "key.pem", "the certificate or the key is damaged"),
    ],
)
def test_files_of_tls_that_do_not_fit_are_told_apart(pems: Path, certificate: str, key: str, reason: str) -> None:
    options = parse([f"--ssl-certfile={pems}/{certificate}", f"--ssl-keyfile={pems}/{key}"], {})
    assert tls_problem(options) == f"--ssl-certfile and --ssl-keyfile cannot be used: {reason.format(pems)}"


def test_files_that_fit_are_no_problem(pems: Path) -> None:
    assert tls_problem(parse([f"--ssl-certfile={pems}/chain.pem", f"--ssl-keyfile={pems}/key.pem"], {})) is None
