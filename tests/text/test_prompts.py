import hashlib
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from trl_spiral.games.tictactoe import EMPTY, board_observation
from trl_spiral.text.prompts import (
    CODE_INSTRUCTION,
    GOAL,
    INSTRUCTION,
    PROMPT_STYLES,
    PromptRenderer,
    check_prompt_style,
    prompt_frame,
)
from trl_spiral.types import Observation, Turn


@pytest.fixture(scope="module")
def observation() -> Observation:
    return board_observation(EMPTY)


# Like the template of Qwen3: the latest reply gets an empty thought, which is removed when the conversation continues.
REWRITING_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Does not end replies: they run into the next question.
ENDLESS_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
THINKING_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


class TestPromptRenderer:
    def test_renders_through_the_chat_template(self, tokenizer, observation):
        ids = PromptRenderer(tokenizer).prompt(observation)

        content = f"{observation.messages[0]['content']}\n\n{INSTRUCTION}"
        assert tokenizer.decode(ids) == f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"

    def test_asks_for_a_box_in_the_last_message_only(self, tokenizer):
        messages = ({"role": "system", "content": "Rules."}, {"role": "user", "content": "Board."})

        text = tokenizer.decode(PromptRenderer(tokenizer).prompt(Observation("Toy", 0, messages)))

        assert text.count(INSTRUCTION) == 1
        assert text.startswith("<|im_start|>system\nRules.<|im_end|>\n<|im_start|>user\nBoard.\n\n")

    @pytest.mark.parametrize("style", PROMPT_STYLES)
    def test_renders_every_style_around_the_observation(self, tokenizer, observation, style):
        text = tokenizer.decode(PromptRenderer(tokenizer, style).prompt(observation))

        assert text.count(observation.messages[0]["content"]) == 1
        assert not any(field in text for field in ("{question}", "{message}", "{scene}", "{demand}", "{thinking}"))
        assert "\\boxed{" in text

    @pytest.mark.parametrize(("style", "words"), [("qwen3", "playing a {}game."), ("r1", "observation of a {}game,")])
    def test_mentions_zero_sum_and_two_players_only_for_duels(self, tokenizer, style, words):
        said = Observation("Toy", 0, ({"role": "user", "content": "A zero-sum board."},))
        renderer = PromptRenderer(tokenizer, style)
        duel, other = (tokenizer.decode(renderer.prompt(replace(said, is_duel=is_duel))) for is_duel in (True, False))

        assert words.format("two-player zero-sum " if style == "qwen3" else "zero-sum ") in duel
        assert words.format("") in other
        assert "A zero-sum board." in other

    def test_keeps_braces_in_an_observation(self, tokenizer):
        said = Observation("Toy", 0, ({"role": "user", "content": "{question} {0} {{}}"},))

        text = tokenizer.decode(PromptRenderer(tokenizer, "qwen3").prompt(said))

        assert "Observation: {question} {0} {{}}\n" in text

    def test_passes_options_to_the_template(self, tokenizer, observation):
        def ending(**kwargs) -> str:
            renderer = PromptRenderer(tokenizer, chat_template=THINKING_TEMPLATE, chat_template_kwargs=kwargs)
            return tokenizer.decode(renderer.prompt(observation)).rpartition("assistant\n")[2]

        assert ending(enable_thinking=True) == ""
        assert ending(enable_thinking=False) == "<think></think>"

    def test_detects_prompts_that_open_the_thinking(self, tokenizer, monkeypatch):
        thinks = THINKING_TEMPLATE.replace("<think></think>", "<think>\n")
        renderers = [PromptRenderer(tokenizer, chat_template=template) for template in (thinks, THINKING_TEMPLATE)]
        monkeypatch.setattr(tokenizer, "encode", None)  # a tiny vocabulary may lack the words

        assert [renderer.thought for renderer in renderers] == ["<think>", ""]
        assert [renderer.move("[4]") for renderer in renderers] == [None, "[4]"]

    def test_moves_do_not_count_in_thinking_that_the_prompt_opened(self, tokenizer):
        thinking, plain = PromptRenderer(tokenizer, "r1"), PromptRenderer(tokenizer, "octothinker")

        assert thinking.move("perhaps \\boxed{[1]}") is None
        assert thinking.move("perhaps \\boxed{[1]}</think> no, \\boxed{[2]}") == "[2]"
        assert plain.move("perhaps \\boxed{[1]}") == "[1]"

    def test_caches_prompts(self, tokenizer, observation, monkeypatch):
        renderer = PromptRenderer(tokenizer)
        first = renderer.prompt(observation)
        monkeypatch.setattr(renderer, "_text", None)

        assert renderer.prompt(observation) is first

    def test_bounds_the_cache(self, tokenizer, monkeypatch):
        monkeypatch.setattr(PromptRenderer, "_CACHE_SIZE", 10)
        renderer = PromptRenderer(tokenizer)

        for number in range(35):
            renderer.prompt(Observation("Toy", 0, ({"role": "user", "content": f"Board {number}."},)))

        assert len(renderer._cache) <= 10

    def test_decodes_the_replies_that_it_encodes(self, tokenizer):
        renderer = PromptRenderer(tokenizer)

        ids = renderer.reply("\\boxed{[4]}")

        assert ids[-1] == tokenizer.eos_token_id
        assert renderer.text(ids) == "\\boxed{[4]}"


