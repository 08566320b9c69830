"""An engine that repeats the leader's launches on its own devices. Requests, pages and adapters are the leader's."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import NoReturn

import numpy as np
from jax import Array

from jaxengine.executor.device_state import DeviceState, kind_of
from jaxengine.group.follower import FollowerLink
from jaxengine.group.wire import BrokenLink, Frame, Kind, unpacked_arrays, unpacked_launch
from jaxengine.request.interface import AdapterRefused, Description, ServedAdapter, Stats, StepResult
from jaxengine.request.sequence import Request

WAIT_SECONDS = 0.5  # of a step, for the next launch
STEPS_BEHIND = 8  # the leader compares what it has sampled at most so many launches of samples later


class Divergence(RuntimeError):
    """The devices of this process have sampled other tokens than the leader's."""


class Replay:
    """A `DrivenEngine` that no request can be sent to.

    Args:
        names: of all executables, by index.
    """

    def __init__(
        self,
        description: Description,
        state: DeviceState,
        names: Sequence[Hashable],
        leader: FollowerLink,
        *,
        steps_on_host: bool,
    ) -> None:
        self.description = description
        self.steps_on_host = steps_on_host
        self._state, self._names, self._leader = state, names, leader
        self._sampled: deque[tuple[int, Array]] = deque(maxlen=STEPS_BEHIND)
        self._steps = 0

    def step(self) -> StepResult | None:
        """Do what the leader tells next.

        Raises:
            Divergence: what was sampled here is not what was sampled there.
            BrokenLink: it tells what cannot be done.
        """
        frame = self._leader.next_frame(WAIT_SECONDS)
        if frame is None:
            return None
        try:
            self._do(frame)
        except Exception as error:
            self._leader.fail(f"launch {frame.number} failed: {error}")
            raise
        return None

    def _do(self, frame: Frame) -> None:
        if frame.kind is Kind.LAUNCH:
            self._repeat(frame)
        elif frame.kind is Kind.SAMPLED:
            self._compare(frame)
        else:
            raise BrokenLink(f"a {frame.kind.name} in place of a launch")

    def _repeat(self, frame: Frame) -> None:
        index, arrays = unpacked_launch(frame.payload)
        if index >= len(self._names) or frame.number != self._state.launches + 1:
            raise BrokenLink(f"launch {frame.number} of executable {index} behind launch {self._state.launches}")
        name = self._names[index]
        output = self._state.launch(name, *arrays)
        self._leader.repeated = frame.number
        if kind_of(name) == "sample":
            self._sampled.append((frame.number, output))
            self._steps += 1

    def _compare(self, frame: Frame) -> None:
        (theirs,) = unpacked_arrays(frame.payload)
        kept = (np.asarray(sampled) for number, sampled in self._sampled if number == frame.number)
        ours = next((sampled[: len(theirs), 0] for sampled in kept), None)
        if ours is None or not np.array_equal(ours, theirs):
            here = "nothing" if ours is None else ours.tolist()
            raise Divergence(f"it has sampled {here}, and the leader {theirs.tolist()}")

    # --- what nobody asks of a follower ---------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return False

    def notify(self, wake: Callable[[], None]) -> None:
        """Nothing but the leader has anything to do for it."""

    def submit(self, request: Request) -> NoReturn:
        raise ValueError("this machine follows another, which takes the requests")

    def cancel(self, request_id: int) -> None:
        """There are no requests."""

    def is_queued(self, request_id: int) -> bool:
        return False

    def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> ServedAdapter:
        raise AdapterRefused("off", "this machine follows another, which loads the adapters")

    def unload_adapter(self, name: str) -> None:
        raise AdapterRefused("off", "this machine follows another, which loads the adapters")

    def adapters(self) -> tuple[ServedAdapter, ...]:
        return ()

    def stats(self) -> Stats:
        pages = self.description.pages_total
        return Stats(0, 0, pages, 0, 0, 0, 0, 0, 0, 0, 0, self._steps)
