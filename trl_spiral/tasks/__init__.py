"""Problems that a program can grade, by name. Importing this package registers the built-in tasks."""

from __future__ import annotations

from functools import partial
from typing import get_args

from trl_spiral.tasks.base import (
    Problem,
    Score,
    Task,
    get_task,
    read_answer,
    register_task,
    task_dataset,
    task_names,
)
from trl_spiral.tasks.connections import Connections, Level, small_categories
from trl_spiral.tasks.hanoi import Hanoi


__all__ = [
    "Problem",
    "Score",
    "Task",
    "get_task",
    "read_answer",
    "register_task",
    "task_dataset",
    "task_names",
]


def _register() -> None:
    def connections(name: str, level: Level | None = None) -> Task:
        return Connections(level, name=name)

    def small_connections() -> Task:
        return Connections("easy", groups=2, size=3, categories=small_categories(), name="connections-small")

    def hanoi(name: str, disks: tuple[int, ...], standard: bool = False) -> Task:
        return Hanoi(disks, standard, name=name)

    register_task("connections", partial(connections, "connections"))
    for level in get_args(Level):
        register_task(f"connections-{level}", partial(connections, f"connections-{level}", level))
    register_task("connections-small", small_connections)
    register_task("hanoi", partial(hanoi, "hanoi", (3, 4, 5)))
    register_task("hanoi-3", partial(hanoi, "hanoi-3", (3,)))
    register_task("hanoi-small", partial(hanoi, "hanoi-small", (1, 2, 3)))
    register_task("hanoi-standard", partial(hanoi, "hanoi-standard", (3, 4, 5), standard=True))


_register()
