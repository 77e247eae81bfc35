"""How micro batches are made: what cannot be laid out without padding. "seen": tests/trainer/data/test_flat_rows.py."""

from vlmplan.notes import Caveat
from vlmplan.recipe.choices import AttentionImplementation, Batching
from vlmplan.rules.base import RuleBook, RuleContext

BATCH_RULES = RuleBook()

TYPES_WITHOUT_PADDING = frozenset(
    """apertus arcee exaone4 gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2 gpt_bigcode granite hunyuan_v1_dense llama
    minicpm3 ministral3 mistral mixtral modernbert-decoder olmo olmo2 olmo3 phi3 qwen2 qwen3 qwen3_moe seed_oss smollm3
    glm4v idefics3 internvl llava_onevision mistral3 ovis2 qwen2_5_vl qwen2_vl qwen3_vl smolvlm""".split()
)
"""Models in which transformers tells the samples of a row apart by their positions: their losses are those of the
samples alone. opt makes positions of the mask, gpt_oss's eager attention sees the samples before; tokens of gemma3 and
paligemma look ahead by ``token_type_ids``. Others have not been run."""
CONVOLVING_TYPES = frozenset({"lfm2", "lfm2_moe"})
"""Models that attention tells samples of a row apart in, but short convolutions not: each token sees two before it."""
KEPT_APART_BY_AXOLOTL = frozenset({"qwen3_5", "qwen3_5_moe", "qwen3_next"})
"""Those whose gated delta nets axolotl 0.19.0 gives a forward that begins anew at each sample
(``monkeypatch/models/qwen3_5/modeling.py``, ``qwen3_next/modeling.py``)."""


@BATCH_RULES.error("transformers masking_utils.py _preprocess_mask_arguments: by position_ids without a mask (seen)")
def samples_of_a_row_are_told_apart(context: RuleContext) -> str | None:
    model, batching = context.model, context.recipe.batching
    if model is None or not batching.is_flat:
        return None
    if model.model_type in TYPES_WITHOUT_PADDING | CONVOLVING_TYPES | KEPT_APART_BY_AXOLOTL:
        return None
    return (
        f"--batching {batching.value} is not for {model.id} ({model.model_type}), in which the samples of a row would "
        f"see each other, or are not known not to; give --batching padded"
    )


@BATCH_RULES.warning(
    "transformers modeling_lfm2.py Lfm2ShortConv, modeling_qwen3_5.py GatedDeltaNet: no lengths come there (seen)"
)
def states_go_from_sample_to_sample_of_a_row(context: RuleContext) -> str | None:
    model, batching = context.model, context.recipe.batching
    if model is None or not batching.is_flat or model.model_type not in CONVOLVING_TYPES | KEPT_APART_BY_AXOLOTL:
        return None
    if model.model_type in CONVOLVING_TYPES:
        what = "short convolutions let the first tokens of a sample of a row see the sample before, in axolotl too"
    else:
        what = "gated delta nets let a sample of a row see those before; axolotl's own forward keeps them apart"
    return Caveat(f"--batching {batching.value}: in {model.id} ({model.model_type}) {what}")


@BATCH_RULES.error("vlmplan: the cut along tokens and the mask of a row's samples are not planned together")
def rows_of_samples_are_not_shared(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.batching.is_flat or recipe.sequence_parallel == 1:
        return None
    return (
        f"--batching {recipe.batching.value} and --sequence-parallel {recipe.sequence_parallel} are not planned "
        f"together; leave one of them off"
    )


@BATCH_RULES.warning("transformers masking_utils.py sdpa_mask, eager_mask: a mask of all tokens of the row squared")
def rows_without_padding_want_flash_attention(context: RuleContext) -> str | None:
    recipe = context.recipe
    is_alone = recipe.batching is Batching.PADDING_FREE and recipe.micro_batch == 1
    if not recipe.batching.is_flat or is_alone or recipe.attention is AttentionImplementation.FLASH_ATTENTION_2:
        return None
    return (
        f"--batching {recipe.batching.value} with --attention {recipe.attention.value} builds a mask of all tokens of "
        f"a micro batch squared, and computes all of it; --attention flash_attention_2 needs none"
    )
