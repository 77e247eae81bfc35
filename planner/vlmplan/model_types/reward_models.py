"""Language models whose class in transformers can score a row: ``...ForSequenceClassification`` with one label.

``SCORED_TYPES`` are those with ``score``, a Linear without a bias of the last hidden states in place of the head that
knows words, of whose results the last token's counts: ``GenericForSequenceClassification`` in transformers 5.23
``modeling_layers.py`` and the classes of ``models/{biogpt,bloom,falcon,gpt2,gpt_bigcode,gpt_neo,gpt_neox,gptj,mpt,
openai,opt}``. TRL's ``RewardTrainer`` loads such a class (1.16 ``reward_trainer.py``).
"""

SCORED_TYPES = frozenset(
    """arcee axk1 axk2 biogpt bloom cohere_compass_text deepseek_v2 deepseek_v3 diffllama doge exaone4 falcon gemma
    gemma2 gemma3_text glm glm4 gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj helium hunyuan_v1_dense
    hunyuan_v1_moe jamba jetmoe llama minicpm3 minimax ministral ministral3 mistral mistral4 mixtral mpt nemotron olmo
    olmo2 olmo3 openai-gpt opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_5_text qwen3_moe qwen3_next
    seed_oss smollm3 stablelm starcoder2 zamba2""".split()
)
OTHER_HEADS = frozenset(
    """bert camembert ctrl data2vec-text electra ernie megatron-bert modernbert-decoder rembert roberta
    roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl""".split()
)
"""Whose class has another head than ``score``: one with layers of its own, or of the first token."""
OF_IMAGES_TOO = frozenset(("gemma3", "qwen3_5"))
"""Whose class has a vision encoder, to which ``RewardTrainer`` gives no images."""


def no_score(model_type: str) -> str | None:
    """Why no reward model is planned of this type; None where one is."""
    if model_type in SCORED_TYPES:
        return None
    if model_type in OTHER_HEADS:
        return f"{model_type} of transformers scores by another head than a Linear named score, which is not planned"
    if model_type in OF_IMAGES_TOO:
        return f"{model_type} has a vision encoder, and TRL 1.16 trains reward models on text alone, without images"
    return f"transformers 5.23 has no class of {model_type} that scores rows (AutoModelForSequenceClassification)"
