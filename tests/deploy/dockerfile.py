"""`deploy/Dockerfile` as instructions, and what of the tree `.dockerignore` lets into a build."""

import re
from dataclasses import dataclass, field

from tests.processes import ROOT

PATH = ROOT / "deploy" / "Dockerfile"


@dataclass
class Stage:
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)  # (RUN, its text) with lines joined

    def texts(self, instruction: str) -> list[str]:
        return [text for name, text in self.instructions if name == instruction]

    def environment(self) -> dict[str, str]:
        pairs = [pair.partition("=") for text in self.texts("ENV") for pair in text.split()]
        return {name: value for name, _, value in pairs}


def stages() -> list[Stage]:
    """The stages in order; the last one is the image."""
    lines = [line for line in PATH.read_text().splitlines() if line and not line.startswith("#")]
    found: list[Stage] = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        instruction, _, text = line.partition(" ")
        if instruction == "FROM":
            found.append(Stage(text.partition(" AS ")[2]))
        if found:
            found[-1].instructions.append((instruction, text))
    return found


def allowed() -> list[str]:
    """What a build may read: the names that `.dockerignore` excepts from its `*`."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line[1:] for line in lines if line.startswith("!")]
