"""
Qwen3 models with a known strategy in a small game, and their tokenizers.

Each line of a prompt is one token, and so is a whole reply. Prompts have a dozen tokens, and replies two with their
end.
"""

from __future__ import annotations

import math
import re

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.conftest import CHAT_TEMPLATE
from tests.helpers.precision import in_double
from trl_spiral.evaluation.exact.tree import GameTree
from trl_spiral.text.prompts import INSTRUCTION, PromptRenderer


PIECE = r"[^\n]*\n|[^\n]+"


def boxed(move):
    return f"\\boxed{{{move}}}"


def tokenizer_for(tree: GameTree, replies=()):
    """Return a tokenizer for the lines of a game's prompts, its moves in boxes, and further replies."""
    texts = [f"{state.observation.messages[0]['content']}\n\n{INSTRUCTION}" for state in tree.states]
    known = {piece for text in texts for piece in re.findall(PIECE, text)} | {"user\n", "assistant\n", "\n"}
    moves = dict.fromkeys(boxed(move) for state in tree.states for move in state.moves)
    words = Tokenizer(
        models.WordLevel({piece: n for n, piece in enumerate(["?", *sorted(known), *moves, *replies])}, "?")
    )
    words.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        unk_token="?",
        extra_special_tokens=["<|im_start|>"],
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )


def network(tokenizer, hidden_size=32, seed=0) -> Qwen3ForCausalLM:
    """Return a random network of one layer, in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(tokenizer),
                hidden_size=hidden_size,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=hidden_size // 2,
                intermediate_size=2 * hidden_size,
                initializer_range=0.2,
                tie_word_embeddings=False,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    return in_double(model.eval())


@torch.no_grad()
def constant_model(tokenizer, logits: dict[str, float]) -> Qwen3ForCausalLM:
    """
    Return a model with the same output for every prompt: the given logit for each text, and -30 for other tokens.

    All tokens have the same embedding, so every position has the same hidden state.
    """
    model = network(tokenizer, hidden_size=8)
    model.model.embed_tokens.weight[:] = model.model.embed_tokens.weight[0].clone()
    hidden = model.model(torch.tensor([[0, 1, 2]])).last_hidden_state[0, -1]
    wanted = torch.full((len(tokenizer),), -30.0, dtype=hidden.dtype)
    for text, logit in logits.items():
        (token,) = tokenizer.encode(text, add_special_tokens=False)
        wanted[token] = logit
    model.lm_head.weight[:] = torch.outer(wanted, hidden / hidden.dot(hidden))
    return model


@torch.no_grad()
def strategy_model(tokenizer, tree: GameTree, strategy) -> Qwen3ForCausalLM:
    """
    Return a model that plays a strategy: the probability of each boxed move after each prompt, and then the end.

    Hidden states are those of a random network, one per prompt and per move after it. The output matrix is the
    solution that gives each state the required logits, and -30 to all other tokens.
    """
    renderer = PromptRenderer(tokenizer)
    wanted: dict[tuple[int, ...], dict[int, float]] = {}
    for state in tree.states:
        prompt, odds = tuple(renderer.prompt(state.observation)), strategy(state.name)
        moves = {renderer.reply(boxed(move))[0]: odds.get(move, 0.0) for move in state.moves}
        wanted[prompt] = moves
        wanted |= {(*prompt, token): {tokenizer.eos_token_id: 1.0} for token in moves}
    model = network(tokenizer, hidden_size=4 * len(wanted))
    hidden = torch.stack([model.model(torch.tensor([ids])).last_hidden_state[0, -1] for ids in wanted])
    logits = torch.full((len(wanted), len(tokenizer)), -30.0, dtype=hidden.dtype)
    for row, odds in enumerate(wanted.values()):
        for token, share in odds.items():
            logits[row, token] = max(math.log(share), -30.0) if share else -30.0
    model.lm_head.weight[:] = torch.linalg.lstsq(hidden, logits).solution.T
    return model


@torch.no_grad()
def reply_model(tokenizer, replies: dict[str, float]) -> Qwen3ForCausalLM:
    """
    Return a model that samples one of the given replies by weight, for every prompt.

    Each token depends only on the previous one: layers add nothing, embeddings are unit vectors, and the head is a
    table of log-probabilities, with -1000 for tokens that are in no reply. A single reply has probability exactly 1.
    """
    chains = {
        (*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id): weight
        for reply, weight in replies.items()
    }
    written = sorted({token for chain in chains for token in chain})
    model = network(tokenizer, hidden_size=4 * (len(written) + 1))
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    place = {
        token: number for number, token in enumerate(written, 1)
    }  # 0 is any other token, such as the prompt's last
    embeddings, head = model.model.embed_tokens.weight.zero_(), model.lm_head.weight.zero_()
    embeddings[:, 0] = 1.0
    for token, number in place.items():
        embeddings[token] = torch.eye(embeddings.shape[1])[number]
    weights = torch.zeros(len(place) + 1, len(tokenizer))
    for chain, weight in chains.items():
        for before, after in zip((None, *chain), chain, strict=False):
            weights[place.get(before, 0), after] += weight
    shares = weights / weights.sum(1, keepdim=True).clamp(min=1e-9)
    # The last norm scales a unit vector by the square root of its dimension.
    head[:, : len(place) + 1] = shares.log().clamp(min=-1000.0).T / embeddings.shape[1] ** 0.5
    return model
