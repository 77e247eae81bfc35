"""What stage 3 of a single rank makes of weights that are gathered while adapters are added."""

import pytest

from planned import cluster
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload
from vlmplan.workload import ModelFiles, Workload

VOCAB_SIZE, WIDTH = 50_000, 256
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": WIDTH,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
HEAD_BYTES = VOCAB_SIZE * WIDTH * 2


@pytest.mark.parametrize(
    ("model_type", "num_ranks", "offload", "gathered_bytes"),
    [
        ("phi", 1, Offload.NONE, 0),
        ("phi", 2, Offload.NONE, HEAD_BYTES),
        ("phi", 1, Offload.CPU, HEAD_BYTES),
        ("llama", 1, Offload.NONE, HEAD_BYTES),
    ],
)
def test_a_head_with_a_bias_is_copied_from_the_ranks_own_shards(model_type, num_ranks, offload, gathered_bytes):
    """The head's copy comes last, and beside it is its original, gathered: alone in a tensor of its own, of one rank
    with its bias as it lies in the shards."""
    config = {"model_type": model_type, **SIZES, "tie_word_embeddings": False}
    recipe = Recipe(method=Method.LORA, zero_stage=3, train_embeddings=True, offload_params=offload)
    estimator = Estimator(Workload(model=ModelFiles(id="small", config=config), seq_len=64), recipe)
    timeline = estimator.timeline_of_tensors(recipe, cluster(num_gpus=num_ranks))
    (load,) = [phase for phase in timeline.phases if phase.name == "load"]
    assert load.peak.total - load.resident.total == pytest.approx(gathered_bytes, abs=0.02 * HEAD_BYTES)
