"""What a cache holds of hybrid models beside keys and values: states, as many bytes as transformers' own cache."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from test_families_kimi_linear import CONFIG as KIMI_LINEAR
from test_families_lfm2 import LFM2
from test_families_mamba import JAMBA, MAMBA
from test_families_minimax import MINIMAX
from test_families_nemotron_h import CONFIG as NEMOTRON_H
from test_families_olmo_hybrid import CONFIG as OLMO_HYBRID
from test_families_qwen3_next import CONFIG as QWEN3_NEXT
from test_families_state_space import ALONE, BAMBA, FALCON, GRANITE
from test_families_zaya import ZAYA

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import generation_pass
from vlmplan.architecture.families.build import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.storage_log import EngineEvent, LoggingTape, expanded
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Cached

NUM_TOKENS = 130
HYBRIDS = (
    KIMI_LINEAR,
    LFM2,
    JAMBA,
    MAMBA,
    MINIMAX,
    NEMOTRON_H,
    OLMO_HYBRID,
    QWEN3_NEXT,
    ALONE,
    BAMBA,
    FALCON,
    GRANITE,
    ZAYA,
)
EACH = pytest.mark.parametrize("config", HYBRIDS, ids=lambda config: str(config["model_type"]))


def tensors_of(cache: Any) -> Iterator[tuple[Any, bool]]:
    """Every tensor of a cache of transformers, and whether tokens make it longer."""
    for layer in cache.layers:
        for name in ("keys", "values"):
            if getattr(layer, name, None) is not None:
                yield getattr(layer, name), True
        for name in ("conv_states", "recurrent_states"):
            yield from ((state, False) for state in getattr(layer, name, {}).values() if state is not None)
    yield from ((state, False) for state in getattr(cache, "linear_cache", ()) if len(state))


@EACH
def test_keys_and_states_are_those_of_transformers_after_the_prompt(config: Mapping[str, Any]):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from family_checks import real_model

    with torch.device("meta"), torch.no_grad():
        model = real_model(config, attention="eager").eval()
        outputs = model(torch.zeros(2, NUM_TOKENS, dtype=torch.int64), use_cache=True)
    cache = outputs["cache_params" if "cache_params" in outputs else "past_key_values"]
    found = generation_pass(
        build_model(config),
        Tape(is_evaluating=True, follows_weights=False),
        Batch(micro_batch=2, num_tokens=NUM_TOKENS),
        AttentionBackend(),
    )
    sizes = list(tensors_of(cache))
    assert found.cache_bytes == sum(x.nbytes for x, grows in sizes if grows)
    assert found.state_bytes == sum(x.nbytes for x, grows in sizes if not grows) > 0


@EACH
def test_a_replay_is_told_which_storages_are_kept_and_which_of_them_grow(config: Mapping[str, Any]):
    tape = LoggingTape(is_evaluating=True)
    found = generation_pass(build_model(config), tape, Batch(micro_batch=2, num_tokens=NUM_TOKENS), AttentionBackend())
    operations = expanded(found.trace).forward
    sizes = dict(one for one in operations if not isinstance(one, EngineEvent) and one[1])
    freed = {one[0] for one in operations if not isinstance(one, EngineEvent) and not one[1]}
    cached = [one for one in operations if isinstance(one, EngineEvent) and isinstance(one.event, Cached)]
    assert not freed & {one.handle for one in cached}
    for wanted, num_bytes in ((True, found.cache_bytes), (False, found.state_bytes)):
        assert sum(sizes[one.handle] for one in cached if one.event.grows is wanted) == num_bytes
