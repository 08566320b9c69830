"""From a setup to the engine's scheduler: page tables, images and drafts as the model's architecture wants them."""

from jaxengine.cache.limits import Limits
from jaxengine.cache.page_pool import PagePool
from jaxengine.cache.page_tables import PageTables
from jaxengine.cache.snapshots import Snapshots
from jaxengine.executor.runner import Runner
from jaxengine.model.vision.packing import needed
from jaxengine.request.interface import OpenModel
from jaxengine.rpc.page_keys import cache_name
from jaxengine.scheduler.image_planner import ImagePlanner
from jaxengine.scheduler.scheduler import Scheduler
from jaxengine.speculation.speculator import Speculator
from jaxengine.startup.setup import Setup


def build_scheduler(setup: Setup, model: OpenModel, limits: Limits, pages: int, runner: Runner) -> Scheduler:
    """Over a pool of `pages`, the sink included; `runner` tells which steps can verify drafts, and may draft itself."""
    vision = setup.spec.vision
    snapshots = Snapshots(limits.snapshot_slots) if setup.spec.recurrent_layers else None
    tables = PageTables(
        PagePool(pages, limits.page_size),
        limits.windows,
        limits.token_budget,
        model=cache_name(model.model_id, model.revision),
        prefix_cache=setup.shares_prefixes(limits),
        whole_prompts=vision is not None and vision.horizon == "prompt",
        snapshots=snapshots,
    )
    return Scheduler(
        tables,
        limits.max_batch_size,
        images=_image_planner(setup, limits),
        rope_switch_length=setup.spec.rope_switch_length,
        adapters=setup.adapters.slots,
        speculator=_speculator(setup, limits, runner),
        keeps_states=setup.spec.keeps_states,
    )


def _image_planner(setup: Setup, limits: Limits) -> ImagePlanner | None:
    """The images of prompts, of a model that sees."""
    vision = setup.spec.vision
    if vision is None:
        return None
    largest = limits.see_shapes(vision)[-1]
    return ImagePlanner(
        limits.image_rows,
        vision.horizon,
        lambda pictures: largest.holds(needed(vision, pictures)),
        limits.image_run(vision),
    )


def _speculator(setup: Setup, limits: Limits, runner: Runner) -> Speculator | None:
    if setup.speculation is None:
        return None
    buckets, proposer = runner.buckets, (runner.draft or runner) if setup.drafter else None
    return Speculator(setup.speculation, limits.verify_buckets, buckets.can_verify, buckets.plain_size, proposer)
