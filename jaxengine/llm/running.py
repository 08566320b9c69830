"""A completion that the engine still works on: events in, text out."""

from collections.abc import Callable

from gateway.text.detokenizer import Detokenizer
from gateway.text.stop_strings import StopMatcher
from jaxengine.llm.completion import Completion
from jaxengine.request.event import Beam, Event, FinishReason


class Running:
    """Events are added, and text is taken, until the completion has a reason of its end.

    Args:
        streamed: whether text is wanted as it comes. Else it is decoded once, at the end, unless stop strings need it.
    """

    def __init__(self, completion: Completion, new_detokenizer: Callable[[], Detokenizer], streamed: bool) -> None:
        params = completion.params
        self.completion = completion
        self._new_detokenizer = new_detokenizer
        self._detokenizer = new_detokenizer()
        self._stops = StopMatcher([*params.stops], keep=params.include_stop_str_in_output)
        self._at_once = streamed or bool(params.stops)
        self._parts: list[str] = []
        self._taken = 0  # of the parts

    def new_text(self) -> str:
        """What has been released since the last call. The completion has it too then."""
        new = "".join(self._parts[self._taken :])
        self._taken = len(self._parts)
        if not self.completion.finish_reason:
            self.completion.text += new
        return new

    def add(self, event: Event) -> None:
        """Add what a step brought; end the completion at its first stop string, or for the engine's reason."""
        made = self.completion
        if event.first:
            made.prompt_tokens, made.cached_tokens = [*event.prompt], event.cached_tokens
        made.beams, made.embedding = [self._beam(beam) for beam in event.beams], event.embedding
        for number, token in enumerate(event.tokens, 1):
            made.tokens.append(token)
            if self._at_once and not (number == len(event.tokens) and self._hides(event.finish)):
                self._release(self._detokenizer.push(token.id))
            if made.finish_reason:
                return
        if event.finish is not FinishReason.NOT_FINISHED:
            self._end(event)

    def _beam(self, beam: Beam) -> Completion:
        own = self.completion
        made = Completion(own.prompt_ids, own.params, [*beam.tokens], score=beam.score, decode=own.decode)
        made.text = self._new_detokenizer().flush(self._shown(made, beam.finish))
        made.finish_reason, made.cached_tokens = beam.finish.name.lower(), own.cached_tokens
        return made

    def _end(self, event: Event) -> None:
        made = self.completion
        self._release(self._detokenizer.flush(() if self._at_once else self._shown(made, event.finish)))
        if not made.finish_reason:
            made.finish_reason, made.error = event.finish.name.lower(), event.error
            self._parts.append(self._stops.flush())
            made.text = "".join(self._parts)

    def _shown(self, made: Completion, finish: FinishReason) -> list[int]:
        """The ids of `made` that are text, where `finish` ended them."""
        return made.token_ids[:-1] if self._hides(finish) else made.token_ids

    def _hides(self, finish: FinishReason) -> bool:
        """Whether the last token is an end that is no part of the text, as on `/v1`."""
        ends = finish in (FinishReason.EOS, FinishReason.STOP_TOKEN)
        return ends and not self.completion.params.include_stop_str_in_output

    def _release(self, text: str) -> None:
        """Show `text` as far as no stop string may have begun in it. None ends the text before `min_tokens`, as on the
        server.
        """
        made = self.completion
        release = self._stops.push(text, may_end=len(made.tokens) > made.params.min_tokens)
        self._parts.append(release.text)
        if release.stop is not None:
            made.finish_reason, made.stop_reason = "stop", release.stop
            made.text = "".join(self._parts)
