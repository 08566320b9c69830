"""A GGUF file on the Hub whose weights are not here: a file of the same size, of which little but the header is filled.

Like `RemoteTensors` it is for plans.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from convert.errors import CheckpointError
from convert.formats.gguf import MAX_METADATA, GgufFile
from convert.origin.hub import RemoteFile

STARTS = (4 << 20, 16 << 20, MAX_METADATA)  # bytes; a header is as long as its vocabulary, for most less than 16 MB


def open_header(file: RemoteFile, names: Sequence[str]) -> GgufFile:
    """A file whose header is filled, and its tensors `names`.

    Raises:
        CheckpointError: as `GgufFile` does, or the file cannot be had.
    """
    with tempfile.TemporaryDirectory() as directory:
        path, there = Path(directory, Path(file.name).name), 0
        for octets in STARTS:
            more, size = file.read(there, octets)
            with path.open("ab") as target:
                target.truncate(there)
                target.write(more)
            os.truncate(path, size)
            there += len(more)
            try:
                return _filled(file, path, names)
            except CheckpointError:
                if there == size or octets == STARTS[-1]:
                    raise
    raise AssertionError("the last start is the longest that a header may be")


def _filled(file: RemoteFile, path: Path, names: Sequence[str]) -> GgufFile:
    """What `path` holds, and then the tensors `names` too. It stays mapped when it is removed."""
    made = GgufFile(path)
    with path.open("r+b") as target:
        for tensor in (made.tensors[name] for name in names if name in made.tensors):
            target.seek(tensor.start)
            target.write(file.read(tensor.start, tensor.end)[0])
    return made
