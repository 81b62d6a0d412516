"""The tiny solver and the tiny coder: equal arguments give equal models, and nothing else changes."""

import random

import pytest
import torch

from trl_spiral.tiny.coder import make_tiny_coder
from trl_spiral.tiny.lessons import clumsy_lessons, make_exercises
from trl_spiral.tiny.solver import make_tiny_solver


LESSONS = clumsy_lessons(make_exercises(20), 40)


def make_solver(seed):
    return make_tiny_solver(LESSONS, r"\w+", seed, steps=2, batch_size=4)


def make_coder(seed):
    return make_tiny_coder(LESSONS, seed, steps=2, batch_size=4)


def same(first, second):
    return all(map(torch.equal, first.parameters(), second.parameters()))


@pytest.mark.parametrize("make", [make_solver, make_coder])
class TestTinyModels:
    def test_equal_seeds_give_equal_weights(self, make):
        (first, _), (again, _), (other, _) = make(0), make(0), make(1)

        assert same(first, again)
        assert not same(first, other)

    def test_the_random_state_stays(self, make):
        states = torch.get_rng_state(), random.getstate()
        model, _ = make(0)

        assert not model.training
        assert torch.equal(torch.get_rng_state(), states[0])
        assert random.getstate() == states[1]

    def test_the_tokenizer_encodes_the_lessons(self, make):
        _, tokenizer = make(0)

        for (message,), reply in LESSONS:
            for text in (message["content"], reply):
                ids = tokenizer.encode(text, add_special_tokens=False)
                assert tokenizer.decode(ids) == text
