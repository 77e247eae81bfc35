"""Small models whose losses are compared, and gradients to compare them by."""

import copy

import torch

from vlmplan_trainer.labels import IGNORED_LABEL

VOCAB_SIZE = 307
NUM_TOKENS = 19


def small_model(kind="llama", *, dtype=torch.float32, **changes):
    """A model of two layers with weights large enough for a loss that is not flat."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    known = {**sizes, **heads, **tokens, "use_cache": False, "tie_word_embeddings": False}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(known | changes)), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return model.to(dtype)


def batch(num_samples=2, num_tokens=NUM_TOKENS, vocab_size=VOCAB_SIZE, num_ignored=7):
    ids = torch.randint(vocab_size, (num_samples, num_tokens), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:, :num_ignored] = IGNORED_LABEL
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


def distance_fraction(found, expected):
    """|found - expected| / |expected|, over all gradients together."""
    difference = sum((found[name].double() - expected[name].double()).square().sum() for name in expected)
    return float((difference / sum(value.double().square().sum() for value in expected.values())).sqrt())


def exact_gradients(model):
    exact = copy.deepcopy(model).double()
    return gradients(exact, exact(**batch()).loss)
