"""What grammars cost a decode step: none, half or all of its rows under a JSON schema, in turns.

The vocabulary is made up, of as many ids as the model's logits have: every byte, and random words.
"""

import importlib.util
import json
import tempfile
from pathlib import Path

import numpy as np

from jaxengine.grammar.grammar import Grammar
from tests.gpu.decode import fill, timed
from tests.gpu.engines import Client, measured_client
from tests.gpu.record import Record
from tests.gpu.scale import Scale

NEEDED = ("llguidance", "tokenizers")
EOS = 256
# A text of it does not end within a measurement.
TEXTS = {
    "type": "array",
    "minItems": 1000,
    "items": {"type": "object", "properties": {"name": {"type": "string"}, "count": {"type": "integer"}}},
    "x-guidance": {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"},
}


def run(record: Record, scale: Scale) -> None:
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        record.add("skipped", what="grammars", why=f"{', '.join(missing)} cannot be imported")
        return
    short = scale.brief(*scale.decode_rows[-3:])
    with tempfile.TemporaryDirectory() as directory, record.part("grammars"):
        write_vocabulary(Path(directory), scale.spec.vocab_size)
        with measured_client(short, eos_token_ids=(EOS,), directory=Path(directory)) as client:
            for rows in short.decode_rows:
                for constrained in sorted({0, rows // 2, rows}):
                    measure(client, record, short, rows, constrained)


def measure(client: Client, record: Record, scale: Scale, rows: int, constrained: int) -> None:
    """A row of "grammars": steps of `rows`, of which so many are `constrained`."""
    engine, [context] = client.engine, scale.contexts
    crowd = client.submit(constrained, context, scale.growth, Grammar("json_schema", json.dumps(TEXTS)))
    crowd += client.submit(rows - constrained, context, scale.growth)
    fill(client, crowd)
    before = engine.stats().grammar_mask_seconds
    times = timed(client, scale.decode_steps)
    masks = (engine.stats().grammar_mask_seconds - before) / scale.decode_steps
    record.add("grammars", rows=rows, constrained=constrained, tokens=rows, mask_seconds=masks, **times)
    client.cancel(crowd)


def write_vocabulary(directory: Path, size: int) -> None:
    """A byte-level tokenizer.json of `size` ids; id `EOS` ends a text."""
    alphabet = _byte_alphabet()
    random, words = np.random.default_rng(0), dict.fromkeys(alphabet)
    words["<end>"] = None
    while len(words) < size:
        letters = random.integers(97, 123, random.integers(2, 9))
        words["Ġ" * int(random.integers(2)) + "".join(map(chr, letters))] = None
    vocabulary = {word: id for id, word in enumerate(words)}
    steps = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    ends = {"id": EOS, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    described = {
        "version": "1.0",
        "added_tokens": [{**ends, "special": True}],
        "pre_tokenizer": steps,
        "decoder": steps,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    (directory / "tokenizer.json").write_text(json.dumps(described))


def _byte_alphabet() -> list[str]:
    """GPT-2's characters for the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printable] + [chr(0x100 + i) for i in range(256 - len(printable))]
