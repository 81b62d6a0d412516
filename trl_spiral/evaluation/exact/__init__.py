"""Exact numbers of small games: exploitability, strategies of language models, and results at tic-tac-toe."""
