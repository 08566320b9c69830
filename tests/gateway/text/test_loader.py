"""The text side of a model is loaded once, however many engines come up with it."""

import asyncio
from pathlib import Path

from gateway.text.loader import ModelTextLoader
from gateway.text.model_text import ModelText
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.toys import write_model


async def test_engines_that_come_up_at_once_share_one_text(tmp_path: Path) -> None:
    loader = ModelTextLoader(1, payload_limit=1_000_000)
    description = pb.Description(state=pb.READY, model_dir=str(write_model(tmp_path)), max_total_tokens=64)

    async def loaded() -> ModelText | None:
        await loader.prepare(description)
        return loader.current

    first, *others = await asyncio.gather(*(loaded() for _ in range(4)))
    assert first is not None and all(each is first for each in (*others, loader.current))
    await loader.close()
