r"""
Render prompts as token ids.

`PromptRenderer` renders games, math questions, programming problems and tasks through the tokenizer's own chat
template or, for base models that have none, in a named style. Only templates and styles write control tokens, never an
observation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Protocol

from trl_spiral.text.control import ControlText
from trl_spiral.text.replies import extract_code_move, extract_move, opened_thinking
from trl_spiral.types import Message, Observation


INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
"""Instruction of SPIRAL (arXiv 2506.24119) after every observation, in every style."""

CODE_INSTRUCTION = "Please reason step by step, and put your final program within a ```python block."
"""Instruction after every programming problem, in every style."""

GOAL = "You are playing a two-player zero-sum game. Make valid actions to win."
"""SPIRAL's introduction of every game. "two-player" and "zero-sum" are left out for other games."""

# ---- styles ----
_DIALOGUE = (
    "A conversation between User and Assistant. {scene} The Assistant first thinks about the reasoning process in the "
    "mind and then provides the User with the {result}. {thinking}User: {demand}\nAssistant:"
)

PROMPT_STYLES: Mapping[str, str] = {
    "qwen3": "<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n",
    "octothinker": _DIALOGUE.replace("{thinking}", ""),
    "r1": _DIALOGUE.replace("{thinking}", "The reasoning process stands within <think> </think> tags. ")
    + " <think>\n",
    "llama-instruct": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{message}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
}
"""
Frames of the named prompt styles, see [`prompt_frame`]. The default, `"chat"`, is the tokenizer's own chat template
and not in this table.
"""

Question = Literal["duel", "game", "math", "code"]
"""A kind of question. A duel is a zero-sum game for two."""


_WORDINGS: Mapping[str, Mapping[str, str]] = {
    "duel": {
        "message": f"{GOAL}\nObservation: {{question}}\n{INSTRUCTION}",
        "scene": "The User presents the observation of a zero-sum game, and the Assistant makes a valid action in "
        "order to win.",
        "result": "action",
        "demand": "You must put your answer inside \\boxed{}.\nObservation: {question}",
    },
    "math": {
        "message": f"Question: {{question}}\n{INSTRUCTION}",
        "scene": "The User asks a question, and the Assistant solves it.",
        "result": "answer",
        "demand": "You must put your answer inside \\boxed{}.\nQuestion: {question}",
    },
    "code": {
        "message": f"{{question}}\n\n{CODE_INSTRUCTION}",
        "scene": "The User asks for a program, and the Assistant writes it.",
        "result": "program",
        "demand": "You must put your program within a ```python block.\n{question}",
    },
}
"""Texts of each kind of question. `{message}` is the whole question; the other fields describe it in a dialogue."""


@cache
def prompt_frame(style: str, kind: Question) -> str:
    """Return the text of a named style around a kind of question, with `{question}` in the place of the question."""
    frame = PROMPT_STYLES[style]
    for field, text in _WORDINGS["duel" if kind == "game" else kind].items():
        frame = frame.replace(f"{{{field}}}", text)
    return frame.replace("two-player ", "").replace("zero-sum ", "") if kind == "game" else frame


def check_prompt_style(style: str, chat_template: Any) -> None:
    """
    Check that a prompt style exists and can be used.

    Raises:
        ValueError: If `style` is unknown, or is `"chat"` and there is no chat template.
    """
    if style == "chat":
        if not chat_template:
            raise ValueError(
                "The tokenizer has no chat template, and `prompt_style` is 'chat'. Choose a style for base models: "
                f"{', '.join(map(repr, PROMPT_STYLES))}."
            )
    elif style not in PROMPT_STYLES:
        raise ValueError(
            f"There is no prompt style {style!r}. Choose 'chat' or one of {', '.join(map(repr, PROMPT_STYLES))}."
        )


# ---- rendering ----
class Tokenizer(Protocol):
    """The part of a `transformers` tokenizer that prompts need."""

    chat_template: Any
    eos_token: Any
    added_tokens_decoder: Any

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...

    def encode(self, text: str, **kwargs: Any) -> Any: ...

    def decode(self, token_ids: Any, **kwargs: Any) -> Any: ...


