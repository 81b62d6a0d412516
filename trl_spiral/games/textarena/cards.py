"""TextArena's games of cards and stakes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.games.textarena.family import DEALT, Family, capitals, words


def kuhn(env: Any) -> tuple[str, ...]:
    return tuple(f"[{move}]" for move in env.state.game_state["current_legal_action_tree"])


def card_name(value: int) -> str:
    """A card of the game of pure strategy, as its observation writes it."""
    return {1: "A", 11: "J", 12: "Q", 13: "K"}.get(value, str(value))


def gops(env: Any) -> tuple[str, ...]:
    hand = env.state.game_state["player_hands"][env.state.current_player_id]
    return tuple(f"[{card_name(card)}]" for card in hand)


def high_society(env: Any) -> tuple[str, ...]:
    return tuple(f"[{card}]" for card in env.state.game_state["player_money"][env.state.current_player_id])


def briscola(env: Any) -> tuple[str, ...]:
    hand = env.state.game_state["players"][env.state.current_player_id]["hand"]
    return tuple(f"[play {position}]" for position in range(1, len(hand) + 1))


def german_whist(env: Any) -> tuple[str, ...]:
    """Any card to lead with; otherwise the suit that was led, if the hand has it."""
    state = env.state.game_state
    hand, trick = state["players"][env.state.current_player_id]["hand"], state["current_trick"]
    suit = trick[0][1]["suit"] if trick else None
    follow = [position for position, card in enumerate(hand, 1) if card["suit"] == suit]
    return tuple(f"[play {position}]" for position in follow or range(1, len(hand) + 1))


def golf(env: Any) -> tuple[str, ...]:
    """Draw or take, then swap with a card of one's own or, unless it was taken, discard."""
    state = env.state.game_state
    if state["turn_phase"] == "draw":
        return ("[draw]", "[take]") if state["discard_pile"] else ("[draw]",)
    places = product(range(1, env.num_rows + 1), range(1, env.num_columns + 1))
    swaps = tuple(f"[swap {row} {column}]" for row, column in places)
    return swaps if state.get("took_from_discard") else ("[discard]", *swaps)


def _fits(card: str, pile: list[str]) -> bool:
    """Whether a card goes on a center pile: one rank above the last, which a king stands in for, as it does anywhere."""
    ranks = "A23456789JQK"
    if card[0] == "K" or not pile:
        return card[0] in "AK"
    last = len(pile) - 1 if pile[-1][0] == "K" else ranks.index(pile[-1][0])
    return ranks.index(card[0]) == last + 1


def spite_and_malice(env: Any) -> tuple[str, ...]:
    """
    Plays, discards, and drawing where it brings a card.

    TextArena also lets a seat draw nothing, for ever and without ending its turn; here a seat that can do nothing else
    is stuck.
    """
    own = env.players[env.state.current_player_id]
    tops = [pile[-1] for pile in (own["payoff"], *own["discard"]) if pile]
    moves = ["[draw]"] if len(own["hand"]) < 5 and env.deck else []
    for card in dict.fromkeys((*own["hand"], *tops)):
        playable = (index for index, pile in enumerate(env.center_piles) if _fits(card, pile))
        moves += (f"[play {card} {index}]" for index in playable)
    moves += (f"[discard {card} {index}]" for card in dict.fromkeys(own["hand"]) for index in range(4))
    return tuple(moves)


def fewest_left(env: Any) -> tuple[float, ...]:
    """How the environment itself decides once neither seat can do anything: by the length of the payoff piles."""
    first, second = (len(env.players[seat]["payoff"]) for seat in (0, 1))
    return (1.0, -1.0) if first < second else (-1.0, 1.0) if first > second else (0.0, 0.0)


@cache
def _amounts(verb: str, most: int) -> tuple[str, ...]:
    return tuple(f"[{verb} {amount}]" for amount in range(1, most + 1))


def _stakes(verb: str, most: int) -> tuple[str, ...]:
    """`[bet 1]` to `[bet most]`, cut from one long tuple: a seat may have a thousand."""
    return _amounts(verb, 1 << max(0, most).bit_length())[: max(0, most)]


