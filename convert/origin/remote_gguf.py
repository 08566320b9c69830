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
        path = Path(directory, Path(file.name).name)
        for octets in STARTS:
            start, size = file.read(0, octets)
            path.write_bytes(start)
            os.truncate(path, size)
            try:
                return _filled(file, path, names)
            except CheckpointError:
                if len(start) == size or octets == STARTS[-1]:
                    raise
    raise AssertionError("the last start is the longest that a header may be")


def _filled(file: RemoteFile, path: Path, names: Sequence[str]) -> GgufFile:
    """What `path` holds, once the tensors `names` are there. It stays mapped when it is removed."""
    tensors = GgufFile(path).tensors
    with path.open("r+b") as target:
        for tensor in (tensors[name] for name in names if name in tensors):
            target.seek(tensor.start)
            target.write(file.read(tensor.start, tensor.end)[0])
    return GgufFile(path)
