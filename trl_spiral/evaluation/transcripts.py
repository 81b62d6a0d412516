"""Episodes as text that a person reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from trl_spiral.types import Episode


def format_transcript(episode: Episode, prompt_text: Callable[[Sequence[int]], str] | None = None) -> str:
    """
    One episode as Markdown: who played, each turn's prompt and reply, and how it ended.

    Args:
        episode ([`~types.Episode`]):
            What was played.
        prompt_text (`Callable`, *optional*):
            Decodes prompt ids; without it, prompts are left out.
    """
    lines = [f"# {episode.game}, game {episode.counter}", ""]
    for seat, (name, value) in enumerate(zip(episode.players, episode.returns, strict=True)):
        lines.append(f"- seat {seat}: {name}, return {value:+g}")
    lines += [f"- ending: {episode.ending}" + (f" ({episode.detail})" if episode.detail else "")]
    if episode.offender is not None:
        lines.append(f"- at fault: seat {episode.offender}")
    moves = " ".join(f"{seat}:{move}" for seat, move in episode.moves)
    lines += [f"- moves: {moves}" + (f", of which {episode.opening} a random opening" if episode.opening else ""), ""]
    taken = [iter(trajectory.turns) for trajectory in episode.trajectories]
    for number, seat in enumerate(episode.order, start=1):
        turn = next(taken[seat])
        lines += [f"## Turn {number}: seat {seat}, {episode.players[seat]}", ""]
        if prompt_text is not None and turn.prompt_ids:
            lines += ["Read:", "", "```text", prompt_text(turn.prompt_ids), "```", ""]
        lines += ["Wrote:", "", "```text", turn.text, "```", ""]
        if turn.logprobs:
            lines += [f"{len(turn.completion_ids)} tokens, log-probability {sum(turn.logprobs):.3f}", ""]
    return "\n".join(lines)


def write_transcripts(
    episodes: Sequence[Episode],
    folder: str | os.PathLike[str],
    prompt_text: Callable[[Sequence[int]], str] | None = None,
) -> list[Path]:
    """Writes one Markdown file per episode, numbered in the order given, and returns the paths."""
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, episode in enumerate(episodes):
        path = root / f"{number:03d}_{'_vs_'.join(episode.players)}.md"
        path.write_text(format_transcript(episode, prompt_text), encoding="utf-8")
        paths.append(path)
    return paths
