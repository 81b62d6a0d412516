"""
What a tiny player is taught before it plays itself: how a game's moves are written, and its rules. No strategy.

A lesson is a question and its reply. Most ask for a move, and any legal one is right; the others ask what would come of a
move, so that a player can read its cards and its board before it must learn from them what to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from trl_spiral.games import code_game, kuhn, leduc, negotiation, tictactoe
from trl_spiral.games.base import Dealt, Match, get_game
from trl_spiral.games.random_programs import random_program


Lesson = Callable[[random.Random, bool, str], tuple[str, str]]
"""
One lesson at a position that random play has led to: takes the source of all that is random, whether to ask what comes of a
move instead of asking for one, and the instruction that every prompt ends with.
"""


def tictactoe_lessons(rng: random.Random, reading: bool, instruction: str) -> tuple[str, str]:
    """Tic-tac-toe: a uniformly random legal move, or the result of a mark in a cell."""
    board, plies = tictactoe.EMPTY, rng.randrange(9)
    for _ in range(plies):
        if not (cells := tictactoe.empty_cells(board)):
            break
        board = tictactoe.place_mark(board, rng.choice(cells))
    if not tictactoe.empty_cells(board):
        return tictactoe_lessons(rng, reading, instruction)
    seen = tictactoe.board_observation(board).messages[0]["content"]
    cell = rng.choice(tictactoe.empty_cells(board))
    if not reading:
        return f"{seen}\n\n{instruction}", f"\\boxed{{[{cell}]}}"
    mark = rng.choice(tictactoe.MARKS)
    after = board[:cell] + mark + board[cell + 1 :]
    won = tictactoe.winner(after) is not None
    result = f"{mark} has won" if won else "draw" if "." not in after else "the game goes on"
    # The question writes the move as the list of legal moves does, so that both have the same tokens.
    return f"{seen}\n\nIf {mark} takes '[{cell}]', what comes of it?", result


def kuhn_lessons(rng: random.Random, reading: bool, instruction: str) -> tuple[str, str]:
    """Kuhn poker: any legal move, or what would come of one if the other card were known."""
    return _poker_lesson(kuhn.NAME, kuhn.CARDS, rng, reading, instruction)


def leduc_lessons(rng: random.Random, reading: bool, instruction: str) -> tuple[str, str]:
    """Leduc poker: the same."""
    return _poker_lesson(leduc.NAME, leduc.CARDS, rng, reading, instruction)


def negotiation_lessons(rng: random.Random, reading: bool, instruction: str) -> tuple[str, str]:
    """Negotiation: any move of those that its random player makes, or whether a swap would raise what a seat's goods are worth."""
    match = get_game(negotiation.NAME).start(rng.getrandbits(63))
    for _ in range(rng.randrange(negotiation.TURNS)):
        match.apply(_random_negotiation_move(match, rng))
    seen = _seen(match)
    if not reading:
        return f"{seen}\n\n{instruction}", f"\\boxed{{{_random_negotiation_move(match, rng)}}}"
    position = negotiation.read_negotiation(match.observe(_seat(match)))
    given, asked = rng.sample(list(negotiation.BASE_VALUES), 2)
    offer = negotiation.Offer({given: rng.randint(1, 5)}, {asked: rng.randint(1, 5)})
    gain = position.gain(offer, takes=False)
    outcome = "you gain" if gain > 0 else "you lose" if gain < 0 else "nothing"
    return f"{seen}\n\nIf your {offer} is taken, what comes of it?", outcome


def code_lessons(game: str, rng: random.Random, reading: bool, instruction: str) -> tuple[str, str]:
    """The code game: any small program with what it prints or, for the guesser, what one prints."""
    program, output = random_program(rng)
    if reading:
        return f"{code_game.guesser_prompt(program)}\n\n{instruction}", f"\\boxed{{{output}}}"
    seen = get_game(game).start(0).observe(code_game.GENERATOR).messages[0]["content"]
    return f"{seen}\n\n{instruction}", f"{code_game.code_block(program)}\n\\boxed{{{output}}}"


LESSONS: Mapping[str, Lesson] = {
    tictactoe.NAME: tictactoe_lessons,
    kuhn.NAME: kuhn_lessons,
    leduc.NAME: leduc_lessons,
    negotiation.NAME: negotiation_lessons,
    code_game.NAME: partial(code_lessons, code_game.NAME),
    code_game.FROZEN: partial(code_lessons, code_game.FROZEN),
}
"""The lessons of every game that a tiny player can be made for."""


def lessons_of(game: str) -> Lesson:
    """
    The lessons of a game.

    Raises:
        ValueError: If there are none.
    """
    if game not in LESSONS:
        raise ValueError(
            f"There is no tiny player for {game!r}, only for {', '.join(map(repr, LESSONS))}. Name a model to train."
        )
    return LESSONS[game]


def _poker_lesson(name: str, cards: Any, rng: random.Random, reading: bool, instruction: str) -> tuple[str, str]:
    """At one of the decisions of a random game: a move, or the end that it comes to against a card that is told."""
    game = get_game(name)
    assert isinstance(game, Dealt), "a deck of a few cards can be dealt in every way"
    deal = rng.choice(game.deals())
    match, moves = game.deal(deal), list[str]()
    while match.to_move is not None:
        moves.append(rng.choice(match.legal_actions() or ()))
        match.apply(moves[-1])
    match = game.deal(deal)
    for move in moves[: rng.randrange(len(moves))]:
        match.apply(move)
    seat, seen, move = _seat(match), _seen(match), rng.choice(match.legal_actions() or ())
    if not reading:
        return f"{seen}\n\n{instruction}", f"\\boxed{{{move}}}"
    match.apply(move)
    question = f"{seen}\n\nIf the other card is {cards[deal[1 - seat]]} and you {move}, what comes of it?"
    if match.to_move is not None:
        return question, "the game goes on"
    won = round(match.returns[seat])
    if not won:
        return question, "you share the pot"
    return question, f"you {'win' if won > 0 else 'lose'} {abs(won)} {'chip' if abs(won) == 1 else 'chips'}"


def _random_negotiation_move(match: Match, rng: random.Random) -> str:
    return negotiation.random_negotiation_move(negotiation.read_negotiation(match.observe(_seat(match))), rng)


def _seat(match: Match) -> int:
    assert match.to_move is not None, "a lesson is about a position at which somebody is to move"
    return match.to_move


def _seen(match: Match) -> str:
    return match.observe(_seat(match)).messages[0]["content"]
