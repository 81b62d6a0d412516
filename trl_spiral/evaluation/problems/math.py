r"""
A model at math problems: how they are put to it, what it answers in `\boxed{}`, and how often it is right.

Whether self-play carries over to math is what [SPIRAL](https://huggingface.co/papers/2506.24119) asks of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trl_spiral.evaluation.problems.ask import ask_all, check_answered, thought_before
from trl_spiral.evaluation.problems.math_grading import MathVerdict, boxed_answer, grade_answers
from trl_spiral.evaluation.problems.math_sets import MathProblem
from trl_spiral.intervals import wilson
from trl_spiral.players import PolicyPlayer
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Engine
from trl_spiral.text.prompts import INSTRUCTION, PromptRenderer
from trl_spiral.types import Observation, Request


_ASKED = f"Question: {{question}}\n{INSTRUCTION}"
_DIALOGUE = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The Assistant "
    "first thinks about the reasoning process in the mind and then provides the User with the answer. {extra}User: You "
    "must put your answer inside \\boxed{}.\nQuestion: {question}\nAssistant:"
)

MATH_PROMPTS: Mapping[str, str] = {
    "qwen3": f"<|im_start|>user\n{_ASKED}<|im_end|>\n<|im_start|>assistant\n",
    "octothinker": _DIALOGUE.replace("{extra}", ""),
    "r1": _DIALOGUE.replace("{extra}", "The reasoning process stands within <think> </think> tags. ") + " <think>\n",
    "llama-instruct": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
    + _ASKED
    + "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
}
"""
`{question}` as each of [`~text.prompts.PROMPT_STYLES`] asks for a move, less the talk of games. `"chat"` is the tokenizer's own
chat template, with the same instruction at its end as in games.
"""


@dataclass(frozen=True, slots=True)
class MathAttempt:
    """
    A reply to a problem.

    Attributes:
        number (`int`):
            Of the problem in its set, from 0.
        problem ([`~evaluation.problems.math_sets.MathProblem`]):
            What was asked.
        reply (`str`):
            What was written.
        answer (`str`, *optional*):
            What stands in its last box; `None` if there is none.
        tokens (`int`):
            Length of the reply.
        truncated (`bool`):
            Whether it hit the token limit. An answer that was boxed before counts.
        verdict ([`~evaluation.problems.math_grading.MathVerdict`]):
            Whether the answer is right.
    """

    number: int
    problem: MathProblem
    reply: str
    answer: str | None
    tokens: int
    truncated: bool
    verdict: MathVerdict = MathVerdict.WRONG

    def record(self) -> dict[str, object]:
        """What a file keeps of it."""
        return {
            "number": self.number,
            "question": self.problem.question,
            "gold": self.problem.answer,
            "answer": self.answer,
            "verdict": self.verdict.value,
            "truncated": self.truncated,
            "tokens": self.tokens,
            "reply": self.reply,
        }


def math_prompt(renderer: PromptRenderer, question: str) -> tuple[int, ...]:
    """Token ids of a question, in the style in which the renderer puts games."""
    if renderer.style == "chat":
        messages = ({"role": "user", "content": question},)
        return renderer.prompt(Observation(game="math", seat=0, messages=messages))
    return renderer.framed(MATH_PROMPTS[renderer.style], "{question}", question)


def answer_problems(
    problems: Mapping[int, MathProblem],
    player: PolicyPlayer,
    engine: Engine,
    seed: int = 0,
    name: str = "",
    in_flight: int = 256,
) -> list[MathAttempt]:
    """
    Has a model answer problems, and grades what it says.

    Args:
        problems (`Mapping[int, MathProblem]`):
            By number. A reply depends on its problem's number and not on which others are asked.
        player ([`~players.PolicyPlayer`]):
            Whose weights answer, how replies are drawn, and in which style it is asked.
        engine ([`~selfplay.referee.Engine`]):
            Answers.
        seed (`int`, defaults to `0`):
            Seed of the replies.
        name (`str`, *optional*):
            Of the set, so that the replies to each are drawn apart.
        in_flight (`int`, defaults to `256`):
            Most problems under way at once. Replies depend on it by rounding alone.

    Returns:
        `list[MathAttempt]`: In the order of `problems`.

    Raises:
        RuntimeError: If the engine gives up on a reply: the accuracy would not be the model's.
    """
    requests = {
        number: Request(
            math_prompt(player.renderer, problem.question),
            player.sampling,
            player.policy,
            derive_seed(seed, "maths", name, number),
        )
        for number, problem in problems.items()
    }
    replies = ask_all(requests, engine, in_flight)
    attempts = []
    for number, problem in problems.items():
        reply = replies[number]
        check_answered(reply, number)
        text = player.renderer.text(reply.completion_ids)
        attempts.append(
            MathAttempt(
                number,
                problem,
                text,
                answer=boxed_answer(thought_before(player.renderer, requests[number]) + text),
                tokens=len(reply.completion_ids),
                truncated=reply.finish_reason == "length",
            )
        )
    verdicts = grade_answers([(seen.problem.answer, seen.answer) for seen in attempts])
    return [replace(seen, verdict=verdict) for seen, verdict in zip(attempts, verdicts, strict=True)]


def math_metrics(attempts: Sequence[MathAttempt]) -> dict[str, float]:
    """
    What the attempts at a set come to.

    Returns:
        `dict[str, float]`: `accuracy`, the share of right answers, and `accuracy_low` and `accuracy_high`, the ends of its
        95 % Wilson interval; `truncated`, `unboxed`: shares of replies that hit the token limit, and that have no answer in
        a box; `timeouts`: number of answers that were given up, and count as wrong; `reply_length` in tokens, on average.
    """
    number = len(attempts)
    accuracy = wilson(sum(attempt.verdict is MathVerdict.CORRECT for attempt in attempts) / number, number)
    return {
        "accuracy": accuracy.value,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "truncated": sum(attempt.truncated for attempt in attempts) / number,
        "unboxed": sum(attempt.answer is None for attempt in attempts) / number,
        "timeouts": float(sum(attempt.verdict is MathVerdict.TIMEOUT for attempt in attempts)),
        "reply_length": sum(attempt.tokens for attempt in attempts) / number,
    }
