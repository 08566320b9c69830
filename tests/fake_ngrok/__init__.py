"""A launcher with a fake library of ngrok's: where the library is, what its environment says, what it was asked."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import PATIENCE, ROOT

TOKEN = "2b7JgsecretQz9"
KEY = {"authorization": "Bearer hush"}


@dataclass
class FakeNgrok:
    """What the library in `tests/fake_ngrok/library` keeps in `directory`."""

    directory: Path

    def fail(self, times: int) -> None:
        (self.directory / "failures").write_text(str(times))

    def cut(self) -> None:
        (self.directory / "cut").touch()

    @property
    def environment(self) -> dict[str, str]:
        """Of a launcher that finds the library, with a token of ngrok's and an API key."""
        search = f"{Path(__file__).parent / 'library'}:{ROOT}"
        return {"PYTHONPATH": search, "FAKE_NGROK": str(self.directory), "NGROK_AUTHTOKEN": TOKEN, "API_KEY": "hush"}

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """What the library was asked: each a name and arguments."""
        file = self.directory / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(name, given) for name, given in map(json.loads, lines)]

    def wait_for(self, call: str, times: int = 1) -> dict[str, Any]:
        """The arguments of a call, the `times`-th of this name. Fails after `PATIENCE`."""
        deadline = time.monotonic() + PATIENCE
        while len(found := [given for name, given in self.calls if name == call]) < times:
            assert time.monotonic() < deadline, f"there is no {call}: {self.calls}"
            time.sleep(0.02)
        return found[times - 1]
