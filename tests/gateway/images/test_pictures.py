"""Which helper a process has, as engines come and go."""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

from gateway.config.options import Options
from gateway.images.pictures import Pictures
from gateway.images.room import Room
from gateway.text.loader import ModelTextLoader
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.images.models import directory
from tests.gateway.seeing import IMAGE, PATCH_VALUES, ToyHelper


class Counted(ToyHelper):
    """It takes its time to close, and those that have not closed are counted."""

    open: ClassVar[list["Counted"]] = []

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory, room=options.get("room", Room()))
        self.open.append(self)

    async def close(self) -> None:
        await asyncio.sleep(0.01)
        self.open.remove(self)


async def test_engines_that_become_ready_at_once_leave_one_helper() -> None:
    described = pb.Description(
        model_dir=str(directory("llava_next")), max_total_tokens=512, image_token_id=IMAGE, patch_values=PATCH_VALUES
    )
    loader = ModelTextLoader(1, payload_limit=1 << 20)
    pictures = Pictures(Options(), Counted)
    for tokens in (512, 513):  # another context is another model
        described.max_total_tokens = tokens
        await loader.prepare(described)
        assert loader.current is not None
        await asyncio.gather(*[pictures.prepare(described, loader.current) for _ in range(2)])
        assert pictures.sight is not None and len(Counted.open) == 1
    await pictures.close()
    assert not Counted.open
    await loader.close()
