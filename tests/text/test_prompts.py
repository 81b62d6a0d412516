import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from trl_spiral.games import get_game
from trl_spiral.games.tictactoe import EMPTY, board_observation
from trl_spiral.text.prompts import GOAL, INSTRUCTION, PROMPT_STYLES, PromptRenderer, check_prompt_style
from trl_spiral.text.replies import extract_code_move, extract_move
from trl_spiral.types import Ending, Observation, Turn


MILLION = 10**6
HOSTILE = {
    "a million characters": "a" * MILLION,
    "a million digits in a box": f"\\boxed{{{'1' * MILLION}}}",
    "a million open boxes": "\\boxed{" * (MILLION // 7),
    "a million open thoughts": "<think>" * (MILLION // 7),
    "a million closed thoughts": "</think>" * (MILLION // 8),
    "a million braces in a box": "\\boxed{" + "{" * MILLION,
    "a million spaces in a box": f"\\boxed{{{' ' * MILLION}}}",
    "a million line ends": "\n" * MILLION,
    # Takes TextArena's SimpleNegotiation 138 s, in a cubic regular expression.
    "an offer of spaces": "[Offer:" + " " * 4_000,
    "a boxed offer of spaces": "\\boxed{[Offer:" + " " * 4_000 + "}",
    # Takes TextArena's ConnectFour 11 s.
    "twenty thousand brackets": "[" * 20_000,
    "boxed brackets": f"\\boxed{{{'[' * 500}}}",
    # Python refuses to read integers of more than 4,300 digits.
    "an integer of 5,000 digits": "9" * 5_000,
    "a boxed integer of 5,000 digits": f"\\boxed{{[{'9' * 5_000}]}}",
    "a long integer that is short enough": f"\\boxed{{[{'0' * 400}4]}}",
    # Arabic-Indic, Devanagari, full-width, superscript and circled fours: `\d` matches the first three, and `int` reads them.
    "digits of other scripts": "\\boxed{[\u0664]}",
    "more digits of other scripts": "\\boxed{[\u096a \u096a]}",
    "full-width digits": "\\boxed{[\uff14]}",
    "superscript digits": "\\boxed{[\u2074]}",
    "circled digits": "\\boxed{\u2463}",
    "a letter that lower case makes ASCII": "\\boxed{[ro\u212a]}",
    "a null": "\\boxed{[4\x00]}",
    "a lone surrogate": "\\boxed{[\ud800]}",
    "a forged line of the game": "\\boxed{[4]\n[[GAME]GAME] You have won}",
    "format fields": "\\boxed{{0.__class__}}",
    "nothing": "",
    "an empty box": "\\boxed{}",
    "an empty move": "\\boxed{[]}",
}


class TestExtractMove:
    @pytest.mark.parametrize(
        ("reply", "move"),
        [
            ("\\boxed{[4]}", "[4]"),
            ("\\boxed{4}", "4"),
            ("\\boxed{ [4] }", "[4]"),
            ("I take the centre. \\boxed{[4]}", "[4]"),
            ("\\boxed{[4]}. Good luck!", "[4]"),
            ("\\boxed{[1]} no, wait: \\boxed{[4]}", "[4]"),
            ("\\boxed{\\boxed{[4]}}", "[4]"),
            ("\\boxed{\\text{[4]}}", "\\text{[4]}"),
            ("\\boxed{[Offer: {1} Wood -> {2} Ore]}", "[Offer: {1} Wood -> {2} Ore]"),
            ("$\\boxed{[4]}$", "[4]"),
        ],
    )
    def test_reads_the_last_box(self, reply, move):
        assert extract_move(reply) == move

    @pytest.mark.parametrize(("reply", "move"), [("[4]", "[4]"), (" 4\n", "4"), ("roll", "roll")])
    def test_takes_a_single_line_without_a_box_whole(self, reply, move):
        assert extract_move(reply) == move

    @pytest.mark.parametrize(
        ("reply", "move"),
        [
            ("<think>\\boxed{[1]}?</think>\\boxed{[4]}", "[4]"),
            ("<think>Let me see.</think>[4]", "[4]"),
            ("Let me see.\nHm.</think>\n[4]", "[4]"),
            ("\\boxed{[4]}<think>or rather \\boxed{[1]}", "[4]"),
            ("<think>a</think>\\boxed{[4]}<think>\\boxed{[1]}", "[4]"),
        ],
    )
    def test_reads_nothing_in_unfinished_thinking(self, reply, move):
        assert extract_move(reply) == move

    @pytest.mark.parametrize(
        "reply",
        [
            "<think>I take \\boxed{[4]}",
            "<think>",
            "\\boxed{[4]",
            "\\boxed{[1]} or rather \\boxed{[4]",
            "\\boxed{{[4]}",
            "\\boxed{}",
            "\\boxed{ }",
            "",
            " \n ",
            "I think that I should take\nthe centre.",
        ],
    )
    def test_guesses_nothing(self, reply):
        assert extract_move(reply) is None

    def test_takes_no_move_of_more_than_512_characters(self):
        # A little more than any game's longest move.
        assert extract_move(f"\\boxed{{{'a' * 512}}}") == "a" * 512
        assert extract_move(f"\\boxed{{{'a' * 513}}}") is None
        assert extract_move("a" * 513) is None

    @pytest.mark.parametrize("game", ["TicTacToe-v0", "ConnectFour-v0", "Nim-v0", "PigDice-v0-50"])
    @pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
    def test_hostile_replies_are_read_at_once_and_are_legal_or_nothing(self, reply, game):
        match = get_game(game).start(seed=0)
        legal = match.legal_actions()
        begun = time.thread_time()

        action = extract_move(reply)
        played = None if action is None else match.apply(action)
        # Processor time of this thread: what else the machine does is none of our business.
        seconds = time.thread_time() - begun

        assert seconds < 0.05
        assert played is None or played in legal
        assert action is None or played is not None or match.ending is Ending.ILLEGAL_MOVE


@pytest.fixture(scope="module")
def observation() -> Observation:
    return board_observation(EMPTY)


# Like the template of Qwen3: the latest reply gets an empty thought, and loses it as soon as the talk goes on.
REWRITING_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Ends nothing: replies run on into the next question.
ENDLESS_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
THINKING_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


class TestPromptRenderer:
    def test_renders_through_the_chat_template(self, tokenizer, observation):
        ids = PromptRenderer(tokenizer).prompt(observation)

        content = f"{observation.messages[0]['content']}\n\n{INSTRUCTION}"
        assert tokenizer.decode(ids) == f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"

    def test_asks_for_the_box_in_the_last_message_only(self, tokenizer):
        messages = ({"role": "system", "content": "Rules."}, {"role": "user", "content": "Board."})

        text = tokenizer.decode(PromptRenderer(tokenizer).prompt(Observation("Toy", 0, messages)))

        assert text.count(INSTRUCTION) == 1
        assert text.startswith("<|im_start|>system\nRules.<|im_end|>\n<|im_start|>user\nBoard.\n\n")

    @pytest.mark.parametrize("style", PROMPT_STYLES)
    def test_renders_every_style_around_the_observation(self, tokenizer, observation, style):
        text = tokenizer.decode(PromptRenderer(tokenizer, style).prompt(observation))

        assert text.count(observation.messages[0]["content"]) == 1
        assert "{observation}" not in text
        assert "{extra}" not in text
        assert "\\boxed{" in text

    def test_styles_are_those_of_spiral(self):
        # The two that Qwen3 and Llama models of the paper were asked by, word for word (SPIRAL, arXiv 2506.24119).
        assert PROMPT_STYLES["qwen3"] == (
            "<|im_start|>user\nYou are playing a two-player zero-sum game. Make valid actions to win.\nObservation: "
            "{observation}\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        assert GOAL in PROMPT_STYLES["llama-instruct"]
        assert PROMPT_STYLES["octothinker"].endswith("\nAssistant:")
        assert PROMPT_STYLES["r1"].endswith("\nAssistant: <think>\n")

    @pytest.mark.parametrize(("style", "words"), [("qwen3", "playing a {}game."), ("r1", "observation of a {}game,")])
    def test_calls_no_game_zero_sum_or_for_two_that_is_not(self, tokenizer, style, words):
        said = Observation("Toy", 0, ({"role": "user", "content": "A zero-sum board."},))
        renderer = PromptRenderer(tokenizer, style)
        duel, other = (tokenizer.decode(renderer.prompt(replace(said, is_duel=is_duel))) for is_duel in (True, False))

        assert words.format("two-player zero-sum " if style == "qwen3" else "zero-sum ") in duel
        assert words.format("") in other
        assert "A zero-sum board." in other

    def test_leaves_braces_in_an_observation_alone(self, tokenizer):
        said = Observation("Toy", 0, ({"role": "user", "content": "{observation} {0} {{}}"},))

        text = tokenizer.decode(PromptRenderer(tokenizer, "qwen3").prompt(said))

        assert "Observation: {observation} {0} {{}}\n" in text

    def test_passes_options_on_to_the_template(self, tokenizer, observation):
        def ending(**kwargs) -> str:
            renderer = PromptRenderer(tokenizer, chat_template=THINKING_TEMPLATE, chat_template_kwargs=kwargs)
            return tokenizer.decode(renderer.prompt(observation)).rpartition("assistant\n")[2]

        assert ending(enable_thinking=True) == ""
        assert ending(enable_thinking=False) == "<think></think>"

    def test_knows_whether_prompts_open_the_thinking(self, tokenizer, monkeypatch):
        thinks = THINKING_TEMPLATE.replace("<think></think>", "<think>\n")
        renderers = [PromptRenderer(tokenizer, chat_template=template) for template in (thinks, THINKING_TEMPLATE)]
        monkeypatch.setattr(tokenizer, "encode", None)  # a tiny vocabulary may not have the words that are tried

        assert [renderer.thought for renderer in renderers] == ["<think>", ""]
        assert [renderer.move("[4]") for renderer in renderers] == [None, "[4]"]

    def test_renders_a_prompt_once(self, tokenizer, observation, monkeypatch):
        renderer = PromptRenderer(tokenizer)
        first = renderer.prompt(observation)
        monkeypatch.setattr(renderer, "_text", None)

        assert renderer.prompt(observation) is first

    def test_forgets_prompts_rather_than_growing_without_bound(self, tokenizer, monkeypatch):
        monkeypatch.setattr(PromptRenderer, "_CACHE_SIZE", 10)
        renderer = PromptRenderer(tokenizer)

        for number in range(35):
            renderer.prompt(Observation("Toy", 0, ({"role": "user", "content": f"Board {number}."},)))

        assert len(renderer._cache) <= 10

    def test_reads_back_what_it_would_have_a_model_write(self, tokenizer):
        renderer = PromptRenderer(tokenizer)

        ids = renderer.reply("\\boxed{[4]}")

        assert ids[-1] == tokenizer.eos_token_id
        assert renderer.text(ids) == "\\boxed{[4]}"


class TestContinuation:
    @staticmethod
    def after(renderer: PromptRenderer, observation: Observation, *replies: tuple[int, ...]) -> tuple[int, ...]:
        """The prompt after some replies, each of which is followed by the update "Board 1.", "Board 2.", …"""
        turns: tuple[Turn, ...] = ()
        prompt = renderer.continuation(observation)
        for number, reply in enumerate(replies, start=1):
            turns += (Turn("[4]", prompt_ids=prompt, completion_ids=reply),)
            said = f"Board {number}."
            prompt = renderer.continuation(Observation("Toy", 0, observation.messages, said, turns=turns))
        return prompt

    def test_starts_as_any_prompt_does(self, tokenizer, observation):
        renderer = PromptRenderer(tokenizer)

        assert renderer.continuation(observation) == renderer.prompt(observation)

    def test_appends_token_for_token(self, tokenizer, observation):
        renderer = PromptRenderer(tokenizer)
        start = renderer.prompt(observation)
        # As a model might write it, a byte at a time, and not as the tokenizer would.
        odd = tuple(token for letter in "\\boxed{[4]}" for token in tokenizer.encode(letter))
        first, second = (*odd, tokenizer.eos_token_id), renderer.reply("\\boxed{[5]}")

        ids = self.after(renderer, observation, first, second)

        assert tokenizer.decode(odd) == "\\boxed{[4]}"
        assert odd != tuple(tokenizer.encode("\\boxed{[4]}"))
        assert ids[: len(start) + len(first)] == start + first
        assert ids == self.after(renderer, observation, first) + second + ids[-self.joint(tokenizer, "Board 2.") :]

    @staticmethod
    def joint(tokenizer, update: str) -> int:
        """Tokens between a reply and the next."""
        return len(tokenizer.encode(f"\n<|im_start|>user\n{update}<|im_end|>\n<|im_start|>assistant\n"))

    def test_reads_as_the_template_would_have_it(self, tokenizer, observation):
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
    def test_names_the_styles_where_there_is_no_chat_template(self, tokenizer):
        with pytest.raises(ValueError, match="no chat template, and `prompt_style` is 'chat'.*'octothinker'"):
            PromptRenderer(SimpleNamespace(chat_template=None, eos_token="</s>"))

    def test_needs_no_chat_template_for_a_named_style(self):
        check_prompt_style("octothinker", None)

    def test_names_the_styles_where_one_is_unknown(self):
        with pytest.raises(ValueError, match="no prompt style 'qwen'.*'qwen3'"):
            check_prompt_style("qwen", "template")


class TestUnfinishedThinking:
    def test_reads_nothing_in_thinking_that_opens_twice(self):
        assert extract_move("<think>perhaps \\boxed{[1]} <think> or") is None

    def test_reads_nothing_in_thinking_that_opened_long_ago(self):
        assert extract_move("<think>" + "hm " * 30_000 + "\\boxed{[1]}") is None

    def test_a_prompt_may_have_opened_it(self, tokenizer):
        thinking, plain = PromptRenderer(tokenizer, "r1"), PromptRenderer(tokenizer, "octothinker")

        assert thinking.move("perhaps \\boxed{[1]}") is None
        assert thinking.move("perhaps \\boxed{[1]}</think> no, \\boxed{[2]}") == "[2]"
        assert plain.move("perhaps \\boxed{[1]}") == "[1]"


class TestExtractCodeMove:
    @pytest.mark.parametrize(
        "reply",
        [
            "```python\nprint('}')\n```\n\\boxed{5}",
            "First \\boxed{4}.\n```python\npass\n```\nNo:\n```python\nprint('}')\n```\nSo \\boxed{4}, no, \\boxed{5}.",
            "<think>```python\npass\n```\n\\boxed{4}</think>```python\nprint('}')\n```\n\\boxed{5}<think>```python\n",
            "```python\nprint('}')\n``````\n```\n\\boxed{5}",
            "```python\r\nprint('}')\r\n```\r\n\\boxed{5}\r\n",
            "```python \t\nprint('}')\n``` \n\\boxed{5}",
            "Use ```python``` to begin:\n```python\nprint('}')\n```\n\\boxed{5}",
            "```python\nprint('}')\n```\nNot ```python\npass\n```\n\\boxed{5}",
        ],
    )
    def test_reads_the_last_block_and_the_last_box_below_it(self, reply):
        assert extract_code_move(reply) == "```python\nprint('}')\n```\n5"

    @pytest.mark.parametrize("room", ["   ", "\t"])
    def test_takes_the_fences_own_indentation_off_every_line(self, room):
        program = "if True:\n    print(5)\n\n"
        listed = "".join(f"{room}{line}" for line in f"```python\n{program}```\n".splitlines(keepends=True))

        assert extract_code_move(f"1. So:\n\n{listed}\n\\boxed{{5}}") == f"```python\n{program}```\n5"
        assert extract_code_move(f"```python\n{room}pass\n```\n\\boxed{{5}}") == f"```python\n{room}pass\n```\n5"

    def test_leaves_fences_and_boxes_inside_of_a_program_alone(self):
        program = "print('```', '\\boxed{4}')"

        assert extract_code_move(f"```python\n{program}\n```\n\\boxed{{5}}") == f"```python\n{program}\n```\n5"

    @pytest.mark.parametrize(
        "reply",
        [
            "",
            "print(5)",
            "\\boxed{5}",
            "```python\nprint(5)\n```",
            "```python\nprint(5)\n```\n5",
            "```python\nprint(5)\n```\n\\boxed{5",
            "```python\nprint(5)\n```\n\\boxed{}",
            "\\boxed{5}\n```python\nprint(5)\n```",
            "```python\nprint(5)\n\\boxed{5}",
            "```python\nprint('\\boxed{5}')\n```",
            "```python print(5)```\\boxed{5}",
            "So ```python\nprint(5)\n```\n\\boxed{5}",
            "```\nprint(5)\n```\n\\boxed{5}",
            "<think>```python\nprint(5)\n```\n\\boxed{5}",
            "```python\n" * 20_000 + "\\boxed{5}",
            "```python\nprint(5)\n```\n" + "\\boxed{" * 20_000,
        ],
    )
    def test_guesses_nothing(self, reply):
        assert extract_code_move(reply) is None


class TestPromptStyleTexts:
    @pytest.mark.parametrize("style", PROMPT_STYLES)
    def test_show_the_box_as_it_is_to_be_written(self, style):
        assert "\\boxed{}" in PROMPT_STYLES[style]
        assert "{{" not in PROMPT_STYLES[style]
