"""
Tiny language models for tests and quick starts, made on the spot without a GPU or a network.

All have the network of `network.py`, 0.2 million parameters, and learn from lessons by its one training loop. They
differ in their lessons (`lessons.py`) and in their vocabulary (`tokenizer.py`):

* `player.py`: plays one or several games; cached in a folder.
* `coder.py`: writes short programs.
* `solver.py`: answers puzzles.
"""
