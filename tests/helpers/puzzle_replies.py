"""Right, partly right and hostile replies to puzzles, for tests of score files and of their pages."""

import json

from tests.helpers.run_folders import HOSTILE
from trl_spiral.evaluation.problems.tasks import ScoredReply
from trl_spiral.tasks import get_task
from trl_spiral.tasks.hanoi import distance, moves_from


def solution(problem):
    """Return the best answer to a problem of Connections or Hanoi."""
    if "groups" in problem.data:
        return "; ".join(", ".join(words) for words in problem.data["groups"].values())
    state, goal = tuple(problem.data["start"]), tuple(problem.data["goal"])
    moves = []
    while state != goal:
        after = {move: (*state[: move[0] - 1], move[2], *state[move[0] :]) for move in moves_from(state)}
        moves.append(min(after, key=lambda move: distance(after[move], goal)))
        state = after[moves[-1]]
    return str([list(move) for move in moves])


def scored(problem, task, model, response, sample=0, truncated=False, **settings):
    """Return the row of a reply, scored by its task."""
    score = get_task(task).score(problem, response)
    return ScoredReply(
        model=model,
        task=task,
        problem=problem.id,
        sample=sample,
        prompt=json.dumps(problem.messages),
        data=json.dumps(problem.data),
        response=response,
        score=score.value,
        solved=score.solved,
        detail=json.dumps(score.detail),
        tokens=len(response) // 4,
        truncated=truncated,
        settings=json.dumps(settings),
    )


def make_rows(number=4):
    """
    Return replies of three models to Connections and Hanoi.

    "careful" solves all problems. "hasty" solves every other problem, and omits the last move or group of the rest.
    "rude" writes text that must not become part of a page.
    """
    rows = []
    for task in ("connections", "hanoi"):
        problems = {problem.id: problem for problem in get_task(task).problems("validation", number)}.values()
        for place, problem in enumerate(problems):
            best = solution(problem)
            less = best.rpartition("; " if task == "connections" else ", [")[0] + "]" * (task == "hanoi")
            rows += [
                scored(problem, task, "careful", f"Let me think.\n\\boxed{{{best}}}"),
                scored(problem, task, "hasty", f"\\boxed{{{less if place % 2 else best}}}"),
                scored(problem, task, "rude", f"{HOSTILE}\n\\boxed{{{HOSTILE}}}", truncated=True),
            ]
    return rows
