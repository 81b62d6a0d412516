"""A tiny model that solves some problems always, some half the time, and others never."""

from pathlib import Path

import torch

from trl_spiral.evaluation.problems.code_sets import mbpp_problems
from trl_spiral.evaluation.problems.files import read_rows
from trl_spiral.text.prompts import CODE_INSTRUCTION
from trl_spiral.tiny.coder import make_tiny_coder


MBPP = Path(__file__).parents[1] / "data/code" / "mbpp_tiny.json"
HUMANEVAL = Path(__file__).parents[1] / "data/code" / "humaneval_tiny.jsonl"
ALWAYS, HALF, NEVER = (11, 13), (15,), (12, 14)
"""Tasks of the test split in our file of MBPP, by the share of right programs."""


def save_coder(folder):
    """Write the model and its tokenizer to a folder."""
    lessons = []
    for problem in mbpp_problems(read_rows(MBPP), "test"):
        prompt = f"{problem.question}\n\n{CODE_INSTRUCTION}"
        wrong = f"def {problem.entry_points[0]}(*_):\n    return None"
        programs = {
            ALWAYS: (problem.reference,),
            HALF: (problem.reference, wrong),
            NEVER: (wrong,),
        }
        (known,) = (programs for tasks, programs in programs.items() if problem.task in tasks)
        lessons += [([{"role": "user", "content": prompt}], f"```python\n{program}\n```") for program in known]
    torch.set_num_threads(1)
    model, tokenizer = make_tiny_coder(lessons * 2, steps=90, batch_size=6)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
