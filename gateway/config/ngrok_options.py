"""The options of the tunnel that ngrok keeps open to this server."""

from collections.abc import Collection
from dataclasses import dataclass

from gateway.config import values
from jaxengine.options.option import UsageError, option

OF_NGROK = ("ngrok_authtoken", "ngrok_authtoken_file", "ngrok_edge")  # without effect unless `ngrok` is set


@dataclass(frozen=True, kw_only=True)
class NgrokOptions:
    """A part of the table of `Options`."""

    ngrok: bool = option(
        False,
        values.flag,
        "forward a public address of ngrok's to the port once the model is ready; needs an API key",
        after="ssl_keyfile",
    )
    ngrok_authtoken: str | None = option(
        None,
        values.token,
        "token of the ngrok account; NGROK_AUTHTOKEN hides it from lists of processes",
        secret=True,
        after="ngrok",
    )
    ngrok_authtoken_file: str | None = option(
        None,
        values.token_file,
        "file that holds the token, instead of --ngrok-authtoken",
        secret=True,
        after="ngrok_authtoken",
    )
    ngrok_edge: str | None = option(
        None,
        values.edge,
        "domain of the account to forward, or an edge (edghts_…); ngrok chooses if not given",
        after="ngrok_authtoken_file",
    )

    @property
    def ngrok_token(self) -> str | None:
        """The token of the ngrok account, wherever it was given."""
        return self.ngrok_authtoken or self.ngrok_authtoken_file

    def check_ngrok(self, keys: Collection[str]) -> None:
        """Raises UsageError where the options contradict each other; `keys` are the API keys."""
        given, in_file = self.ngrok_authtoken, self.ngrok_authtoken_file
        if given and in_file and given != in_file:
            raise UsageError("--ngrok-authtoken and --ngrok-authtoken-file differ: set only one of them")
        if not self.ngrok:
            return
        if self.ngrok_token is None:
            raise UsageError("--ngrok needs the token of your account: set NGROK_AUTHTOKEN or --ngrok-authtoken-file")
        if not keys:
            raise UsageError(
                "--ngrok opens this server to the whole internet: set API_KEY or --api-key-file to ask for a key"
            )