class PromptRenderer:
    r"""
    Renders prompts as token ids, and decodes replies.

    Args:
        tokenizer ([`Tokenizer`]):
            The policy's tokenizer.
        style (`str`, defaults to `"chat"`):
            `"chat"` for the tokenizer's chat template, or one of `PROMPT_STYLES`.
        chat_template (`str`, *optional*):
            Template that replaces the tokenizer's own.
        chat_template_kwargs (`Mapping`, *optional*):
            Arguments of the template, such as `{"enable_thinking": False}`.

    Raises:
        ValueError: If the style is unknown, or is `"chat"` and there is no chat template.
    """

    # Small games repeat their prompts; a template takes some 300 µs to render and tokenize. The bound is on entries.
    _CACHE_SIZE = 16_384

    def __init__(
        self,
        tokenizer: Tokenizer,
        style: str = "chat",
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        check_prompt_style(style, tokenizer.chat_template or chat_template)
        self.tokenizer = tokenizer
        self.style = style
        self._control = ControlText(tokenizer)
        self._template_kwargs = dict(chat_template_kwargs or {})
        if chat_template is not None:
            self._template_kwargs["chat_template"] = chat_template
        self._cache: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._joint: tuple[str, str] | None = None
        self._thought: str | None = None

    # ---- one method for each kind of question ----
    def prompt(self, observation: Observation) -> tuple[int, ...]:
        """Return the token ids of the whole observation, ready for the reply."""
        key = ("\x00duel" * observation.is_duel, *(message["content"] for message in observation.messages))
        if (ids := self._cache.get(key)) is None:
            ids = self._remember(key, self._control.encode(self._text(observation.messages, observation.is_duel)))
        return ids

    def math(self, question: str) -> tuple[int, ...]:
        """Return the token ids of a math question, with the same instruction as in games."""
        if self.style == "chat":
            return self._control.encode(self._text([{"role": "user", "content": question}]))
        return self._framed("math", question)

    def code(self, question: str) -> tuple[int, ...]:
        """Return the token ids of a programming problem, with an instruction to answer in a block of code."""
        if self.style == "chat":
            content = _WORDINGS["code"]["message"].replace("{question}", question)
            return self.conversation([{"role": "user", "content": content}])
        return self._framed("code", question)

    def task(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """
        Return the token ids of a task's problem.

        The chat template gets the messages unchanged, as in training. The named styles ask for a box, as for math.
        """
        if self.style == "chat":
            return self.conversation(messages)
        return self._framed("math", "\n\n".join(message["content"] for message in messages))

    def conversation(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """
        Return the token ids of messages through the chat template, ready for the reply. Nothing is added, as in TRL.

        System and assistant messages may hold control tokens, such as `<think>`: the caller or the model wrote them.
        """
        return self._control.encode(self._conversation(messages))

    def continuation(self, observation: Observation) -> tuple[int, ...]:
        """
        Return the token ids of a conversation that continues: this seat's last prompt and reply exactly as they were
        sampled, then the update.

        Raises:
            ValueError: If the style or the chat template cannot be continued without changing earlier text.
        """
        if not observation.turns:
            return self.prompt(observation)
        last = observation.turns[-1]
        key = ("\x00continued", observation.update)
        if (joint := self._cache.get(key)) is None:
            before, after = self._joint_texts()
            joint = self._remember(
                key, self._control.encode(before + self._control.cut_known(observation.update) + after)
            )
        return last.prompt_ids + last.completion_ids + joint

    def escaped(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages as `conversation` takes them, with a space in each control token, for TRL to render."""
        return _rewritten(messages, self._control.escape)

    # ---- replies ----
    def move(self, text: str, is_program: bool = False) -> str | None:
        """Return the move in a reply, which continues the thinking that the prompt may have opened."""
        whole = self.thought + text
        return extract_code_move(whole) if is_program else extract_move(whole)

    @property
    def thought(self) -> str:
        """`"<think>"` if prompts open the thinking, else `""`."""
        if self._thought is None:
            # As text: a tiny vocabulary may lack the word.
            self._thought = opened_thinking(self._text([{"role": "user", "content": "Question."}]))
        return self._thought

    def thought_after(self, messages: Sequence[Message]) -> str:
        """As `thought`, for one conversation of TRL's: in some templates its words decide (`/no_think`)."""
        return opened_thinking(self._conversation(messages))

    def reply(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a reply, end-of-turn token included, as a model would write it."""
        return self._control.encode(self._control.cut(text) + self.tokenizer.eos_token)

    def text(self, completion_ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        decoded: str = self.tokenizer.decode(list(completion_ids), skip_special_tokens=True)
        return decoded

    # ---- text ----
    def _text(self, messages: Sequence[Mapping[str, str]], is_duel: bool = True) -> str:
        cut = [{**message, "content": self._control.cut_known(message["content"])} for message in messages]
        if self.style == "chat":
            *earlier, last = cut
            return self._apply([*earlier, {**last, "content": f"{last['content']}\n\n{INSTRUCTION}"}])
        observation = "\n\n".join(message["content"] for message in cut)
        return prompt_frame(self.style, "duel" if is_duel else "game").replace("{question}", observation)

    def _framed(self, kind: Question, question: str) -> tuple[int, ...]:
        frame = prompt_frame(self.style, kind)
        return self._control.encode(frame.replace("{question}", self._control.cut(question)))

    def _conversation(self, messages: Sequence[Message]) -> str:
        return self._apply(_rewritten(messages, self._control.cut))

    def _apply(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        rendered: str = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt, **self._template_kwargs
        )
        return rendered

    def _joint_texts(self) -> tuple[str, str]:
        """Return the text between a reply and the next observation, and between that and the next reply."""
        if self._joint is not None:
            return self._joint
        if self.style != "chat":
            raise ValueError(
                f"Prompt style {self.style!r} asks for one move at a time and cannot continue a conversation. Use "
                '`sample_unit="turn"`, or `prompt_style="chat"`.'
            )
        question, reply, mark = "Question.", "Reply.", "\x01mark\x01"
        talk = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
        done = self._apply([*talk], add_generation_prompt=False)
        going_on = self._apply([*talk, {"role": "user", "content": mark}])
        end = done.rfind(self.tokenizer.eos_token)
        if not going_on.startswith(done) or end < done.rfind(reply):
            raise ValueError(
                "The chat template rewrites or does not end earlier replies, so a whole game does not fit in one row. "
                'Use `sample_unit="turn"`, or a template that only appends.'
            )
        before, after = going_on[end + len(self.tokenizer.eos_token) :].split(mark)
        self._joint = before, after
        return self._joint

    def _remember(self, key: tuple[str, ...], ids: tuple[int, ...]) -> tuple[int, ...]:
        if len(self._cache) >= self._CACHE_SIZE:
            self._cache.clear()
        self._cache[key] = ids
        return ids


def _rewritten(messages: Sequence[Mapping[str, Any]], rewrite: Callable[[str], str]) -> list[dict[str, Any]]:
    """Return messages with `rewrite` applied to the text that neither the caller nor the model wrote."""
    return [
        {**message, "content": rewrite(content)}
        if message["role"] not in ("system", "assistant") and isinstance(content := message["content"], str)
        else {**message}
        for message in messages
    ]
