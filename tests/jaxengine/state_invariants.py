"""I31: a snapshot holds the states behind the prefix of its key, and every slot of snapshots is in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.jaxengine.fake_engine import FakeEngine


def check_snapshots(engine: FakeEngine) -> None:
    snapshots = engine.scheduler.tables.snapshots
    if snapshots is None:
        return
    for key, slot in snapshots.found.items():
        behind = engine.truth[0, key][1][-1]
        assert engine.device.states.get(slot) == behind, f"I31: snapshot {slot} holds not what its key says"
    coming = [save.snapshot for step in engine.steps for save in step.plan.saves]
    slots = sorted([*snapshots.blank, *snapshots.found.values(), *coming])
    assert slots == list(snapshots.slots), f"I31: slots of snapshots {slots}"
    wanted = [(save.sequence, save.at) for step in engine.steps for save in step.plan.saves]
    for sequence in engine.placed:
        passed = [at for at in sequence.saves if at <= sequence.computed and (sequence, at) not in wanted]
        assert not passed, f"I31: states behind {passed} tokens were to be saved"