class TestPromptFrame:
    def test_of_games_is_that_of_spiral(self):
        # The frames for Qwen3 and Llama models in the paper, word for word (SPIRAL, arXiv 2506.24119).
        assert prompt_frame("qwen3", "duel") == (
            "<|im_start|>user\nYou are playing a two-player zero-sum game. Make valid actions to win.\nObservation: "
            "{question}\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        assert GOAL in prompt_frame("llama-instruct", "duel")
        assert prompt_frame("octothinker", "duel").endswith("\nAssistant:")
        assert prompt_frame("r1", "duel").endswith("\nAssistant: <think>\n")

    def test_of_code_asks_for_a_block(self):
        assert prompt_frame("r1", "code") == (
            "A conversation between User and Assistant. The User asks for a program, and the Assistant writes it. "
            "The Assistant first thinks about the reasoning process in the mind and then provides the User with the "
            "program. The reasoning process stands within <think> </think> tags. User: You must put your program "
            "within a ```python block.\n{question}\nAssistant: <think>\n"
        )

    @pytest.mark.parametrize(
        ("kind", "digest"),
        [
            ("duel", "d501b69d61ca6b05"),
            ("game", "354004e7ffee567c"),
            ("math", "84955bce40c860a1"),
            ("code", "6b3847534bd400f3"),
        ],
    )
    def test_does_not_change(self, kind, digest):
        # A changed prompt changes scores, so results before and after it could not be compared.
        frames = "\n".join(prompt_frame(style, kind) for style in ("qwen3", "octothinker", "r1", "llama-instruct"))

        assert hashlib.sha256(frames.encode()).hexdigest()[:16] == digest

    @pytest.mark.parametrize("kind", ["duel", "game", "math"])
    @pytest.mark.parametrize("style", PROMPT_STYLES)
    def test_shows_the_box_literally(self, style, kind):
        assert "\\boxed{}" in prompt_frame(style, kind)
        assert "{{" not in prompt_frame(style, kind)

    @pytest.mark.parametrize("kind", ["duel", "game", "math", "code"])
    @pytest.mark.parametrize("style", PROMPT_STYLES)
    def test_has_one_place_for_the_question(self, style, kind):
        assert re.findall(r"\{\w+\}", prompt_frame(style, kind)) == ["{question}"]


class TestQuestions:
    QUESTION = "What is {x} in 1+{x}?"

    def test_of_math_have_the_instruction_of_games(self, tokenizer):
        asked = tokenizer.decode(PromptRenderer(tokenizer).math("What is 1+1?"))

        assert asked == f"<|im_start|>user\nWhat is 1+1?\n\n{INSTRUCTION}<|im_end|>\n<|im_start|>assistant\n"

    def test_of_code_ask_for_a_block_and_no_box(self, tokenizer):
        asked = tokenizer.decode(PromptRenderer(tokenizer).code("Write f."))

        assert asked == f"<|im_start|>user\nWrite f.\n\n{CODE_INSTRUCTION}<|im_end|>\n<|im_start|>assistant\n"
        assert "boxed" not in asked and "```python" in asked

    @pytest.mark.parametrize("style", PROMPT_STYLES)
    def test_of_math_have_every_style(self, style, tokenizer):
        asked = tokenizer.decode(PromptRenderer(tokenizer, style).math(self.QUESTION))

        assert asked == prompt_frame(style, "math").replace("{question}", self.QUESTION)
        assert self.QUESTION in asked and "boxed{}" in asked and "game" not in asked

    @pytest.mark.parametrize("style", PROMPT_STYLES)
    def test_of_code_have_every_style(self, style, tokenizer):
        asked = tokenizer.decode(PromptRenderer(tokenizer, style).code(self.QUESTION))

        assert asked == prompt_frame(style, "code").replace("{question}", self.QUESTION)
        assert self.QUESTION in asked and "```python" in asked and "game" not in asked and "boxed" not in asked


class TestContinuation:
    @staticmethod
    def after(renderer: PromptRenderer, observation: Observation, *replies: tuple[int, ...]) -> tuple[int, ...]:
        """Return the prompt after replies, each followed by an update: "Board 1.", "Board 2.", …"""
        turns: tuple[Turn, ...] = ()
        prompt = renderer.continuation(observation)
        for number, reply in enumerate(replies, start=1):
            turns += (Turn("[4]", prompt_ids=prompt, completion_ids=reply),)
            said = f"Board {number}."
            prompt = renderer.continuation(Observation("Toy", 0, observation.messages, said, turns=turns))
        return prompt

    def test_starts_as_a_prompt(self, tokenizer, observation):
        renderer = PromptRenderer(tokenizer)

        assert renderer.continuation(observation) == renderer.prompt(observation)

    def test_appends_token_for_token(self, tokenizer, observation):
        renderer = PromptRenderer(tokenizer)
        start = renderer.prompt(observation)
        # A model may write one byte per token, unlike the tokenizer.
        odd = tuple(token for letter in "\\boxed{[4]}" for token in tokenizer.encode(letter))
        first, second = (*odd, tokenizer.eos_token_id), renderer.reply("\\boxed{[5]}")

        ids = self.after(renderer, observation, first, second)

        assert tokenizer.decode(odd) == "\\boxed{[4]}"
        assert odd != tuple(tokenizer.encode("\\boxed{[4]}"))
        assert ids[: len(start) + len(first)] == start + first
        assert ids == self.after(renderer, observation, first) + second + ids[-self.joint(tokenizer, "Board 2.") :]

    @staticmethod
    def joint(tokenizer, update: str) -> int:
        """Return the number of tokens between a reply and the next."""
        return len(tokenizer.encode(f"\n<|im_start|>user\n{update}<|im_end|>\n<|im_start|>assistant\n"))

    def test_matches_the_text_of_the_template(self, tokenizer, observation):
        renderer = PromptRenderer(tokenizer)

        text = tokenizer.decode(self.after(renderer, observation, renderer.reply("[4]"), renderer.reply("[5]")))

        talk = [
            {"role": "user", "content": f"{observation.messages[0]['content']}\n\n{INSTRUCTION}"},
            {"role": "assistant", "content": "[4]"},
            {"role": "user", "content": "Board 1."},
            {"role": "assistant", "content": "[5]"},
            {"role": "user", "content": "Board 2."},
        ]
        assert text == tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)

    @pytest.mark.parametrize("template", [REWRITING_TEMPLATE, ENDLESS_TEMPLATE])
    def test_refuses_a_template_that_rewrites_or_does_not_end_replies(self, tokenizer, observation, template):
        renderer = PromptRenderer(tokenizer, chat_template=template)

        with pytest.raises(ValueError, match='rewrites or does not end earlier replies.*sample_unit="turn"'):
            self.after(renderer, observation, renderer.reply("[4]"))

    @pytest.mark.parametrize("style", PROMPT_STYLES)
    def test_refuses_styles_that_ask_for_one_move(self, tokenizer, observation, style):
        renderer = PromptRenderer(tokenizer, style)

        with pytest.raises(ValueError, match=f"Prompt style '{style}' asks for one move at a time"):
            self.after(renderer, observation, renderer.reply("[4]"))


class TestCheckPromptStyle:
    def test_lists_the_styles_without_a_chat_template(self, tokenizer):
        with pytest.raises(ValueError, match="no chat template, and `prompt_style` is 'chat'.*'octothinker'"):
            PromptRenderer(SimpleNamespace(chat_template=None, eos_token="</s>"))

    def test_needs_no_chat_template_for_a_named_style(self):
        check_prompt_style("octothinker", None)

    def test_lists_the_styles_for_an_unknown_one(self):
        with pytest.raises(ValueError, match="no prompt style 'qwen'.*'qwen3'"):
            check_prompt_style("qwen", "template")