def indian_poker(env: Any) -> tuple[str, ...]:
    """What the environment takes: a seat that could not pay its ante can do nothing, not even fold."""
    state, seat = env.state.game_state, env.state.current_player_id
    chips, due = state["player_chips"][seat], state["highest_bet"] - state["current_bets"][seat]
    if chips < 0:
        return ()
    if due == 0:
        return ("[check]", "[fold]", *_stakes("bet", chips))
    return ("[fold]", *(("[call]",) if due <= chips else ()), *_stakes("raise", chips - due))


def most_chips(env: Any) -> tuple[float, ...]:
    """Indian poker that cannot go on is won by who has more."""
    first, second = env.state.game_state["player_chips"].values()
    return (1.0, -1.0) if first > second else (-1.0, 1.0) if first < second else (0.0, 0.0)


def poker(env: Any) -> tuple[str, ...]:
    """
    Folding, checking or calling, and stakes up to all that the seat has.

    TextArena also takes a bet below the one that it should answer, which then counts as answered; here one that faces a
    bet raises it.
    """
    state, seat = env.state.game_state, env.state.current_player_id
    chips, due = state["player_chips"][seat], state["current_bet"] - state["player_bets"][seat]
    if state["current_bet"] == 0:
        return ("[check]", "[fold]", *_stakes("bet", chips))
    return ("[call]" if due > 0 else "[check]", "[fold]", *_stakes("raise", chips - max(0, due)))


_STAKE = r"(check|fold|call)|(bet|raise)\s+([1-9][0-9]{0,5})"

FAMILIES = (
    Family(
        TextArenaGame("KuhnPoker-v0", "check|bet|call|fold", legal=kuhn, traits=DEALT),
        ("", "-short", "-medium", "-long", "-extreme"),
        note="bets are free, and the last round decides; Kuhn-v0 plays by the rules",
    ),
    Family(
        TextArenaGame("IndianPoker-v0", _STAKE, words, indian_poker, stuck=most_chips, max_turns=2500, traits=DEALT),
        ("", "-short", "-medium", "-long", "-extreme"),
        note="after a round that was checked, one check ends the next; a seat that cannot pay its ante has lost",
    ),
    Family(
        TextArenaGame("Poker-v0", _STAKE, words, poker, max_turns=5000, traits=DEALT),
        ("", "-small", "-long", "-extreme"),
        note="two seats of two to fifteen; equal chips go to seat 1",
    ),
    Family(
        TextArenaGame("Briscola-v0", r"play\s+([123])", "[play {}]", briscola, max_turns=40, traits=DEALT),
        note="two seats of two to four (more raise AttributeError); 60 to 60 goes to seat 0",
    ),
    Family(
        TextArenaGame(
            "GermanWhist-v0", r"play\s+([1-9]|1[0-3])", "[play {}]", german_whist, max_turns=52, traits=DEALT
        ),
    ),
    Family(
        TextArenaGame(
            "Golf-v0",
            r"(draw|take|discard)|(swap)\s+([1-3])\s+([1-3])",
            words,
            golf,
            max_turns=400,
            traits=DEALT,
        ),
        ("", "-medium"),
        note="two seats of two to four (more raise AttributeError); equal scores go to seat 0",
    ),
    Family(
        TextArenaGame(
            "SpiteAndMalice-v0",
            r"(play|discard)\s+([a2-9jqk])\s*([♠♥♦♣])\s+([0-3])|draw",
            lambda match: f"[{match[1].lower()} {match[2].upper()}{match[3]} {match[4]}]" if match[1] else "[draw]",
            spite_and_malice,
            stuck=fewest_left,
            observation="first_last",
            max_turns=2000,
            traits=DEALT,
        ),
        note="one card a turn; [draw] only where it brings a card; a seat without a move ends the game: fewest cards left win",
    ),
    Family(
        TextArenaGame("GameOfPureStrategy-v0", "(a|k|q|j|10|[2-9])", capitals, gops, max_turns=26, traits=DEALT),
        simultaneous=True,
    ),
    Family(
        TextArenaGame(
            "ThreePlayerGOPS-v0",
            "(a|k|q|j|10|[2-9])",
            capitals,
            gops,
            max_turns=39,
            traits=replace(DEALT, seats=3, zero_sum=False),
        ),
        simultaneous=True,
        note="two that tie for first have 1 each",
    ),
    Family(
        TextArenaGame(
            "HighSociety-v0", "[1-9]|1[01]", legal=high_society, observation="full", max_turns=400, traits=DEALT
        ),
        simultaneous=True,
        note="money left over counts for nothing, whatever the rules say",
    ),
)
