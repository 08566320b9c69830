"""How the answer to one chat is read: which formats of calls and reasoning are in play."""

from dataclasses import dataclass

from gateway.parsing.formats import Formats
from gateway.parsing.parser import parser
from gateway.parsing.pieces import MessageParser, Tool
from gateway.parsing.reasoning_format import ReasoningFormat
from gateway.parsing.tool_format import ToolFormat
from gateway.parsing.tool_formats import GENERIC
from gateway.routes.openai.schemas import ChatRequest
from gateway.routes.openai.tool_choice import ToolUse
from gateway.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class AnswerFormat:
    """Of one chat.

    prompt: its text, which tells whether the model is already reasoning.
    tools: the format of calls; None if the answer holds none.
    reasoning: the model's format of reasoning.
    separate: reasoning is told apart from the content.
    shown: and it is answered, `streamed` as it comes.
    """

    prompt: str
    tool_use: ToolUse
    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    separate: bool
    shown: bool
    streamed: bool

    @classmethod
    def of(cls, body: ChatRequest, prompt: str, formats: Formats) -> "AnswerFormat":
        use = body.tool_use
        tools = None if not use.on else formats.forced if use.mode == "required" else formats.tools
        reasoning = formats.reasoning
        if reasoning is not None and reasoning.harmony and tools is GENERIC:
            reasoning = None  # calls are forced from the first token on: there will be no messages to tell apart
        if reasoning is not None and body.continue_final_message:
            reasoning = reasoning.going_on(body.messages[-1].text)
        shown = body.include_reasoning is not False
        return cls(
            prompt,
            use,
            tools,
            reasoning,
            separate=body.separate_reasoning is not False or not shown,  # what is left out has to be told apart
            shown=shown,
            streamed=body.stream_reasoning is not False,
        )

    @property
    def reads_reasoning(self) -> bool:
        return self.reasoning is not None and self.separate

    @property
    def reads_calls(self) -> bool:
        return self.tools is not None

    @property
    def plain(self) -> bool:
        """Whether the answer is its text."""
        return not self.reads_calls and not self.reads_reasoning

    def parser(self) -> MessageParser:
        """A parser of one choice."""
        tools = [Tool(each.name, each.parameters or {}) for each in self.tool_use.callable]
        reasoning = self.reasoning if self.separate else None
        return parser(self.tools, reasoning, tools, prompt=self.prompt, forced=self.tool_use.mode == "required")

    def visible(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The ids of the special tokens that the parser has to see."""
        marks = self.tools.marks if self.tools else ()
        marks += self.reasoning.marks if self.reasoning else ()
        return frozenset(id for mark in marks if (id := tokenizer.special_id(mark)) is not None)
