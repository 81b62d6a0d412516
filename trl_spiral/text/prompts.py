r"""
Text at both ends of a turn: observation in, move out.

`PromptRenderer` turns an observation into token ids through the tokenizer's own chat template or, for base models that
have none, through a named style. Control tokens come from these alone, never from an observation. `extract_move` finds
the move in a reply: what stands in the last `\boxed{}` outside any unfinished thinking; where the move is a program,
`extract_code_move` finds that too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from trl_spiral.text.control import ControlText
from trl_spiral.types import Message, Observation


INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
"""What SPIRAL (arXiv 2506.24119) asks of the model after every observation; every style asks the same."""

GOAL = "You are playing a two-player zero-sum game. Make valid actions to win."
"""How SPIRAL introduces every game; where a game is not for two, or not zero-sum, the words that say so are left out."""

_MAX_REPLY = 65_536
_MAX_MOVE = 512
_OPENS = re.compile(r"(?:^|</think>)([ \t]*)```python[ \t]*$", re.MULTILINE)
_CLOSES = re.compile(r"^[ \t]*```", re.MULTILINE)
_CHATML = "<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
_ASKED = f"{GOAL}\nObservation: {{observation}}\n{INSTRUCTION}"
_DIALOGUE = (
    "A conversation between User and Assistant. The User presents the observation of a zero-sum game, and the "
    "Assistant makes a valid action in order to win. The Assistant first thinks about the reasoning process in the "
    "mind and then provides the User with the action. {extra}User: You must put your answer inside \\boxed{}.\n"
    "Observation: {observation}\nAssistant:"
)

PROMPT_STYLES: Mapping[str, str] = {
    "qwen3": _CHATML.replace("{user}", _ASKED),
    "octothinker": _DIALOGUE.replace("{extra}", ""),
    "r1": _DIALOGUE.replace("{extra}", "The reasoning process stands within <think> </think> tags. ") + " <think>\n",
    "llama-instruct": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
    + _ASKED
    + "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
}
"""
Named prompt styles. `{observation}` is replaced by the observation. `"chat"`, the tokenizer's own chat template, is the
default and not in this table.
"""


def extract_move(reply: str, longest: int = _MAX_MOVE) -> str | None:
    r"""
    The move in a reply, as the player wrote it.

    It is what stands in the last `\boxed{}` outside unfinished thinking. A reply that is a single line without any
    `\boxed{}`, such as `[4]` or `4`, is taken whole, and it is then up to the game to read it. Nothing is guessed: an
    unclosed box or a paragraph of prose holds no move.

    Args:
        reply (`str`):
            The whole reply. Only the last 65,536 characters before unfinished thinking are looked at.
        longest (`int`, defaults to `512`):
            Characters of the longest move.

    Returns:
        `str` or `None`: The move, stripped; `None` if there is none or it is too long.
    """
    text = _finished(reply)
    if "\\boxed{" in text:
        return _last_box(text, longest)
    move = text.rsplit("</think>", 1)[-1].strip()
    return move if 0 < len(move) <= longest and "\n" not in move else None


def extract_code_move(reply: str) -> str | None:
    r"""
    The move in a reply to an observation that asks for a program.

    It is the last ```` ```python ```` block outside unfinished thinking, which begins with a line of its own and ends with
    the first line that starts with a fence, and what stands in the last `\boxed{}` below it. A box inside of the program is
    part of the program. A block may be indented as a whole, as in a list, and lines may end in a carriage return, too.

    Args:
        reply (`str`):
            The whole reply. Only the last 65,536 characters before unfinished thinking are looked at.

    Returns:
        `str` or `None`: The block with its fences and, on the line below, what stands in the box, as
        [`~games.code_game.read_program`] takes it; `None` if either is missing.
    """
    text = _finished(reply).replace("\r\n", "\n")
    *_, opened = (None, *_OPENS.finditer(text))
    closed = _CLOSES.search(text, opened.end()) if opened else None
    if opened is None or closed is None or (answer := _last_box(text[closed.end() :])) is None:
        return None
    # Of each line, no more than the fence's own indentation: what is left of it is the program's.
    program = re.sub(rf"^[ \t]{{0,{len(opened[1])}}}", "", text[opened.end() : closed.start()], flags=re.MULTILINE)
    return f"```python{program}```\n{answer}"


def read_move(observation: Observation, reply: str) -> str | None:
    """The move in a reply to an observation: by `extract_code_move` where that asks for a program, else by `extract_move`."""
    return extract_code_move(reply) if observation.asks_program else extract_move(reply)


def _finished(reply: str) -> str:
    """The end of a reply, without unfinished thinking."""
    unfinished = reply.find("<think>", reply.rfind("</think>") + 1)
    return (reply[:unfinished] if unfinished >= 0 else reply)[-_MAX_REPLY:]


def _last_box(text: str, longest: int = _MAX_MOVE) -> str | None:
    """What stands in the last box; `None` if that is unclosed, empty or too long, or there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    # `\boxed{\boxed{[4]}}` means what the inner box says, and `rfind` has found just that one.
    depth = 0
    inner = start + len("\\boxed{")
    for position in range(inner, min(len(text), inner + longest + 1)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            if depth == 0:
                return text[inner:position].strip() or None
            depth -= 1
    return None


class Tokenizer(Protocol):
    """What is needed of a tokenizer; every `transformers` tokenizer has it."""

    chat_template: Any
    eos_token: Any
    added_tokens_decoder: Any

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...

    def encode(self, text: str, **kwargs: Any) -> Any: ...

    def decode(self, token_ids: Any, **kwargs: Any) -> Any: ...


class PromptRenderer:
    r"""
    Renders observations as token ids, and reads replies.

    Args:
        tokenizer ([`Tokenizer`]):
            The policy's tokenizer.
        style (`str`, defaults to `"chat"`):
            `"chat"` for the tokenizer's chat template, or one of `PROMPT_STYLES`.
        chat_template (`str`, *optional*):
            Template to use in place of the tokenizer's own.
        chat_template_kwargs (`Mapping`, *optional*):
            Passed on to the template, e.g. `{"enable_thinking": False}`.

    Raises:
        ValueError: If the style is unknown, or is `"chat"` where there is no chat template.
    """

    # Small games repeat their prompts; a template costs some 300 µs to render and tokenize. The bound is on entries.
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

    def prompt(self, observation: Observation) -> tuple[int, ...]:
        """Token ids of the whole observation, ready for the reply."""
        key = ("\x00duel" * observation.is_duel, *(message["content"] for message in observation.messages))
        if (ids := self._cache.get(key)) is None:
            ids = self._remember(key, self._control.encode(self._text(observation.messages, observation.is_duel)))
        return ids

    def message(self, text: str) -> tuple[int, ...]:
        """Token ids of one message through the chat template, ready for the reply. It asks for no box, as `prompt` does."""
        return self.conversation([{"role": "user", "content": text}])

    def conversation(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """
        Return the token ids of messages through the chat template, ready for the reply. Nothing is added, as in TRL.

        System and assistant messages may hold control tokens, such as `<think>`: the caller or the model wrote them.
        """
        return self._control.encode(self._conversation(messages))

    def framed(self, frame: str, field: str, text: str) -> tuple[int, ...]:
        """Return the token ids of a frame, which may hold control tokens, with `text` in the place of `field`."""
        return self._control.encode(frame.replace(field, self._control.cut(text)))

    def escaped(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages as `conversation` takes them, with a space in each control token, for TRL to render."""
        return _rewritten(messages, self._control.escape)

    def continuation(self, observation: Observation) -> tuple[int, ...]:
        """
        Token ids of a conversation that goes on: this seat's last prompt and reply as they were sampled, then what is
        new.

        Raises:
            ValueError: If the style or the chat template cannot be continued without changing what came before.
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

    def move(self, text: str, is_program: bool = False) -> str | None:
        """The move in a reply, which goes on with the thinking that the prompt may have opened."""
        whole = self.thought + text
        return extract_code_move(whole) if is_program else extract_move(whole)

    @property
    def thought(self) -> str:
        """`"<think>"` where prompts open the thinking, nothing of which counts before a reply closes it; else `""`."""
        if self._thought is None:
            # As text: a tiny vocabulary may lack the word.
            self._thought = _opened(self._text([{"role": "user", "content": "Question."}]))
        return self._thought

    def thought_after(self, messages: Sequence[Message]) -> str:
        """The same of one conversation, asked as TRL asks it: its own words (`/no_think`) may decide in some templates."""
        return _opened(self._conversation(messages))

    def reply(self, text: str) -> tuple[int, ...]:
        """Token ids of a reply, end-of-turn token included, as a model would write it."""
        return self._control.encode(self._control.cut(text) + self.tokenizer.eos_token)

    def text(self, completion_ids: Sequence[int]) -> str:
        """The reply as text, special tokens left out."""
        decoded: str = self.tokenizer.decode(list(completion_ids), skip_special_tokens=True)
        return decoded

    def _text(self, messages: Sequence[Mapping[str, str]], is_duel: bool = True) -> str:
        cut = [{**message, "content": self._control.cut_known(message["content"])} for message in messages]
        if self.style == "chat":
            *earlier, last = cut
            return self._apply([*earlier, {**last, "content": f"{last['content']}\n\n{INSTRUCTION}"}])
        observation = "\n\n".join(message["content"] for message in cut)
        frame = PROMPT_STYLES[self.style]
        if not is_duel:
            frame = frame.replace("two-player ", "").replace("zero-sum ", "")
        return frame.replace("{observation}", observation)

    def _conversation(self, messages: Sequence[Message]) -> str:
        return self._apply(_rewritten(messages, self._control.cut))

    def _apply(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        rendered: str = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt, **self._template_kwargs
        )
        return rendered

    def _joint_texts(self) -> tuple[str, str]:
        """What stands between an end of turn and the next observation, and between that and the next reply."""
        if self._joint is not None:
            return self._joint
        if self.style != "chat":
            raise ValueError(
                f"Prompt style {self.style!r} asks for one move at a time and cannot carry on a conversation. Use "
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
    """Return messages with the text rewritten that neither the caller nor the model wrote."""
    return [
        {**message, "content": rewrite(content)}
        if message["role"] not in ("system", "assistant") and isinstance(content := message["content"], str)
        else {**message}
        for message in messages
    ]


def _opened(rendered: str) -> str:
    return "<think>" if rendered.rstrip().endswith("<think>") else ""


def check_prompt_style(style: str, chat_template: Any) -> None:
    """
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
