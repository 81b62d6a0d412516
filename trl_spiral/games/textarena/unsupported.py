"""TextArena's games that cannot be played, with the reason that the error message of `get_game` gives."""

from __future__ import annotations


ONE = "it has one seat and is not adapted"
WORDS = "it needs nltk's word lists, which it tries to download"
PYTHON = "it needs Python 3.12 (a SyntaxError in older versions), and has not been tested there"
JUDGE = "it needs a judge model on OpenRouter"
FILES = "its data files are missing from TextArena 0.7.4"
CROWD = "it has four or more seats, in teams or with votes, and is not adapted"

UNSUPPORTED: dict[str, str] = {
    id_: why
    for why, families in {
        ONE: (
            "2048-v0 -ultra-easy -mega-easy -super-easy -very-easy -easy -hard -very-hard -extreme"
            " -3x3 -5x5 -6x6 -8x8 -10x10",
            "Bandit-v0 -hard",
            "Blackjack-v0 -long",
            "Countdown-v0",
            "Crosswords-v0 -hardcore",
            "Cryptarithm-v0",
            "FifteenPuzzle-v0",
            "FrozenLake-v0 -random -hardcore",
            "GuessTheNumber-v0 -hardcore",
            "LightsOut-v0",
            "LogicPuzzle-v0 -hard",
            "Mastermind-v0 -hard -extreme",
            "Minesweeper-v0 -small -medium -hard",
            "PegJump-v0",
            "RushHour-v0",
            "Secretary-v0 -long",
            "Set-v0",
            "Slitherlink-v0",
            "Sokoban-v0 -medium",
            "Sudoku-v0 -very-easy -easy -medium -hard",
            "ThreeCardMonte-v0",
        ),
        f"{ONE}; {WORDS}": (
            "Hangman-v0 -hardcore",
            "WordLadder-v0 -medium -hard",
            "WordSearch-v0 -hardcore",
            "Wordle-v0 -hardcore -long -long-hardcore",
        ),
        f"{ONE}; {PYTHON}": ("Klondike-v0", "UltimateTexasHoldem-v0"),
        f"{ONE}; {JUDGE}": ("GuessWho-v0", "TwentyQuestions-v0 -hardcore"),
        WORDS: (
            "DontSayIt-v0 -hardcore -unlimited",
            "LetterAuction-v0 -medium -hard",
            "SpellingBee-v0 -small -large",
            "WordChains-v0",
        ),
        f"it has four seats; {WORDS}": ("Codenames-v0 -hardcore",),
        PYTHON: (
            "Checkers-v0 -long",
            "Chess-v0 -long -blind",
            "IteratedStagHunt-v0 -randomized",
            "ReverseTicTacToe-v0",
        ),
        JUDGE: ("Debate-v0 -medium -long", "ScenarioPlanning-v0"),
        FILES: (
            "ScorableGames-v0 -conservative -game1 -game2 -game3 -7players -medicalethics -vendorretailer",
            "UsedCarNegotiation-v0 -strong-buyer -strong-seller",
        ),
        "its module is missing from TextArena 0.7.4": ("UsedCar-v0-balanced",),
        "it needs the BabyAI-Text package": ("BabyAiText-v0",),
        "every finished road raises TypeError: `set_winner(player_ids=…)`": ("Tak-v0 -medium -hard",),
        "it shows each seat the other's pieces, and seat 0 cannot win by capturing the last one": ("Stratego-v0",),
        CROWD: (
            "CharacterConclave-v0 -long -extreme",
            "SecretMafia-v0",
            "SettlersOfCatan-v0",
            "Taboo-v0 -animals -cars -city/country -food -literature -people -tv -long -full",
        ),
    }.items()
    for base, *endings in (family.split() for family in families)
    for id_ in (base, *(base + ending for ending in endings))
}
"""Reason by TextArena's id."""
