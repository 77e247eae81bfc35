"""Validity rules: each has a case that it refuses and a neighbour that it lets pass."""

import os
import re
from dataclasses import dataclass, field, replace

import deepspeed_probe
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_cases import RECIPES, card, cluster
from vlmplan.cli.estimate import estimate
from vlmplan.cli.launch import launch
from vlmplan.errors import InputError
from vlmplan.hardware import Cluster, Vendor
from vlmplan.models.packaged import packaged_files
from vlmplan.notes import caveats
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import (
    AdapterDtype,
    AttentionImplementation,
    Batching,
    CheckpointKind,
    FlatParameters,
    LinearAttention,
    LossKind,
    Method,
    Offload,
    OptimizerKind,
    Precision,
    ShardUnits,
    WeightDtype,
)
from vlmplan.recipe.evaluation import Evaluation, Kept
from vlmplan.recipe.libraries import TransformersVersion
from vlmplan.recipe.lora_targets import INDEXER_LINEARS, TOKEN_INDEXER_LINEARS
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, IdleOffload, KTOLoss, Reference, TaskKind, TaskTrainer
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.rules import (
    ModelFacts,
    attention_implementations,
    check,
    default_lora_exclude,
    model_facts,
    objection,
    problems,
)
from vlmplan.rules.adapters import HEADS
from vlmplan.rules.base import Severity
from vlmplan.rules.check import COUNTING_RULES, OTHER_RULES, RULES, SEARCH_RULES
from vlmplan.workload import ModelFiles

T4 = {"name": "Tesla T4", "compute_capability": (7, 5), "supports_bf16": False, "supports_flash_attention_2": False}
GTX_1080 = T4 | {"name": "GTX 1080 Ti", "compute_capability": (6, 1)}
M60 = T4 | {"name": "Tesla M60", "compute_capability": (5, 2)}
MI300X = {"vendor": Vendor.AMD, "compute_capability": None, "supports_flash_attention_2": None}
CPU = {"vendor": Vendor.CPU, "compute_capability": None, "supports_flash_attention_2": None}
GEMMA_2 = ModelFacts(id="gemma-2-2b", model_types=frozenset({"gemma2"}), weights_dtype="bfloat16")
ZAMBA_2 = ModelFacts(id="zamba2-2.7b", model_types=frozenset({"zamba2"}))
GPT_OSS = ModelFacts(id="gpt-oss-20b", model_types=frozenset({"gpt_oss"}), quant_method="mxfp4")
FP8 = ModelFacts(id="deepseek-v3", model_types=frozenset({"deepseek_v3"}), quant_method="fp8")
GPTQ = ModelFacts(id="a-gptq", model_types=frozenset({"llama"}), quant_method="gptq")
PACKED = ModelFacts(id="a-bnb-4bit", model_types=frozenset({"llama"}), quant_method="bitsandbytes")
PALIGEMMA_2 = ModelFacts(id="paligemma2-3b", model_types=frozenset({"paligemma", "gemma2", "siglip_vision_model"}))
PALIGEMMA = ModelFacts(id="paligemma-3b", model_types=frozenset({"paligemma", "gemma", "siglip_vision_model"}))
EXAONE = ModelFacts(id="exaone-3-7.8b", model_types=frozenset({"exaone"}))
GPT_J = ModelFacts(id="gpt-j-6b", model_types=frozenset({"gptj"}))
SMOLVLM = ModelFacts(id="smolvlm2", model_types=frozenset({"smolvlm", "llama"}), model_type="smolvlm")
BLIP_2 = ModelFacts(id="blip2", model_types=frozenset({"blip-2", "opt"}), weights_dtype="float32")
GEMMA_3N = ModelFacts(id="gemma-3n", model_types=frozenset({"gemma3n_text"}))
DEEPSEEK_V4 = ModelFacts(id="deepseek-v4", model_types=frozenset({"deepseek_v4"}), indexer_linears=INDEXER_LINEARS)
DEEPSEEK_V32 = ModelFacts(
    id="deepseek-v3.2", model_types=frozenset({"deepseek_v32"}), indexer_linears=TOKEN_INDEXER_LINEARS
)
GRANITE_MOE = model_facts(packaged_files("granite-3.1-1b-a400m"))
COUNTED_EXPERTS = model_facts(packaged_files("mixtral-8x7b"))
BIG_BIRD = ModelFacts(
    id="bigbird", model_types=frozenset({"bigbird_pegasus"}), model_type="bigbird_pegasus", is_encoder_decoder=True
)
BART = ModelFacts(id="bart", model_types=frozenset({"bart"}), is_encoder_decoder=True)
PROPHETNET = ModelFacts(
    id="prophetnet", model_types=frozenset({"prophetnet"}), model_type="prophetnet", is_encoder_decoder=True
)
PHIMOE = ModelFacts(id="phi-3.5-moe", model_types=frozenset({"phimoe"}))
LLAMA_4 = ModelFacts(id="llama-4-scout", model_types=frozenset({"llama4", "llama4_text"}))
MIXTRAL = model_facts(packaged_files("mixtral-8x7b"))
QWEN3_OMNI = ModelFacts(id="qwen3-omni-30b-a3b", model_types=frozenset({"qwen3_omni_moe_thinker"}))
QWEN3_MOE = ModelFacts(id="qwen3-30b-a3b", model_types=frozenset({"qwen3_moe"}))
GLM_4_5V = ModelFacts(id="glm-4.5v", model_types=frozenset({"glm4v_moe", "glm4v_moe_text", "glm4v_moe_vision"}))
ERNIE_VL = ModelFacts(id="ernie-vl", model_types=frozenset({"ernie4_5_vl_moe", "ernie4_5_vl_moe_text"}))
MUSE = ModelFacts(id="muse-glimmer-30b", model_types=frozenset({"muse_glimmer"}))
XLNET = ModelFacts(id="xlnet", model_types=frozenset({"xlnet"}), attention=frozenset({"eager"}), can_checkpoint=False)
MAMBA = ModelFacts(id="mamba2-2.7b", model_types=frozenset({"mamba2"}))
ROBERTA = ModelFacts(id="roberta-base", model_types=frozenset({"roberta"}))
FALCON_MAMBA = ModelFacts(id="falcon-mamba-7b", model_types=frozenset({"falcon_mamba"}))
JAMBA = ModelFacts(id="jamba-v0.1", model_types=frozenset({"jamba"}))
LONGCAT = ModelFacts(id="longcat-flash", model_types=frozenset({"longcat_flash"}))
GROUPED = ModelFacts(id="a-llama", model_types=frozenset({"llama"}), num_heads=32, num_kv_heads=8)
DEEPSEEK = ModelFacts(id="deepseek-v2-lite", model_types=frozenset({"deepseek_v2"}))
GOT_OCR = ModelFacts(id="got-ocr2", model_types=frozenset({"got_ocr2", "qwen2"}))
QWEN = ModelFacts(id="qwen2-vl-2b", model_types=frozenset({"qwen2_vl"}), weights_dtype="bfloat16")

SDPA, FLASH, EAGER = (
    AttentionImplementation.SDPA,
    AttentionImplementation.FLASH_ATTENTION_2,
    AttentionImplementation.EAGER,
)
OF_TYPE = {
    name: ModelFacts(id=f"a-{name}", model_types=frozenset({name}), model_type=name)
    for name in ("apertus", "granite", "gpt2", "lfm2", "llama", "qwen2_vl", "qwen3_5", "qwen3_next")
}
LIGER, LIGER_LAYERS = Recipe(loss=LossKind.LIGER), Recipe(liger_layers=True)
PLAIN, ZERO_2, ZERO_3 = Recipe(), Recipe(zero_stage=2), Recipe(zero_stage=3)
COMPILED, IN_PARTS = Recipe(compiled_norms=True), Recipe(checkpoint_kind=CheckpointKind.PARTS)
FUSED = Recipe(method=Method.LORA, fsdp=True, fused_adapters=True)
WITH_FLASH = PLAIN.with_changes(attention=AttentionImplementation.FLASH_ATTENTION_2)
FSDP = Recipe(fsdp=True)
UNITS_OF_ADAPTERS = FSDP.with_changes(method=Method.LORA, shard_units=ShardUnits.ADAPTERS_TOO)
FLAT = FSDP.with_changes(flat_parameters=FlatParameters.ON_DEMAND, shard_units=ShardUnits.LAYERS)
FLAT_QLORA = FLAT.with_changes(method=Method.QLORA)
LORA = Recipe(method=Method.LORA)
WIDE_QLORA = Recipe(method=Method.QLORA, upcasts_frozen=True)
ZERO_3_LORA = Recipe(method=Method.LORA, zero_stage=3)
SHARED = Recipe(zero_stage=3, sequence_parallel=2)
TILED, KERNELS = Recipe(zero_stage=3, tiled_mlp=True), Recipe(zero_stage=3, linear_attention=LinearAttention.FLA)
LLAMA = ModelFacts(id="a-llama", model_types=frozenset({"llama"}), num_heads=32, num_kv_heads=8)
SLIDING = ModelFacts(id="slides", model_types=frozenset({"mistral"}), has_windows=True)
QWEN_3_5 = ModelFacts(id="qwen3.5", model_types=frozenset({"qwen3_5", "qwen3_5_text"}))
FP16_LORA = LORA.with_changes(precision=Precision.FP16)
CPU_OFFLOAD = {"offload_optimizer": Offload.CPU}
WEIGHTS_OFF = {"offload_params": Offload.CPU}
TORCHAO = [kind for kind in OptimizerKind if kind.is_torchao]
AS_MUON = {"optimizer": OptimizerKind.MUON}
MUON = ZERO_2.with_changes(**AS_MUON)


@dataclass(frozen=True)
class Case:
    recipe: Recipe
    cluster: Cluster | None = None
    model: ModelFacts | None = None
    more: dict = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return {problem.rule for problem in problems(self.recipe, cluster=self.cluster, model=self.model, **self.more)}


def for_task(kind: TaskKind, **settings: object) -> Recipe:
    return PLAIN.with_changes(task=TrainingTask(kind=kind, **settings))


DPO = for_task(TaskKind.DPO)
KTO = for_task(TaskKind.KTO)
REWARD = for_task(TaskKind.REWARD).with_changes(loss=LossKind.BRADLEY_TERRY)
OF_VERL = TrainingTask(kind=TaskKind.GRPO, trainer=TaskTrainer.VERL, generation=Generation.VLLM)
OF_VLM_R1 = TrainingTask(kind=TaskKind.GRPO, trainer=TaskTrainer.VLM_R1, steps_per_generation=1)
OF_R1_V = replace(OF_VLM_R1, trainer=TaskTrainer.R1_V)
VLM_R1 = ZERO_2.with_changes(loss=LossKind.ROWS, task=OF_VLM_R1)
ADAPTED_VLM_R1 = VLM_R1.with_changes(zero_stage=3, method=Method.LORA)
OF_UNSLOTH = TrainingTask(kind=TaskKind.GRPO, trainer=TaskTrainer.UNSLOTH)
UNSLOTH = Recipe(zero_stage=None, method=Method.LORA, loss=LossKind.UNSLOTH, task=OF_UNSLOTH)
VERL = Recipe(
    fsdp=True,
    batching=Batching.PADDING_FREE,
    attention=AttentionImplementation.FLASH_ATTENTION_2,
    loss=LossKind.VERL,
    task=OF_VERL,
)
LLAMA_FACTORYS = TrainingTask(kind=TaskKind.DPO, trainer=TaskTrainer.LLAMA_FACTORY)
OPENRLHFS = TrainingTask(kind=TaskKind.DPO, trainer=TaskTrainer.OPENRLHF, reference=Reference.COPY)
OF_OPENRLHF = ZERO_2.with_changes(task=OPENRLHFS, loss=LossKind.OPENRLHF)
OPENRLHFS_SCORES = ZERO_2.with_changes(
    task=TrainingTask(kind=TaskKind.REWARD, trainer=TaskTrainer.OPENRLHF), loss=LossKind.BRADLEY_TERRY
)
MS_SWIFTS = TrainingTask(kind=TaskKind.DPO, trainer=TaskTrainer.MS_SWIFT)
OF_MS_SWIFT = PLAIN.with_changes(task=MS_SWIFTS, loss=LossKind.SELECTIVE)
MS_SWIFTS_REWARDS = TrainingTask(kind=TaskKind.GRPO, trainer=TaskTrainer.MS_SWIFT)
MS_SWIFTS_ANSWERS = PLAIN.with_changes(task=MS_SWIFTS_REWARDS, loss=LossKind.TEMPERED)
OF_MOVED = replace(MS_SWIFTS_REWARDS, idle_offload=IdleOffload.ALL)
MOVED = MS_SWIFTS_ANSWERS.with_changes(task=OF_MOVED)
AXOLOTLS = TrainingTask(kind=TaskKind.DPO, trainer=TaskTrainer.AXOLOTL)
COMPENSATED = VERL.with_changes(
    task=replace(OF_VERL, trainer=TaskTrainer.EASYR1),
    flat_parameters=FlatParameters.BACKWARD_PRE,
    shard_units=ShardUnits.LAYERS,
    precision=Precision.BF16_PURE,
    optimizer=OptimizerKind.ANY_PRECISION_ADAMW,
    uses_autocast=False,
)
OF_LABELS = TrainingTask(kind=TaskKind.KTO, trainer=TaskTrainer.MS_SWIFT)
MS_SWIFTS_LABELS = PLAIN.with_changes(task=OF_LABELS, loss=LossKind.SELECTIVE)
AXOLOTLS_OF_LABELS = replace(OF_LABELS, trainer=TaskTrainer.AXOLOTL)
AXOLOTLS_LABELS = PLAIN.with_changes(task=AXOLOTLS_OF_LABELS, loss=LossKind.AXOLOTL, micro_batch=2)
OF_AXOLOTL = PLAIN.with_changes(task=AXOLOTLS, loss=LossKind.AXOLOTL)
AXOLOTLS_REWARDS = PLAIN.with_changes(
    task=TrainingTask(kind=TaskKind.GRPO, trainer=TaskTrainer.AXOLOTL, reference=Reference.ADAPTER_OFF),
    loss=LossKind.AXOLOTL_ANSWERS,
)
BEFORE_AXOLOTL = OF_AXOLOTL.with_changes(task=replace(AXOLOTLS, reference=Reference.PRECOMPUTED))
OF_LLAMA_FACTORY = PLAIN.with_changes(task=LLAMA_FACTORYS, loss=LossKind.LOG_SOFTMAX)
COPYING = for_task(TaskKind.DPO, reference=Reference.ADAPTER_COPY).with_changes(method=Method.LORA)
REENTRANT = for_task(TaskKind.DPO, reentrant_checkpoints=True).with_changes(
    method=Method.LORA, zero_stage=3, activation_checkpointing=True
)


def case(recipe: Recipe, where: Cluster | None = None, model: ModelFacts | None = None, **more: object) -> Case:
    return Case(recipe, where, model, more)


CASES: dict[str, tuple[list[Case], list[Case]]] = {
    "offloaded_optimizer_needs_a_stage": (
        [case(Recipe(zero_stage=stage, **CPU_OFFLOAD)) for stage in (None, 0)],
        [case(Recipe(zero_stage=stage, **CPU_OFFLOAD)) for stage in (1, 2, 3)],
    ),
    "offloaded_parameters_need_stage_3": (
        [case(Recipe(zero_stage=stage, offload_params=Offload.CPU)) for stage in (None, 0, 1, 2)],
        [case(Recipe(zero_stage=3, offload_params=Offload.CPU))],
    ),
    "nvme_needs_stage_3": (
        [case(Recipe(zero_stage=stage, offload_optimizer=Offload.NVME)) for stage in (1, 2)],
        [case(Recipe(zero_stage=3, offload_optimizer=Offload.NVME)), case(Recipe(zero_stage=2, **CPU_OFFLOAD))],
    ),
    "offloaded_optimizer_is_adamw": (
        [
            case(ZERO_2.with_changes(optimizer=kind, **CPU_OFFLOAD))
            for kind in OptimizerKind
            if kind not in (OptimizerKind.ADAMW, OptimizerKind.MUON)
        ],
        [case(ZERO_2.with_changes(**CPU_OFFLOAD)), case(ZERO_2.with_changes(optimizer=OptimizerKind.SGD))],
    ),
    "pure_bf16_is_plain_or_sharded": (
        [case(Recipe(zero_stage=0, precision=Precision.BF16_PURE))],
        [case(Recipe(zero_stage=stage, precision=Precision.BF16_PURE)) for stage in (None, 1, 2, 3)]
        + [case(ZERO_2.with_changes(precision=Precision.BF16_PURE, **CPU_OFFLOAD))],
    ),
    "packed_weights_are_not_sharded": (
        [case(ZERO_3.with_changes(method=Method.QLORA)), case(ZERO_3.with_changes(method=Method.LORA_8BIT))],
        [case(ZERO_2.with_changes(method=Method.QLORA)), case(ZERO_3.with_changes(method=Method.LORA))],
    ),
    "upcast_weights_stay_so": (
        [
            case(ZERO_2.with_changes(method=Method.QLORA, upcasts_frozen=True)),
            case(PLAIN.with_changes(upcasts_frozen=True)),
        ],
        [case(WIDE_QLORA), case(ZERO_2)],
    ),
    "scales_are_those_of_four_bit_weights": (
        [case(ZERO_2.with_changes(use_double_quant=False))],
        [case(ZERO_2.with_changes(method=Method.QLORA, use_double_quant=False)), case(ZERO_2)],
    ),
    "casts_are_kept_by_autocast": (
        [case(recipe.with_changes(caches_casts=True), given={"caches_casts"}) for recipe in (ZERO_2, ZERO_3, FSDP)],
        [
            case(PLAIN.with_changes(caches_casts=True), given={"caches_casts"}),
            case(ZERO_2, given={"caches_casts"}),
            case(ZERO_2.with_changes(caches_casts=True)),
        ],
    ),
    "two_forwards_have_no_order_of_modules": (
        [
            case(ZERO_3.with_changes(evaluation=Evaluation(batch=2, kept=kept), loss=LossKind.TRL))
            for kept in (Kept.LOGITS, Kept.PREDICTIONS)
        ],
        [
            case(ZERO_3.with_changes(evaluation=Evaluation(batch=2), loss=LossKind.TRL)),
            case(ZERO_2.with_changes(evaluation=Evaluation(batch=2, kept=Kept.LOGITS), loss=LossKind.TRL)),
            case(ZERO_3.with_changes(evaluation=Evaluation(batch=2, kept=Kept.LOGITS), loss=LossKind.MODEL)),
        ],
    ),
    "allgather_bucket_is_even": (
        [case(ZERO_2.with_changes(zero=ZeroSettings(allgather_bucket_size=7)))],
        [
            case(ZERO_2.with_changes(zero=ZeroSettings(allgather_bucket_size=14))),
            case(ZERO_3.with_changes(zero=ZeroSettings(allgather_bucket_size=7))),
        ],
    ),
    "hpz_needs_stage_3": (
        [case(Recipe(zero_stage=stage, hpz=2)) for stage in (None, 0, 1, 2)],
        [case(ZERO_3.with_changes(hpz=2)), case(ZERO_2)],
    ),
    "hpz_divides_the_gpus": (
        [case(ZERO_3.with_changes(hpz=3), cluster(4)), case(ZERO_3.with_changes(hpz=8), cluster(2, num_nodes=2))],
        [
            case(ZERO_3.with_changes(hpz=2), cluster(2, num_nodes=3)),
            case(ZERO_3.with_changes(hpz=4), cluster(4)),
            case(ZERO_3.with_changes(hpz=3)),
        ],
    ),
    "hpz_weights_stay_on_the_gpu": (
        [case(ZERO_3.with_changes(hpz=2, offload_params=device)) for device in (Offload.CPU, Offload.NVME)],
        [case(ZERO_3.with_changes(hpz=2, **CPU_OFFLOAD)), case(ZERO_3.with_changes(offload_params=Offload.CPU))],
    ),
    "adafactor_saves_nothing_when_sharded": (
        [case(Recipe(zero_stage=stage, optimizer=OptimizerKind.ADAFACTOR)) for stage in (1, 2, 3)],
        [case(Recipe(zero_stage=stage, optimizer=OptimizerKind.ADAFACTOR)) for stage in (None, 0)] + [case(ZERO_2)],
    ),
    "sharding_needs_several_gpus": (
        [case(ZERO_3, cluster(1)), case(ZERO_2, cluster(1))],
        [
            case(ZERO_3, cluster(2)),
            case(ZERO_3.with_changes(offload_params=Offload.CPU), cluster(1)),
            case(PLAIN, cluster(1)),
        ],
    ),
    "sharding_is_torchs_or_deepspeeds": (
        [case(FSDP.with_changes(zero_stage=stage)) for stage in (0, 1, 2, 3)],
        [case(FSDP), case(ZERO_3)],
    ),
    "switches_of_fsdp_need_it": (
        [
            case(PLAIN.with_changes(reshard_after_forward=False)),
            case(ZERO_3.with_changes(sync_each_batch=False)),
            case(PLAIN.with_changes(reduces_in_float32=True)),
            case(ZERO_3.with_changes(dp_shard_size=4)),
        ],
        [case(FSDP.with_changes(reshard_after_forward=False, sync_each_batch=False)), case(PLAIN)],
    ),
    "fsdp_offloads_all_or_nothing": (
        [case(FSDP.with_changes(offload_params=Offload.CPU)), case(FSDP.with_changes(offload_optimizer=Offload.NVME))],
        [case(FSDP.with_changes(offload_params=Offload.CPU, offload_optimizer=Offload.CPU)), case(FSDP)],
    ),
    "fsdp_updates_with_torchs_optimizers": (
        [case(FSDP.with_changes(optimizer=OptimizerKind.ADAMW_8BIT))],
        [case(FSDP.with_changes(optimizer=OptimizerKind.SGD)), case(FSDP)],
    ),
    "fsdp_has_no_fp16": (
        [case(FSDP.with_changes(precision=Precision.FP16))],
        [case(FSDP.with_changes(precision=Precision.BF16_PURE)), case(FSDP)],
    ),
    "fsdp_shards_no_bias_twice": (
        [case(FSDP, model=ROBERTA), case(FSDP.with_changes(method=Method.LORA), model=ROBERTA)],
        [case(FSDP, model=QWEN), case(PLAIN, model=ROBERTA)],
    ),
    "fsdp_gathers_matrices_of_adapters_one_by_one": (
        [
            case(UNITS_OF_ADAPTERS.with_changes(method=Method.FULL)),
            case(UNITS_OF_ADAPTERS.with_changes(use_dora=True)),
            case(UNITS_OF_ADAPTERS.with_changes(train_embeddings=True)),
        ],
        [case(UNITS_OF_ADAPTERS), case(FSDP.with_changes(method=Method.LORA, use_dora=True))],
    ),
    "fsdp_shards_no_eight_bit_weights": (
        [case(FSDP.with_changes(method=Method.LORA_8BIT))],
        [case(PLAIN.with_changes(method=Method.LORA_8BIT)), case(FSDP.with_changes(method=Method.LORA))],
    ),
    "fsdp_decides_types": (
        [
            case(FSDP.with_changes(weight_dtype=WeightDtype.FLOAT32)),
            case(FSDP.with_changes(method=Method.LORA, weight_dtype=WeightDtype.MODEL)),
            case(FSDP.with_changes(method=Method.LORA, adapter_dtype=AdapterDtype.FLOAT32)),
        ],
        [
            case(FSDP.with_changes(method=Method.LORA, weight_dtype=WeightDtype.FLOAT32)),
            case(FSDP.with_changes(method=Method.QLORA, adapter_dtype=AdapterDtype.MODEL)),
            case(PLAIN.with_changes(weight_dtype=WeightDtype.FLOAT32)),
        ],
    ),
    "copies_of_the_model_are_whole": (
        [case(FSDP.with_changes(dp_shard_size=3), cluster(4)), case(FSDP.with_changes(dp_shard_size=8), cluster(4))],
        [
            case(FSDP.with_changes(dp_shard_size=4), cluster(4, num_nodes=2)),
            case(FSDP.with_changes(dp_shard_size=4), cluster(4)),
            case(FSDP.with_changes(dp_shard_size=3)),
            case(FLAT.with_changes(dp_shard_size=4), cluster(4, num_nodes=2)),
        ],
    ),
    "fsdp_reduces_wider_than_16_bit": (
        [case(FSDP.with_changes(precision=Precision.FP32, reduces_in_float32=True))],
        [
            case(FSDP.with_changes(reduces_in_float32=True)),
            case(FSDP.with_changes(precision=Precision.BF16_PURE, reduces_in_float32=True)),
            case(FSDP.with_changes(precision=Precision.FP32)),
            case(COMPENSATED.with_changes(reduces_in_float32=True)),
        ],
    ),
    "fsdp_needs_several_gpus": (
        [case(FSDP, cluster(1))],
        [case(FSDP, cluster(2)), case(PLAIN, cluster(1))],
    ),
    "views_of_flat_parameters_need_them": (
        [case(FSDP.with_changes(uses_orig_params=False)), case(FSDP.with_changes(prefetches_forward=True))],
        [case(FLAT.with_changes(uses_orig_params=False, prefetches_forward=True)), case(FSDP)],
    ),
    "flat_units_are_layers": (
        [case(FLAT.with_changes(shard_units=ShardUnits.ENDS_TOO))],
        [case(FLAT), case(FLAT.with_changes(shard_units=ShardUnits.LANGUAGE_LAYERS)), case(FSDP)],
    ),
    "flat_adapters_are_factors_of_linear_layers": (
        [
            case(FLAT.with_changes(method=Method.LORA_8BIT)),
            case(FLAT.with_changes(method=Method.LORA, use_dora=True)),
            case(FLAT.with_changes(method=Method.LORA, train_embeddings=True)),
        ],
        [case(FLAT), case(FLAT.with_changes(method=Method.LORA, loraplus_lr_ratio=16.0)), case(FLAT_QLORA)],
    ),
    "flat_adapters_are_called": (
        [
            case(FLAT.with_changes(method=Method.LORA), model=MIXTRAL),
            case(FLAT.with_changes(method=Method.LORA, lora_targets="regex:.*experts.w2"), model=MIXTRAL),
        ],
        [
            case(FLAT.with_changes(method=Method.LORA, lora_targets="attention"), model=MIXTRAL),
            case(FLAT.with_changes(method=Method.LORA), model=model_facts(packaged_files("llama-3.2-1b"))),
            case(FLAT, model=MIXTRAL),
            case(FSDP.with_changes(method=Method.LORA), model=MIXTRAL),
        ],
    ),
    "flat_packed_weights_have_the_type_of_the_others": (
        [
            case(FLAT_QLORA.with_changes(shards_packed=False)),
            case(FLAT_QLORA.with_changes(weight_dtype=WeightDtype.FLOAT32)),
            case(FLAT_QLORA.with_changes(upcasts_frozen=True)),
        ],
        [case(FLAT_QLORA), case(FSDP.with_changes(method=Method.QLORA, shards_packed=False))],
    ),
    "flat_packed_weights_are_resharded_or_alone": (
        [case(FLAT_QLORA.with_changes(reshard_after_forward=False))],
        [
            case(FLAT_QLORA.with_changes(reshard_after_forward=False, uses_orig_params=False)),
            case(FLAT.with_changes(method=Method.LORA, reshard_after_forward=False)),
        ],
    ),
    "flat_parameters_need_several_ranks": (
        [case(FLAT, cluster(1))],
        [case(FLAT, cluster(2)), case(FSDP, cluster(1))],
    ),
    "flat_gradients_are_reduced_as_they_are": (
        [case(FLAT.with_changes(reduces_in_float32=True))],
        [
            case(FLAT),
            case(FSDP.with_changes(reduces_in_float32=True)),
            case(VERL.with_changes(flat_parameters=FlatParameters.BACKWARD_PRE, reduces_in_float32=True)),
        ],
    ),
    "flat_gradients_on_the_host_are_reduced_once": (
        [case(FLAT.with_changes(**CPU_OFFLOAD, **WEIGHTS_OFF, grad_accum=2))],
        [
            case(FLAT.with_changes(**CPU_OFFLOAD, **WEIGHTS_OFF, grad_accum=2, sync_each_batch=False)),
            case(FLAT.with_changes(**CPU_OFFLOAD, **WEIGHTS_OFF)),
        ],
    ),
    "flat_shards_on_the_host_are_pinned": (
        [case(FLAT.with_changes(**CPU_OFFLOAD, **WEIGHTS_OFF), cluster(2, **CPU))],
        [
            case(FLAT.with_changes(**CPU_OFFLOAD, **WEIGHTS_OFF), cluster(2)),
            case(FSDP.with_changes(**CPU_OFFLOAD, **WEIGHTS_OFF), cluster(2, **CPU)),
        ],
    ),
    "flat_parameters_are_updated_on_the_gpu": (
        [case(FLAT.with_changes(optimizer=OptimizerKind.PAGED_ADAMW))],
        [case(FLAT.with_changes(optimizer=kind)) for kind in (OptimizerKind.SGD, OptimizerKind.ADAMW_8BIT)],
    ),
    "muon_needs_a_stage": (
        [case(MUON.with_changes(zero_stage=stage)) for stage in (None, 0)] + [case(FSDP.with_changes(**AS_MUON))],
        [case(MUON.with_changes(zero_stage=stage)) for stage in (1, 2, 3)] + [case(PLAIN)],
    ),
    "muon_stays_on_the_gpu": (
        [case(MUON.with_changes(**CPU_OFFLOAD))],
        [case(MUON), case(ZERO_2.with_changes(**CPU_OFFLOAD)), case(ZERO_3.with_changes(**AS_MUON, **WEIGHTS_OFF))],
    ),
    "muon_updates_are_not_clipped": (
        [case(MUON.with_changes(gradient_clipping=clipping)) for clipping in (0.5, 1.0)],
        [case(MUON.with_changes(gradient_clipping=0.0)), case(ZERO_2.with_changes(gradient_clipping=1.0))],
    ),
    "muon_shares_no_samples": (
        [case(SHARED.with_changes(**AS_MUON))],
        [case(SHARED), case(MUON)],
    ),
    "muon_has_its_own_rates": (
        [case(MUON.with_changes(method=Method.LORA, loraplus_lr_ratio=16.0))],
        [case(MUON.with_changes(method=Method.LORA)), case(LORA.with_changes(loraplus_lr_ratio=16.0))],
    ),
    "muon_trains_samples_alone": (
        [case(DPO.with_changes(zero_stage=2, **AS_MUON))],
        [case(DPO.with_changes(zero_stage=2)), case(MUON)],
    ),
    "torchao_goes_on_from_checkpoints": (
        [case(Recipe(zero_stage=0, optimizer=kind)) for kind in TORCHAO],
        [case(Recipe(zero_stage=stage, optimizer=kind)) for stage in (None, 2) for kind in TORCHAO],
    ),
    "torchao_needs_volta": (
        [case(PLAIN.with_changes(optimizer=kind), cluster(1, **GTX_1080)) for kind in TORCHAO],
        [case(PLAIN.with_changes(optimizer=TORCHAO[0]), cluster(1)), case(PLAIN, cluster(1, **GTX_1080))],
    ),
    "slices_are_rarely_whole_blocks": (
        [case(Recipe(zero_stage=stage, optimizer=kind)) for stage in (1, 2, 3) for kind in TORCHAO[1:]],
        [case(PLAIN.with_changes(optimizer=TORCHAO[1])), case(ZERO_2.with_changes(optimizer=TORCHAO[0]))],
    ),
    "parts_of_slices_are_whole_blocks": (
        [case(Recipe(zero_stage=stage, optimizer=kind)) for stage in (1, 2) for kind in TORCHAO[1:]],
        [case(Recipe(zero_stage=3, optimizer=TORCHAO[1])), case(ZERO_2.with_changes(optimizer=TORCHAO[0]))],
    ),
    "bf16_is_emulated_before_ampere": (
        [case(PLAIN.with_changes(precision=p), cluster(1, **T4)) for p in (Precision.BF16, Precision.BF16_PURE)],
        [
            case(PLAIN, cluster(1)),
            case(PLAIN.with_changes(precision=Precision.FP16), cluster(1, **T4)),
            case(PLAIN, cluster(1, **MI300X)),
            case(PLAIN),
        ],
    ),
    "fp16_under_deepspeed_needs_volta": (
        [case(ZERO_2.with_changes(precision=Precision.FP16), cluster(2, **GTX_1080))],
        [
            case(ZERO_2.with_changes(precision=Precision.FP16), cluster(2, **T4)),
            case(PLAIN.with_changes(precision=Precision.FP16), cluster(1, **GTX_1080)),
            case(ZERO_2.with_changes(precision=Precision.FP32), cluster(2, **GTX_1080)),
        ],
    ),
    "fp16_on_cpu_needs_new_instructions": (
        [case(ZERO_2.with_changes(precision=Precision.FP16), cluster(2, **CPU))],
        [case(ZERO_2, cluster(2, **CPU)), case(ZERO_2.with_changes(precision=Precision.FP16), cluster(2))],
    ),
    "flash_attention_needs_ampere": (
        [case(PLAIN.with_changes(attention=FLASH), cluster(1, **kind)) for kind in (T4, CPU)],
        [case(PLAIN.with_changes(attention=FLASH), cluster(1)), case(PLAIN, cluster(1, **T4))],
    ),
    "flash_attention_is_unsure_elsewhere": (
        [case(PLAIN.with_changes(attention=FLASH), cluster(1, **MI300X))],
        [case(PLAIN.with_changes(attention=FLASH), cluster(1)), case(PLAIN, cluster(1, **MI300X))],
    ),
    "flash_attention_needs_16_bit": (
        [case(PLAIN.with_changes(attention=FLASH, precision=Precision.FP32))],
        [case(PLAIN.with_changes(attention=FLASH)), case(PLAIN.with_changes(precision=Precision.FP32))],
    ),
    "bitsandbytes_needs_pascal": (
        [
            case(PLAIN.with_changes(method=Method.QLORA, precision=Precision.FP16), cluster(1, **M60)),
            case(PLAIN.with_changes(optimizer=OptimizerKind.ADAMW_8BIT), cluster(1, **M60)),
        ],
        [
            case(PLAIN.with_changes(method=Method.QLORA), cluster(1, **GTX_1080)),
            case(PLAIN.with_changes(method=Method.QLORA), cluster(1, **CPU)),
            case(PLAIN, cluster(1, **M60)),
        ],
    ),
    "int8_products_need_turing": (
        [case(PLAIN.with_changes(method=Method.LORA_8BIT), cluster(1, **GTX_1080))],
        [
            case(PLAIN.with_changes(method=Method.LORA_8BIT, precision=Precision.FP16), cluster(1, **T4)),
            case(PLAIN.with_changes(method=Method.QLORA), cluster(1, **GTX_1080)),
        ],
    ),
    "int8_products_are_planned_for_gpus": (
        [case(PLAIN.with_changes(method=Method.LORA_8BIT), cluster(1, **CPU))],
        [
            case(PLAIN.with_changes(method=Method.LORA_8BIT)),
            case(PLAIN.with_changes(method=Method.QLORA), cluster(1, **CPU)),
        ],
    ),
    "dora_loses_the_scales_of_8_bit_weights_on_a_cpu": (
        [case(PLAIN.with_changes(method=Method.LORA_8BIT, use_dora=True), cluster(1, **CPU))],
        [
            case(PLAIN.with_changes(method=Method.LORA_8BIT, use_dora=True), cluster(1)),
            case(PLAIN.with_changes(method=Method.LORA_8BIT), cluster(1, **CPU)),
            case(PLAIN.with_changes(method=Method.QLORA, use_dora=True), cluster(1, **CPU)),
        ],
    ),
    "paging_needs_a_gpu": (
        [case(PLAIN.with_changes(optimizer=OptimizerKind.PAGED_ADAMW_8BIT), cluster(1, **CPU))],
        [
            case(PLAIN.with_changes(optimizer=OptimizerKind.PAGED_ADAMW_8BIT), cluster(1)),
            case(PLAIN.with_changes(optimizer=OptimizerKind.ADAMW_8BIT), cluster(1, **CPU)),
        ],
    ),
    "activations_leave_a_gpu": (
        [case(PLAIN.with_changes(offload_activations=True), cluster(1, **CPU))],
        [case(PLAIN.with_changes(offload_activations=True), cluster(1)), case(PLAIN, cluster(1, **CPU))],
    ),
    "both_stacks_are_planned_so": (
        [
            case(PLAIN.with_changes(attention=FLASH), model=BART),
            case(PLAIN.with_changes(loss=LossKind.LIGER), model=BART),
            case(PLAIN, model=PROPHETNET),
            case(PLAIN.with_changes(loss=LossKind.FULL), model=PROPHETNET),
            case(for_task(TaskKind.DPO), model=BART),
            case(PLAIN.with_changes(train_embeddings=True, method=Method.LORA), model=BART),
            case(PLAIN.with_changes(evaluation=Evaluation(batch=1, new_tokens=8)), model=BART),
            case(PLAIN, model=BIG_BIRD),
        ],
        [
            case(PLAIN, model=BART),
            case(PLAIN.with_changes(loss=LossKind.MODEL), model=BART),
            case(PLAIN.with_changes(loss=LossKind.MODEL), model=PROPHETNET),
            case(PLAIN.with_changes(precision=Precision.BF16_PURE), model=BIG_BIRD),
            case(PLAIN.with_changes(attention=EAGER, loss=LossKind.FULL), model=BART),
            case(PLAIN.with_changes(attention=FLASH), model=QWEN),
        ],
    ),
    "attention_is_one_the_model_has": (
        [
            case(PLAIN, model=GEMMA_2),
            case(PLAIN, model=PALIGEMMA_2),
            case(PLAIN.with_changes(attention=FLASH), model=BLIP_2),
            case(PLAIN.with_changes(transformers_version=TransformersVersion.V5_23), model=GPT_J),
            case(WITH_FLASH.with_changes(transformers_version=TransformersVersion.V5_24), model=PALIGEMMA),
        ],
        [
            case(PLAIN.with_changes(attention=EAGER), model=GEMMA_2),
            case(PLAIN.with_changes(transformers_version=TransformersVersion.V5_24), model=GPT_J),
            case(WITH_FLASH.with_changes(transformers_version=TransformersVersion.V5_23), model=PALIGEMMA),
            case(PLAIN.with_changes(transformers_version=TransformersVersion.V5_24), model=PALIGEMMA),
            case(PLAIN.with_changes(attention=FLASH), model=GEMMA_2),
            case(PLAIN, model=BLIP_2),
            case(PLAIN.with_changes(attention=FLASH), model=QWEN),
        ],
    ),
    "grouped_heads_have_no_fused_kernel_before_ampere": (
        [
            case(PLAIN, cluster(1, **T4), model=GROUPED),
            case(LORA.with_changes(zero_stage=2), cluster(2, **GTX_1080), model=GROUPED),
        ],
        [
            case(PLAIN, cluster(1), model=GROUPED),
            case(PLAIN, cluster(1, **CPU), model=GROUPED),
            case(PLAIN.with_changes(attention=EAGER), cluster(1, **T4), model=GROUPED),
            case(PLAIN.with_changes(precision=Precision.FP32), cluster(1, **T4), model=GROUPED),
            case(PLAIN, cluster(1, **T4), model=GROUPED._replace(num_kv_heads=32)),
            case(PLAIN, cluster(1, **T4), model=GROUPED._replace(has_windows=True)),
            case(PLAIN, cluster(1, **T4), model=GROUPED._replace(model_types=PALIGEMMA_2.model_types)),
        ],
    ),
    "layers_run_again_where_the_model_can": (
        [case(PLAIN, model=XLNET), case(LORA.with_changes(activation_checkpointing=True), model=XLNET)],
        [case(PLAIN.with_changes(activation_checkpointing=False), model=XLNET), case(PLAIN, model=QWEN)],
    ),
    "inputs_of_eight_bit_products_are_flattened": (
        [case(PLAIN.with_changes(method=Method.LORA_8BIT), model=facts) for facts in (DEEPSEEK, GOT_OCR)],
        [
            *(case(PLAIN.with_changes(method=Method.QLORA), model=facts) for facts in (DEEPSEEK, GOT_OCR)),
            case(PLAIN.with_changes(method=Method.LORA_8BIT), model=GEMMA_2),
        ],
    ),
    "weights_of_eight_bits_have_one_linear": (
        [case(PLAIN.with_changes(method=Method.LORA_8BIT), model=ZAMBA_2)],
        [
            case(PLAIN.with_changes(method=Method.QLORA), model=ZAMBA_2),
            case(PLAIN.with_changes(method=Method.LORA_8BIT), model=GEMMA_2),
        ],
    ),
    "packed_checkpoints_are_not_quantised_again": (
        [case(PLAIN.with_changes(method=Method.QLORA), model=model) for model in (GPT_OSS, FP8)],
        [
            case(PLAIN.with_changes(method=Method.LORA), model=GPT_OSS),
            case(PLAIN.with_changes(method=Method.QLORA), model=GEMMA_2),
        ],
    ),
    "packed_checkpoints_are_known": (
        [case(PLAIN, model=GPTQ), case(PLAIN.with_changes(method=Method.LORA), model=PACKED)],
        [
            case(PLAIN, model=FP8),
            case(PLAIN, model=GPT_OSS),
            case(PLAIN.with_changes(method=Method.QLORA), model=PACKED),
            case(PLAIN, model=GEMMA_2),
        ],
    ),
    "positions_of_three_axes_are_taken_for_a_packed_row": (
        [case(PLAIN.with_changes(attention=FLASH, micro_batch=1), model=model) for model in (ERNIE_VL, GLM_4_5V)],
        [
            case(PLAIN.with_changes(attention=FLASH, micro_batch=2), model=GLM_4_5V),
            case(PLAIN.with_changes(micro_batch=1), model=GLM_4_5V),
            case(PLAIN.with_changes(attention=FLASH, micro_batch=1), model=QWEN),
        ],
    ),
    "pixels_are_not_cast_to_packed_bytes": (
        [
            case(PLAIN.with_changes(method=method), model=model)
            for method in (Method.QLORA, Method.LORA_8BIT)
            for model in (ERNIE_VL, MUSE)
        ],
        [case(PLAIN, model=MUSE), case(PLAIN.with_changes(method=Method.QLORA), model=QWEN)],
    ),
    "fp16_may_overflow": (
        [case(PLAIN.with_changes(precision=Precision.FP16), model=QWEN)],
        [case(PLAIN, model=QWEN), case(PLAIN.with_changes(precision=Precision.FP16), model=BLIP_2)],
    ),
    "fp16_gradients_cannot_be_unscaled": (
        [
            case(PLAIN.with_changes(precision=Precision.FP16, weight_dtype=WeightDtype.MODEL)),
            case(FP16_LORA.with_changes(adapter_dtype=AdapterDtype.MODEL)),
            case(FP16_LORA.with_changes(adapter_dtype=AdapterDtype.FLOAT32, train_embeddings=True)),
            case(FP16_LORA.with_changes(adapter_dtype=AdapterDtype.FLOAT32, full_vision=True)),
        ],
        [
            case(FP16_LORA.with_changes(full_vision=True)),
            case(FP16_LORA.with_changes(train_embeddings=True)),
            case(FP16_LORA.with_changes(adapter_dtype=AdapterDtype.FLOAT32)),
            case(FP16_LORA.with_changes(adapter_dtype=AdapterDtype.MODEL, zero_stage=2)),
            case(LORA.with_changes(adapter_dtype=AdapterDtype.MODEL)),
        ],
    ),
    "weight_types_are_of_autocast": (
        [
            case(PLAIN.with_changes(zero_stage=2, weight_dtype=WeightDtype.MODEL)),
            case(PLAIN.with_changes(zero_stage=2, precision=Precision.FP32, weight_dtype=WeightDtype.FLOAT32)),
            case(PLAIN.with_changes(precision=Precision.FP32, weight_dtype=WeightDtype.MODEL)),
            case(LORA.with_changes(uses_autocast=False, weight_dtype=WeightDtype.FLOAT32)),
            case(LORA.with_changes(weight_dtype=WeightDtype.MODEL)),
            case(WIDE_QLORA.with_changes(zero_stage=2, upcasts_frozen=False, weight_dtype=WeightDtype.FLOAT32)),
        ],
        [
            case(PLAIN.with_changes(weight_dtype=WeightDtype.MODEL)),
            case(LORA.with_changes(weight_dtype=WeightDtype.FLOAT32)),
            case(PLAIN.with_changes(zero_stage=2, weight_dtype=WeightDtype.FLOAT32)),
            case(PLAIN.with_changes(zero_stage=2)),
        ],
    ),
    "without_autocast_all_but_adapters_has_one_type": (
        [
            case(PLAIN.with_changes(uses_autocast=False)),
            case(WIDE_QLORA.with_changes(uses_autocast=False, train_embeddings=True)),
        ],
        [
            case(LORA.with_changes(uses_autocast=False)),
            case(WIDE_QLORA.with_changes(uses_autocast=False)),
            case(WIDE_QLORA.with_changes(train_embeddings=True)),
            case(ZERO_2.with_changes(uses_autocast=False)),
            case(PLAIN.with_changes(uses_autocast=False, precision=Precision.FP32)),
        ],
    ),
    "kept_logits_are_made": (
        [case(ZERO_2.with_changes(evaluation=Evaluation(batch=2, kept=Kept.LOGITS)))],
        [
            case(ZERO_2.with_changes(evaluation=Evaluation(batch=2))),
            case(ZERO_2.with_changes(evaluation=Evaluation(batch=2, kept=Kept.LOGITS), loss=LossKind.MODEL)),
        ],
    ),
    "batch_is_the_product": (
        [case(ZERO_2.with_changes(micro_batch=3, grad_accum=5), cluster(7), global_batch=3 * 5 * 7 + 1)],
        [
            case(ZERO_2.with_changes(micro_batch=3, grad_accum=5), cluster(7), global_batch=3 * 5 * 7),
            case(ZERO_2.with_changes(micro_batch=3), cluster(7)),
        ],
    ),
    "transformers_knows_the_model": (
        [case(PLAIN.with_changes(transformers_version=TransformersVersion.V5_23), model=EXAONE)],
        [
            case(PLAIN.with_changes(transformers_version=TransformersVersion.V5_24), model=EXAONE),
            case(PLAIN.with_changes(transformers_version=TransformersVersion.V5_23), model=LLAMA_4),
        ],
    ),
    "transformers_can_run_llama_4": (
        [case(PLAIN.with_changes(transformers_version=TransformersVersion.V5_24), model=LLAMA_4)],
        [
            case(PLAIN.with_changes(transformers_version=TransformersVersion.V5_23), model=LLAMA_4),
            case(PLAIN.with_changes(transformers_version=TransformersVersion.V5_24), model=SMOLVLM),
        ],
    ),
    "smolvlm_has_its_tower_in_the_type_of_its_embeddings": (
        [
            case(PLAIN.with_changes(train_vision=False), model=SMOLVLM),
            case(PLAIN.with_changes(train_language=False), model=SMOLVLM),
            case(PLAIN.with_changes(method=Method.LORA, train_embeddings=True), model=SMOLVLM),
            case(PLAIN.with_changes(method=Method.LORA, full_vision=True), model=SMOLVLM),
        ],
        [
            case(PLAIN, model=SMOLVLM),
            case(PLAIN.with_changes(method=Method.LORA, full_projector=True), model=SMOLVLM),
            case(PLAIN.with_changes(method=Method.LORA), model=SMOLVLM),
            case(PLAIN.with_changes(train_vision=False, zero_stage=1), model=SMOLVLM),
            case(PLAIN.with_changes(train_vision=False, weight_dtype=WeightDtype.MODEL), model=SMOLVLM),
            case(PLAIN.with_changes(train_vision=False), model=PALIGEMMA_2),
        ],
    ),
    "chunked_loss_has_no_adapter_on_the_head": (
        [
            case(PLAIN.with_changes(method=Method.LORA, lora_targets="q_proj, model.lm_head")),
            case(PLAIN.with_changes(method=Method.LORA, lora_targets="lm_head", loss=LossKind.LIGER)),
        ],
        [
            case(PLAIN.with_changes(method=Method.LORA, lora_targets="q_proj,lm_head", loss=LossKind.FULL)),
            case(PLAIN.with_changes(method=Method.LORA, lora_targets="lm_head_norm")),
            case(PLAIN.with_changes(method=Method.LORA)),
            case(PLAIN.with_changes(method=Method.LORA, train_embeddings=True)),
        ],
    ),
    "mamba_has_no_adapter_on_its_output": (
        [case(LORA, model=MAMBA), case(LORA.with_changes(lora_targets="in_proj, mixer.out_proj"), model=MAMBA)],
        [
            case(LORA, model=QWEN),
            case(PLAIN, model=MAMBA),
            case(LORA.with_changes(lora_targets="in_proj"), model=MAMBA),
            case(LORA.with_changes(lora_exclude="mixer.out_proj"), model=MAMBA),
            case(LORA.with_changes(lora_exclude=default_lora_exclude(MAMBA)), model=MAMBA),
        ],
    ),
    "a_router_of_several_results_stays_as_it_is": (
        [
            case(LORA, model=LLAMA_4),
            case(LORA, model=PHIMOE),
            case(LORA.with_changes(lora_exclude="lm_head"), model=LLAMA_4),
            case(LORA.with_changes(method=Method.QLORA), model=LLAMA_4),
        ],
        [
            case(LORA.with_changes(method=Method.QLORA, lora_exclude="router"), model=LLAMA_4),
            case(LORA.with_changes(lora_exclude="feed_forward.router, lm_head"), model=LLAMA_4),
            case(LORA.with_changes(lora_targets="attention"), model=LLAMA_4),
            case(PLAIN, model=LLAMA_4),
            case(LORA, model=LLAMA),
        ],
    ),
    "a_layer_that_is_not_called_has_no_adapter": (
        [
            case(LORA, model=GEMMA_3N),
            case(LORA.with_changes(lora_exclude="lm_head"), model=GEMMA_3N),
            case(LORA.with_changes(method=Method.QLORA), model=GEMMA_3N),
            case(LORA.with_changes(lora_exclude="out_proj"), model=FALCON_MAMBA),
            case(LORA.with_changes(lora_targets="x_proj,mamba.dt_proj"), model=JAMBA),
            case(LORA, model=LONGCAT),
        ],
        [
            case(LORA.with_changes(lora_exclude=default_lora_exclude(FALCON_MAMBA)), model=FALCON_MAMBA),
            case(LORA.with_changes(lora_exclude=default_lora_exclude(JAMBA)), model=JAMBA),
            case(LORA.with_changes(lora_targets="x_proj"), model=JAMBA),
            case(LORA.with_changes(lora_exclude=default_lora_exclude(LONGCAT)), model=LONGCAT),
            case(LORA.with_changes(lora_exclude="altup.correction_coefs"), model=GEMMA_3N),
            case(LORA.with_changes(lora_targets="attention"), model=GEMMA_3N),
            case(PLAIN, model=GEMMA_3N),
            case(LORA, model=LLAMA),
        ],
    ),
    "a_projection_in_groups_has_no_adapter": (
        [
            case(LORA, model=DEEPSEEK_V4),
            case(LORA.with_changes(lora_targets="q_a_proj,o_a_proj"), model=DEEPSEEK_V4),
            case(LORA.with_changes(method=Method.QLORA, lora_exclude="indexer.kv_proj"), model=DEEPSEEK_V4),
        ],
        [
            case(LORA.with_changes(lora_exclude="self_attn.o_a_proj"), model=DEEPSEEK_V4),
            case(LORA.with_changes(lora_targets="attention"), model=DEEPSEEK_V4),
            case(LORA.with_changes(lora_targets="q_a_proj"), model=DEEPSEEK_V4),
            case(PLAIN, model=DEEPSEEK_V4),
            case(LORA, model=LLAMA),
        ],
    ),
    "an_indexer_has_no_adapter": (
        [
            case(LORA.with_changes(lora_exclude="o_a_proj"), model=DEEPSEEK_V4),
            case(LORA.with_changes(lora_exclude="o_a_proj,indexer.kv_proj"), model=DEEPSEEK_V4),
            case(LORA, model=DEEPSEEK_V32),
        ],
        [
            case(LORA.with_changes(lora_exclude=default_lora_exclude(DEEPSEEK_V32)), model=DEEPSEEK_V32),
            case(LORA.with_changes(lora_exclude=default_lora_exclude(DEEPSEEK_V4)), model=DEEPSEEK_V4),
            case(LORA.with_changes(lora_exclude="o_a_proj"), model=DEEPSEEK_V4._replace(indexer_linears=())),
            case(LORA.with_changes(lora_targets="attention"), model=DEEPSEEK_V4),
            case(PLAIN, model=DEEPSEEK_V4),
        ],
    ),
    "numbered_linears_have_no_adapters": (
        [
            case(LORA, model=QWEN3_OMNI),
            case(LORA.with_changes(lora_exclude="0"), model=QWEN3_OMNI),
            case(LORA.with_changes(method=Method.QLORA, lora_exclude="router"), model=QWEN3_OMNI),
        ],
        [
            case(LORA.with_changes(lora_exclude="0,2"), model=QWEN3_OMNI),
            case(LORA.with_changes(lora_exclude="2, lm_head, 0"), model=QWEN3_OMNI),
            case(LORA.with_changes(lora_targets="attention"), model=QWEN3_OMNI),
            case(PLAIN, model=QWEN3_OMNI),
            case(LORA, model=LLAMA),
        ],
    ),
    "sharded_adapters_of_experts_alone_have_no_gradient": (
        [
            case(ZERO_3_LORA.with_changes(lora_targets="gate_proj,up_proj,down_proj"), model=QWEN3_MOE),
            case(ZERO_3_LORA.with_changes(lora_targets="experts.gate_up_proj, experts.down_proj"), model=QWEN3_MOE),
            case(ZERO_3_LORA.with_changes(lora_targets="experts.down_proj"), model=GLM_4_5V),
        ],
        [
            case(ZERO_3_LORA.with_changes(lora_targets="q_proj,experts.down_proj"), model=QWEN3_MOE),
            case(ZERO_3_LORA.with_changes(lora_targets="gate_proj,up_proj,down_proj,q_proj"), model=QWEN3_MOE),
            case(ZERO_3_LORA.with_changes(lora_targets="gate_proj,up_proj,down_proj"), model=LLAMA),
            case(ZERO_3_LORA.with_changes(lora_targets="gate_proj", train_embeddings=True), model=QWEN3_MOE),
            case(LORA.with_changes(zero_stage=2, lora_targets="experts.down_proj"), model=QWEN3_MOE),
            case(ZERO_3_LORA, model=QWEN3_MOE),
        ],
    ),
    "a_sharded_convolution_has_no_adapter": (
        [
            case(ZERO_3_LORA, model=GLM_4_5V),
            case(ZERO_3_LORA.with_changes(lora_exclude="qkv"), model=GLM_4_5V),
            case(ZERO_3_LORA.with_changes(lora_exclude="0,2"), model=QWEN3_OMNI),
        ],
        [
            case(ZERO_3_LORA.with_changes(lora_exclude=default_lora_exclude(GLM_4_5V)), model=GLM_4_5V),
            case(ZERO_3_LORA.with_changes(lora_exclude="proj"), model=GLM_4_5V),
            case(ZERO_3_LORA.with_changes(lora_targets="attention"), model=GLM_4_5V),
            case(ZERO_3_LORA.with_changes(train_vision=False), model=GLM_4_5V),
            case(LORA.with_changes(zero_stage=2), model=GLM_4_5V),
            case(ZERO_3, model=GLM_4_5V),
            case(ZERO_3_LORA, model=QWEN),
        ],
    ),
    "adapter_options_need_adapters": (
        [case(PLAIN, given=["lora_rank"]), case(PLAIN.with_changes(train_embeddings=True))],
        [case(PLAIN, given=["precision"]), case(PLAIN.with_changes(method=Method.LORA), given=["lora_rank"])],
    ),
    "packed_weights_are_not_taken_apart": (
        [case(PLAIN.with_changes(method=Method.QLORA, lora_init=init)) for init in ("pissa", "pissa_niter_4", "olora")],
        [
            case(PLAIN.with_changes(method=Method.LORA, lora_init="pissa")),
            case(PLAIN.with_changes(method=Method.QLORA, lora_init="gaussian")),
        ],
    ),
    "float32_adapters_are_of_plain_pytorch": (
        [case(LORA.with_changes(zero_stage=stage, adapter_dtype=AdapterDtype.FLOAT32)) for stage in (0, 1, 2)]
        + [case(LORA.with_changes(precision=Precision.BF16_PURE, adapter_dtype=AdapterDtype.FLOAT32))],
        [
            case(LORA.with_changes(adapter_dtype=AdapterDtype.FLOAT32)),
            case(LORA.with_changes(adapter_dtype=AdapterDtype.FLOAT32, zero_stage=3)),
            case(LORA.with_changes(adapter_dtype=AdapterDtype.FLOAT32, zero_stage=2, precision=Precision.FP32)),
            case(LORA.with_changes(adapter_dtype=AdapterDtype.MODEL, zero_stage=2)),
        ],
    ),
    "wide_adapters_have_no_narrow_weights_beside_them": (
        [
            case(LORA.with_changes(adapter_dtype=AdapterDtype.FLOAT32, zero_stage=3, train_embeddings=True)),
            case(LORA.with_changes(adapter_dtype=AdapterDtype.FLOAT32, zero_stage=3, full_projector=True)),
        ],
        [
            case(LORA.with_changes(zero_stage=3, full_projector=True)),
            case(LORA.with_changes(zero_stage=3, train_embeddings=True)),
            case(LORA.with_changes(adapter_dtype=AdapterDtype.FLOAT32, zero_stage=3)),
            case(LORA.with_changes(adapter_dtype=AdapterDtype.FLOAT32, train_embeddings=True)),
            case(
                LORA.with_changes(
                    adapter_dtype=AdapterDtype.FLOAT32,
                    zero_stage=3,
                    train_embeddings=True,
                    precision=Precision.FP32,
                )
            ),
        ],
    ),
    "a_frozen_part_is_not_trained_in_full": (
        [
            case(LORA.with_changes(full_projector=True, train_projector=False)),
            case(LORA.with_changes(full_vision=True, train_vision=False)),
        ],
        [
            case(LORA.with_changes(full_projector=True, train_vision=False)),
            case(LORA.with_changes(train_projector=False)),
        ],
    ),
    "liger_needs_ampere": (
        [case(LIGER, cluster(1, **T4)), case(LIGER_LAYERS, cluster(1, **T4))],
        [case(LIGER, cluster(1)), case(LIGER, cluster(1, **MI300X)), case(LIGER), case(PLAIN, cluster(1, **T4))],
    ),
    "liger_on_cpu_is_torch": (
        [case(LIGER, cluster(1, **CPU))],
        [case(LIGER, cluster(1)), case(PLAIN, cluster(1, **CPU))],
    ),
    "liger_has_a_loss_for_the_model": (
        [case(LIGER, model=OF_TYPE["granite"]), case(LIGER, model=OF_TYPE["gpt2"])],
        [
            case(LIGER, model=OF_TYPE["llama"]),
            case(LIGER, model=OF_TYPE["apertus"]),
            case(LIGER),
            case(PLAIN, model=OF_TYPE["granite"]),
        ],
    ),
    "liger_layers_are_known": (
        [case(LIGER_LAYERS, model=OF_TYPE["gpt2"])],
        [case(LIGER_LAYERS, model=OF_TYPE["llama"]), case(LIGER_LAYERS), case(PLAIN, model=OF_TYPE["gpt2"])],
    ),
    "liger_is_behind_transformers": (
        [case(LIGER_LAYERS, model=OF_TYPE["qwen2_vl"])],
        [case(LIGER_LAYERS, model=OF_TYPE["llama"]), case(LIGER, model=OF_TYPE["qwen2_vl"]), case(LIGER_LAYERS)],
    ),
    "compiled_norms_are_of_its_own_models": (
        [
            case(COMPILED, model=OF_TYPE["qwen2_vl"]),
            case(COMPILED.with_changes(liger_layers=True), model=OF_TYPE["llama"]),
        ],
        [case(COMPILED, model=OF_TYPE["llama"]), case(COMPILED), case(PLAIN, model=OF_TYPE["qwen2_vl"])],
    ),
    "fused_adapters_are_plain_lora": (
        [
            case(FUSED.with_changes(method=Method.FULL)),
            case(FUSED.with_changes(lora_dropout=0.1)),
            case(FUSED.with_changes(use_dora=True)),
            case(FUSED.with_changes(fsdp=False, zero_stage=3)),
            case(FUSED.with_changes(fsdp=False)),
        ],
        [
            case(FUSED),
            case(FUSED.with_changes(fsdp=False, uses_autocast=False, adapter_dtype=AdapterDtype.MODEL)),
            case(LORA.with_changes(lora_dropout=0.1)),
        ],
    ),
    "parts_are_checkpointed_without_deepspeed": (
        [
            case(IN_PARTS.with_changes(zero_stage=3)),
            case(IN_PARTS.with_changes(method=Method.QLORA)),
            case(IN_PARTS.with_changes(offload_activations=True)),
        ],
        [case(IN_PARTS), case(IN_PARTS.with_changes(fsdp=True)), case(ZERO_3)],
    ),
    "tokens_are_mixed_in_attention_alone": (
        [case(SHARED, cluster(2), QWEN), case(SHARED, cluster(2), GEMMA_2), case(SHARED, cluster(2), QWEN_3_5)],
        [case(SHARED, cluster(2), LLAMA), case(ZERO_3, cluster(2), QWEN)],
    ),
    "sequence_parallel_ranks_divide_the_gpus": (
        [case(SHARED, cluster(7))],
        [case(SHARED, cluster(6)), case(ZERO_3, cluster(7))],
    ),
    "heads_are_shared_evenly": (
        [case(SHARED.with_changes(sequence_parallel=size), None, LLAMA) for size in (3, 12, 64)],
        [case(SHARED.with_changes(sequence_parallel=size), None, LLAMA) for size in (2, 8, 16, 32)],
    ),
    "sequence_parallelism_needs_zero": (
        [case(PLAIN.with_changes(sequence_parallel=2)), case(SHARED.with_changes(zero_stage=0))],
        [case(SHARED.with_changes(zero_stage=stage)) for stage in (1, 2, 3)],
    ),
    "ulysses_attention_has_no_mask": (
        [case(SHARED.with_changes(attention=EAGER)), case(SHARED, None, SLIDING)],
        [case(SHARED.with_changes(attention=FLASH), None, SLIDING), case(ZERO_3, None, SLIDING)],
    ),
    "sequence_parallelism_needs_bundled_losses": (
        [case(SHARED.with_changes(loss=LossKind.MODEL)), case(SHARED.with_changes(loss=LossKind.TRL))],
        [case(SHARED.with_changes(loss=LossKind.FULL)), case(ZERO_3.with_changes(loss=LossKind.MODEL))],
    ),
    "sequence_parallelism_excludes_hpz": (
        [case(SHARED.with_changes(hpz=2))],
        [case(SHARED), case(ZERO_3.with_changes(hpz=2))],
    ),
    "sequence_parallelism_evaluates_as_it_trains": (
        [
            case(SHARED.with_changes(evaluation=Evaluation(batch=3))),
            case(SHARED.with_changes(evaluation=Evaluation(batch=1, kept=Kept.PREDICTIONS), loss=LossKind.FULL)),
        ],
        [
            case(SHARED.with_changes(evaluation=Evaluation(batch=3), micro_batch=3)),
            case(ZERO_3.with_changes(evaluation=Evaluation(batch=3))),
        ],
    ),
    "tiles_reduce_gradients_once": (
        [case(TILED.with_changes(zero_stage=None), cluster(2)), case(FSDP.with_changes(tiled_mlp=True), cluster(2))],
        [case(TILED, cluster(2)), case(TILED.with_changes(zero_stage=None), cluster(1)), case(PLAIN, cluster(2))],
    ),
    "tiles_have_no_autocast": (
        [case(PLAIN.with_changes(tiled_mlp=True))],
        [case(TILED), case(PLAIN.with_changes(tiled_mlp=True, precision=Precision.BF16_PURE)), case(PLAIN)],
    ),
    "tiled_models_have_gated_mlps": (
        [case(TILED, model=GPT_OSS), case(TILED, model=MAMBA)],
        [case(TILED, model=LLAMA), case(TILED, model=QWEN), case(TILED), case(ZERO_3, model=GPT_OSS)],
    ),
    "delta_kernels_are_for_delta_nets": (
        [case(KERNELS, model=LLAMA)],
        [case(KERNELS, model=QWEN_3_5), case(KERNELS), case(ZERO_3, model=LLAMA)],
    ),
    "delta_kernels_need_a_gpu": (
        [case(KERNELS, cluster(1, **CPU))],
        [case(KERNELS, cluster(1)), case(ZERO_3, cluster(1, **CPU))],
    ),
    "samples_of_a_row_are_told_apart": (
        [
            case(PLAIN.with_changes(batching=Batching.PADDING_FREE), model=GPT_OSS),
            case(PLAIN.with_changes(batching=Batching.PACKED), model=PALIGEMMA_2),
        ],
        [
            case(PLAIN.with_changes(batching=Batching.PADDING_FREE), model=QWEN._replace(model_type="qwen2_vl")),
            case(PLAIN.with_changes(batching=Batching.PACKED), model=OF_TYPE["apertus"]),
            case(PLAIN.with_changes(batching=Batching.PACKED), model=OF_TYPE["lfm2"]),
            case(PLAIN, model=GPT_OSS),
            case(PLAIN.with_changes(batching=Batching.PACKED)),
        ],
    ),
    "states_go_from_sample_to_sample_of_a_row": (
        [
            case(PLAIN.with_changes(batching=Batching.PACKED), model=OF_TYPE[name])
            for name in ("lfm2", "qwen3_5", "qwen3_next")
        ],
        [
            case(PLAIN.with_changes(batching=Batching.PACKED), model=OF_TYPE["apertus"]),
            case(PLAIN, model=OF_TYPE["lfm2"]),
            case(PLAIN.with_changes(batching=Batching.PACKED)),
        ],
    ),
    "rows_of_samples_are_not_shared": (
        [case(SHARED.with_changes(batching=Batching.PADDING_FREE))],
        [case(SHARED), case(ZERO_3.with_changes(batching=Batching.PADDING_FREE))],
    ),
    "rows_without_padding_want_flash_attention": (
        [
            case(PLAIN.with_changes(batching=Batching.PADDING_FREE, micro_batch=2)),
            case(PLAIN.with_changes(batching=Batching.PACKED, attention=EAGER)),
        ],
        [
            case(PLAIN.with_changes(batching=Batching.PADDING_FREE)),
            case(PLAIN.with_changes(batching=Batching.PACKED, attention=FLASH)),
            case(PLAIN.with_changes(micro_batch=2)),
        ],
    ),
    "answers_are_padded": (
        [case(DPO.with_changes(batching=Batching.PADDING_FREE))],
        [case(DPO), case(PLAIN.with_changes(batching=Batching.PADDING_FREE))],
    ),
    "rows_of_tasks_are_whole": (
        [case(SHARED.with_changes(task=DPO.task))],
        [case(DPO), case(SHARED)],
    ),
    "tasks_are_not_sharded_by_torch": (
        [case(DPO.with_changes(fsdp=True))],
        [case(DPO.with_changes(zero_stage=3)), case(PLAIN.with_changes(fsdp=True)), case(VERL)],
    ),
    "verl_trains_its_own_way": (
        [
            case(VERL.with_changes(fsdp=False)),
            case(VERL.with_changes(batching=Batching.PADDED)),
            case(VERL.with_changes(loss=LossKind.FULL)),
            case(VERL.with_changes(offload_activations=True)),
            case(VERL.with_changes(task=replace(OF_VERL, generation=Generation.TRANSFORMERS))),
            case(VERL.with_changes(loss=LossKind.VERL_FUSED, task=replace(OF_VERL, trainer=TaskTrainer.EASYR1))),
            case(VERL.with_changes(task=replace(OF_VERL, trainer=TaskTrainer.VERL_ENGINE))),
            case(VERL.with_changes(loss=LossKind.VERL_QUOTIENT)),
        ],
        [case(VERL), case(VERL.with_changes(loss=LossKind.VERL_FUSED)), case(for_task(TaskKind.GRPO))],
    ),
    "compensations_are_of_easyr1": (
        [
            case(PLAIN.with_changes(optimizer=OptimizerKind.ANY_PRECISION_ADAMW)),
            case(COMPENSATED.with_changes(precision=Precision.BF16)),
        ],
        [case(COMPENSATED), case(COMPENSATED.with_changes(optimizer=OptimizerKind.ADAMW))],
    ),
    "unsloth_trains_its_own_way": (
        [
            case(UNSLOTH.with_changes(method=Method.FULL)),
            case(UNSLOTH.with_changes(zero_stage=2)),
            case(UNSLOTH.with_changes(loss=LossKind.TRL)),
            case(UNSLOTH.with_changes(task=replace(OF_UNSLOTH, generation=Generation.SERVER))),
        ],
        [case(UNSLOTH), case(UNSLOTH.with_changes(method=Method.QLORA)), case(VERL)],
    ),
    "loss_of_unsloth_is_of_unsloth": (
        [
            case(PLAIN.with_changes(loss=LossKind.UNSLOTH)),
            case(for_task(TaskKind.GRPO).with_changes(loss=LossKind.UNSLOTH)),
        ],
        [case(UNSLOTH), case(PLAIN.with_changes(loss=LossKind.FULL))],
    ),
    "vlm_r1_trains_its_own_way": (
        [
            case(VLM_R1.with_changes(method=Method.QLORA)),
            case(VLM_R1.with_changes(loss=LossKind.TRL)),
            case(VLM_R1.with_changes(task=replace(OF_VLM_R1, steps_per_generation=None))),
            case(VLM_R1.with_changes(task=replace(OF_VLM_R1, num_iterations=2))),
            case(VLM_R1.with_changes(task=replace(OF_VLM_R1, generation=Generation.VLLM))),
        ],
        [case(VLM_R1), case(VLM_R1.with_changes(method=Method.LORA)), case(UNSLOTH)],
    ),
    "vlm_r1_has_a_second_model_under_zero_3": (
        [case(ADAPTED_VLM_R1.with_changes(task=replace(OF_VLM_R1, reference=Reference.ADAPTER_OFF)))],
        [
            case(ADAPTED_VLM_R1),
            case(ADAPTED_VLM_R1.with_changes(zero_stage=2, task=replace(OF_VLM_R1, reference=Reference.ADAPTER_OFF))),
            case(VLM_R1.with_changes(zero_stage=3, task=replace(OF_VLM_R1, reference=Reference.COPY))),
        ],
    ),
    "r1_v_has_a_reference": (
        [case(VLM_R1.with_changes(task=replace(OF_R1_V, reference=Reference.NONE)))],
        [case(VLM_R1), case(VLM_R1.with_changes(task=replace(OF_R1_V, reference=Reference.COPY)))],
    ),
    "loss_of_vlm_r1_is_of_vlm_r1": (
        [
            case(PLAIN.with_changes(loss=LossKind.ROWS)),
            case(for_task(TaskKind.GRPO).with_changes(loss=LossKind.ROWS)),
        ],
        [case(VLM_R1), case(PLAIN.with_changes(loss=LossKind.FULL))],
    ),
    "loss_of_verl_is_of_verl": (
        [
            case(PLAIN.with_changes(loss=LossKind.VERL)),
            case(for_task(TaskKind.GRPO).with_changes(loss=LossKind.VERL_FUSED)),
        ],
        [case(VERL), case(PLAIN.with_changes(loss=LossKind.FULL))],
    ),
    "llama_factory_has_one_loss": (
        [
            case(PLAIN.with_changes(loss=LossKind.LOG_SOFTMAX)),
            case(DPO.with_changes(loss=LossKind.LOG_SOFTMAX)),
            case(OF_LLAMA_FACTORY.with_changes(loss=LossKind.MODEL)),
            case(
                OF_LLAMA_FACTORY.with_changes(task=TrainingTask(kind=TaskKind.GRPO, trainer=TaskTrainer.LLAMA_FACTORY))
            ),
        ],
        [case(OF_LLAMA_FACTORY), case(DPO), case(PLAIN.with_changes(loss=LossKind.MODEL))],
    ),
    "other_trainers_have_one_loss_of_labels": (
        [
            case(AXOLOTLS_LABELS.with_changes(task=replace(AXOLOTLS_OF_LABELS, kto_loss=KTOLoss.APO_ZERO))),
        ],
        [case(AXOLOTLS_LABELS), case(MS_SWIFTS_LABELS)],
    ),
    "openrlhf_trains_its_own_way": (
        [
            case(DPO.with_changes(loss=LossKind.OPENRLHF)),
            case(OF_OPENRLHF.with_changes(loss=LossKind.FULL)),
            case(OF_OPENRLHF.with_changes(zero_stage=None)),
            case(OF_OPENRLHF.with_changes(task=replace(OPENRLHFS, reference=Reference.PRECOMPUTED))),
            case(OPENRLHFS_SCORES.with_changes(method=Method.LORA)),
        ],
        [case(OF_OPENRLHF), case(OPENRLHFS_SCORES), case(ZERO_2.with_changes(loss=LossKind.OPENRLHF)), case(DPO)],
    ),
    "a_reference_has_no_trained_weights_of_its_own": (
        [case(DPO.with_changes(method=Method.LORA, full_projector=True))],
        [case(DPO.with_changes(method=Method.LORA)), case(LORA.with_changes(full_projector=True))],
    ),
    "tasks_of_other_trainers_are_not_evaluated": (
        [
            case(OF_OPENRLHF.with_changes(evaluation=Evaluation(batch=2))),
            case(PLAIN.with_changes(task=MS_SWIFTS_REWARDS, evaluation=Evaluation(batch=2))),
            case(OF_LLAMA_FACTORY.with_changes(evaluation=Evaluation(batch=2), fsdp=True, zero_stage=None)),
        ],
        [
            case(OF_LLAMA_FACTORY.with_changes(evaluation=Evaluation(batch=2))),
            case(OF_MS_SWIFT.with_changes(evaluation=Evaluation(batch=2), zero_stage=3)),
            case(OF_AXOLOTL.with_changes(evaluation=Evaluation(batch=2))),
            case(DPO.with_changes(evaluation=Evaluation(batch=2))),
            case(KTO.with_changes(evaluation=Evaluation(batch=2))),
            case(REWARD.with_changes(evaluation=Evaluation(batch=2))),
            case(for_task(TaskKind.GRPO).with_changes(evaluation=Evaluation(batch=2))),
            case(ZERO_2.with_changes(evaluation=Evaluation(batch=2))),
        ],
    ),
    "tasks_are_evaluated_for_their_loss": (
        [
            case(DPO.with_changes(evaluation=Evaluation(batch=2, kept=Kept.LOGITS))),
            case(DPO.with_changes(evaluation=Evaluation(batch=2, new_tokens=8))),
            case(KTO.with_changes(evaluation=Evaluation(batch=2, kept=Kept.LOGITS))),
            case(REWARD.with_changes(evaluation=Evaluation(batch=2, new_tokens=8))),
        ],
        [case(DPO.with_changes(evaluation=Evaluation(batch=2))), case(DPO)],
    ),
    "rewarded_answers_alone_have_groups": (
        [
            case(DPO.with_changes(evaluation=Evaluation(batch=2, generations=2))),
            case(ZERO_2.with_changes(evaluation=Evaluation(batch=2, generations=2))),
        ],
        [
            case(for_task(TaskKind.GRPO).with_changes(evaluation=Evaluation(batch=2, generations=2))),
            case(DPO.with_changes(evaluation=Evaluation(batch=2))),
        ],
    ),
    "reentrant_checkpoints_are_of_sharded_adapters": (
        [
            case(REENTRANT.with_changes(zero_stage=2)),
            case(REENTRANT.with_changes(method=Method.FULL)),
            case(REENTRANT.with_changes(activation_checkpointing=False)),
        ],
        [case(REENTRANT), case(DPO.with_changes(method=Method.LORA, zero_stage=3))],
    ),
    "dropout_is_switched_off_by_trl": (
        [
            case(for_task(TaskKind.DPO, disables_dropout=is_off, trainer=trainer))
            for trainer in (TaskTrainer.OPENRLHF, TaskTrainer.LLAMA_FACTORY)
            for is_off in (False, True)
        ],
        [
            case(for_task(TaskKind.DPO, disables_dropout=False)),
            case(for_task(TaskKind.GRPO, disables_dropout=True, trainer=TaskTrainer.UNSLOTH)),
            case(for_task(TaskKind.DPO, trainer=TaskTrainer.OPENRLHF)),
        ],
    ),
    "generating_gpus_divide_all": (
        [case(for_task(TaskKind.GRPO, generation=Generation.VLLM, vllm_tensor_parallel=4), cluster(6))],
        [case(for_task(TaskKind.GRPO, generation=Generation.VLLM, vllm_tensor_parallel=4), cluster(8))],
    ),
    "sleep_needs_the_native_allocator": (
        [case(for_task(TaskKind.GRPO, generation=Generation.VLLM, vllm_sleep_level=2))],
        [
            case(
                for_task(TaskKind.GRPO, generation=Generation.VLLM, vllm_sleep_level=2).with_changes(
                    expandable_segments=False
                )
            ),
            case(for_task(TaskKind.GRPO, generation=Generation.VLLM)),
        ],
    ),
    "vllm_packs_no_weights_in_eight_bits": (
        [case(for_task(TaskKind.GRPO, generation=Generation.VLLM).with_changes(method=Method.LORA_8BIT))],
        [
            case(for_task(TaskKind.GRPO, generation=Generation.VLLM).with_changes(method=Method.QLORA)),
            case(for_task(TaskKind.GRPO).with_changes(method=Method.LORA_8BIT)),
        ],
    ),
    "vllm_is_for_gpus": (
        [case(for_task(TaskKind.GRPO, generation=Generation.VLLM), cluster(2, **CPU))],
        [case(for_task(TaskKind.GRPO), cluster(2, **CPU)), case(for_task(TaskKind.GRPO, generation=Generation.VLLM))],
    ),
    "only_adapters_can_be_off": (
        [case(for_task(TaskKind.DPO, reference=one)) for one in (Reference.ADAPTER_OFF, Reference.ADAPTER_COPY)],
        [case(for_task(TaskKind.DPO, reference=Reference.ADAPTER_OFF).with_changes(method=Method.LORA)), case(DPO)],
    ),
    "trl_alone_copies_adapters": (
        [case(COPYING.with_changes(task=replace(COPYING.task, trainer=TaskTrainer.AXOLOTL)))],
        [case(COPYING), case(OF_AXOLOTL.with_changes(method=Method.LORA))],
    ),
    "sharded_adapters_are_not_copied": (
        [case(COPYING.with_changes(zero_stage=3))],
        [case(COPYING.with_changes(zero_stage=2)), case(COPYING)],
    ),
    "adapters_need_no_copy": (
        [case(for_task(TaskKind.GRPO, reference=Reference.COPY).with_changes(method=Method.LORA))],
        [
            case(for_task(TaskKind.GRPO, reference=Reference.COPY)),
            case(DPO.with_changes(method=Method.LORA)),
            case(OF_OPENRLHF.with_changes(method=Method.LORA)),
        ],
    ),
    "preferences_need_a_reference": (
        [case(for_task(kind, reference=Reference.NONE)) for kind in (TaskKind.DPO, TaskKind.KTO)],
        [
            case(for_task(TaskKind.GRPO, reference=Reference.NONE)),
            case(DPO),
            case(OF_LLAMA_FACTORY.with_changes(task=replace(LLAMA_FACTORYS, reference=Reference.NONE))),
            case(OF_AXOLOTL.with_changes(task=replace(AXOLOTLS, reference=Reference.NONE))),
        ],
    ),
    "other_trainers_compute_while_they_train": (
        [
            case(OF_MS_SWIFT.with_changes(task=replace(MS_SWIFTS, reference=Reference.PRECOMPUTED))),
            case(OF_LLAMA_FACTORY.with_changes(task=replace(LLAMA_FACTORYS, reference=Reference.PRECOMPUTED))),
            case(AXOLOTLS_LABELS.with_changes(task=replace(AXOLOTLS_OF_LABELS, reference=Reference.PRECOMPUTED))),
        ],
        [case(OF_LLAMA_FACTORY), case(for_task(TaskKind.DPO, reference=Reference.PRECOMPUTED))],
    ),
    "generated_answers_are_not_known_before": (
        [case(for_task(TaskKind.GRPO, reference=Reference.PRECOMPUTED))],
        [case(for_task(TaskKind.DPO, reference=Reference.PRECOMPUTED))],
    ),
    "reward_models_score_rows": (
        [
            case(REWARD.with_changes(loss=LossKind.TRL)),
            case(REWARD.with_changes(liger_layers=True)),
            case(PLAIN.with_changes(loss=LossKind.BRADLEY_TERRY)),
            case(REWARD, model=ROBERTA),
            case(REWARD, model=model_facts(packaged_files("qwen2.5-vl-3b"))),
        ],
        [case(REWARD), case(REWARD, model=MIXTRAL), case(PLAIN, model=ROBERTA)],
    ),
    "experts_are_counted_where_their_loss_is_added": (
        [case(one, model=GRANITE_MOE) for one in (DPO, KTO, for_task(TaskKind.GRPO))],
        [case(one, model=GRANITE_MOE) for one in (REWARD, PLAIN, OF_MS_SWIFT)] + [case(DPO, model=COUNTED_EXPERTS)],
    ),
    "a_loss_of_routers_is_left_out_where_there_is_one": (
        [
            case(for_task(TaskKind.DPO, router_loss=False), model=model_facts(packaged_files("qwen3-0.6b"))),
            case(for_task(TaskKind.GRPO, router_loss=False, trainer=TaskTrainer.MS_SWIFT), model=GRANITE_MOE),
        ],
        [case(for_task(TaskKind.KTO, router_loss=False), model=GRANITE_MOE), case(DPO)],
    ),
    "ms_swift_has_one_loss": (
        [
            case(PLAIN.with_changes(loss=LossKind.SELECTIVE)),
            case(PLAIN.with_changes(loss=LossKind.TEMPERED_ENTROPY)),
            case(OF_MS_SWIFT.with_changes(loss=LossKind.MODEL)),
            case(OF_MS_SWIFT.with_changes(loss=LossKind.TEMPERED)),
            case(MS_SWIFTS_ANSWERS.with_changes(loss=LossKind.SELECTIVE)),
        ],
        [case(OF_MS_SWIFT), case(MS_SWIFTS_ANSWERS), case(DPO), case(PLAIN.with_changes(loss=LossKind.MODEL))],
    ),
    "ms_swift_moves_weights_for_vllm_alone": (
        [case(MOVED), case(MOVED.with_changes(task=replace(OF_MOVED, generation=Generation.SERVER)))],
        [case(MOVED.with_changes(task=replace(OF_MOVED, generation=Generation.VLLM))), case(MS_SWIFTS_ANSWERS)],
    ),
    "axolotl_has_one_loss_of_each_task": (
        [
            case(PLAIN.with_changes(loss=LossKind.AXOLOTL)),
            case(OF_AXOLOTL.with_changes(loss=LossKind.MODEL)),
            case(AXOLOTLS_REWARDS.with_changes(loss=LossKind.AXOLOTL)),
        ],
        [case(OF_AXOLOTL), case(AXOLOTLS_REWARDS), case(OF_MS_SWIFT)],
    ),
    "axolotl_computes_without_a_second_model_with_adapters_alone": (
        [case(BEFORE_AXOLOTL)],
        [case(BEFORE_AXOLOTL.with_changes(method=Method.LORA)), case(OF_AXOLOTL)],
    ),
    "axolotl_copies_no_adapters_in_shards": (
        [case(AXOLOTLS_REWARDS.with_changes(method=Method.LORA, zero_stage=3))],
        [case(AXOLOTLS_REWARDS.with_changes(method=Method.LORA, zero_stage=2)), case(OF_AXOLOTL)],
    ),
    "axolotl_trains_on_labels_with_adapters_alone": (
        [case(AXOLOTLS_LABELS)],
        [case(AXOLOTLS_LABELS.with_changes(method=Method.LORA)), case(OF_AXOLOTL)],
    ),
}


def test_every_rule_has_a_case_and_a_name_of_its_own():
    assert [rule.name for rule in RULES] == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_rule_refuses_its_combination_and_lets_the_neighbours_pass(name):
    refused, passed = CASES[name]
    for item in refused:
        assert name in item.names, item
    for item in passed:
        assert name not in item.names, item


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
OPTIONS = {name for option in (*estimate.params, *launch.params) for name in (*option.opts, *option.secondary_opts)}
"""The options of the command line that sentences may name."""


@pytest.mark.parametrize("name", CASES)
def test_rule_says_in_one_sentence_what_is_wrong_and_where_that_is_known_from(name):
    for item in CASES[name][0]:
        found = problems(item.recipe, cluster=item.cluster, model=item.model, **item.more)
        problem = next(problem for problem in found if problem.rule == name)
        assert "\n" not in problem.sentence
        assert set(OPTION.findall(problem.sentence)) <= OPTIONS
        assert problem.source


def test_errors_come_before_warnings():
    recipe = ZERO_3.with_changes(optimizer=OptimizerKind.ADAFACTOR, method=Method.QLORA)
    found = [problem.severity for problem in problems(recipe, cluster=cluster(1))]
    assert found == [Severity.ERROR, Severity.WARNING, Severity.WARNING]


def test_check_raises_the_first_error_and_returns_the_warnings():
    with pytest.raises(InputError, match="--method qlora"):
        check(ZERO_3.with_changes(method=Method.QLORA))
    assert [problem.rule for problem in check(ZERO_3, cluster=cluster(1))] == ["sharding_needs_several_gpus"]
    assert check(ZERO_2, cluster=cluster(4)) == []


def test_bf16_on_an_old_card_is_planned_with_a_caution_and_no_search_chooses_it():
    """torch emulates it there, and says that it is supported (``torch.cuda.is_bf16_supported``)."""
    (found,) = check(PLAIN, cluster=cluster(1, **T4))
    assert caveats([found.sentence]) == [found.sentence]
    assert re.search(r"Tesla T4 \(7\.5\).*--precision fp16", found.sentence)
    assert objection(PLAIN, cluster=cluster(1, **T4), model=GEMMA_2, global_batch=16, given=()) == found.sentence


@given(recipe=RECIPES, num_gpus=st.integers(1, 8), kind=st.sampled_from([T4, GTX_1080, MI300X, CPU, {}]))
def test_rules_answer_for_every_recipe(recipe, num_gpus, kind):
    for problem in problems(recipe, cluster=cluster(num_gpus, **kind), model=GEMMA_2, global_batch=16):
        assert problem.sentence


@given(recipe=RECIPES, num_gpus=st.integers(2, 8), kind=st.sampled_from([T4, MI300X, CPU, {}]))
def test_rules_that_count_no_gpus_say_the_same_of_any_number(recipe, num_gpus, kind):
    alone, more = (
        objection(recipe, cluster=cluster(n, **kind), model=GEMMA_2, global_batch=16, given=(), rules=OTHER_RULES)
        for n in (1, num_gpus)
    )
    assert alone == more
    assert {rule.name for rule in SEARCH_RULES} == {rule.name for rule in (*OTHER_RULES, *COUNTING_RULES)}


@given(recipe=RECIPES)
def test_knowing_less_never_finds_more(recipe):
    less = {problem.rule for problem in problems(recipe)}
    assert less <= {problem.rule for problem in problems(recipe, cluster=cluster(2, **T4), model=QWEN)}


def test_facts_name_the_types_of_the_model_and_its_parts():
    config = {
        "model_type": "paligemma",
        "torch_dtype": "bfloat16",
        "text_config": {"model_type": "gemma2"},
        "vision_config": {"model_type": "siglip_vision_model"},
        "quantization": None,
    }
    files = ModelFiles(id="p", config=config)
    known = {"model_type": "paligemma", "model_types": PALIGEMMA_2.model_types, "files": files}
    assert model_facts(files) == ModelFacts(id="p", **known, weights_dtype="bfloat16", widest_head=256)


@pytest.mark.parametrize(
    ("config", "slides"),
    [
        ({"model_type": "mistral"}, True),
        ({"model_type": "mistral", "sliding_window": None}, False),
        ({"model_type": "qwen2", "sliding_window": 4096}, False),
        ({"model_type": "qwen2", "use_sliding_window": True}, True),
        ({"model_type": "llama"}, False),
    ],
)
def test_a_window_that_the_file_leaves_out_is_that_of_its_class(config, slides):
    assert model_facts(ModelFiles(id="p", config=config)).has_windows is slides


def test_the_attention_that_a_model_has_is_offered_fastest_first():
    assert attention_implementations(QWEN) == (FLASH, SDPA, EAGER)
    assert attention_implementations(GEMMA_2) == (FLASH, EAGER)
    assert attention_implementations(BLIP_2) == (SDPA, EAGER)


def test_flash_attention_is_not_offered_for_heads_that_are_wider_than_its_kernel_takes():
    def facts(width: int) -> ModelFacts:
        text = {"model_type": "gemma4_text", "global_head_dim": width}
        return model_facts(ModelFiles(id="g", config={"model_type": "gemma4", "text_config": text}))

    assert attention_implementations(facts(256), TransformersVersion.V5_23) == (FLASH, SDPA, EAGER)
    assert attention_implementations(facts(512)) == (SDPA, EAGER)
    with pytest.raises(InputError, match="those of this model are 512 wide: give --attention sdpa"):
        check(PLAIN.with_changes(attention=FLASH), model=facts(512))


# -- held to the libraries -------------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_transformers_refuses_the_attention_that_the_rule_refuses():
    pytest.importorskip("transformers")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING as MULTIMODAL
    from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import DeepseekOcr2SamVisionEncoder
    from transformers.models.sam.modeling_sam import SamVisionEncoder
    from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionModel
    from transformers.models.timm_wrapper.modeling_timm_wrapper import TimmWrapperModel

    from vlmplan.architecture.families import FAMILIES

    towers = {
        "deepseek_ocr2": DeepseekOcr2SamVisionEncoder,
        "deepseek_vl_hybrid": SamVisionEncoder,
        **dict.fromkeys(("fast_vlm", "gemma3n"), TimmWrapperModel),
        "lfm2_vl": Siglip2VisionModel,
    }
    seen = set()
    for mapping in (MULTIMODAL, CAUSAL):
        for config, model in mapping.items():
            if config.model_type in FAMILIES and config.model_type not in seen:
                seen.add(config.model_type)
                known = attention_implementations(ModelFacts("a model", frozenset({config.model_type})))
                assert model._supports_sdpa is (SDPA in known), config.model_type
                has_flash = FLASH in known
                # transformers puts another one in the place of an implementation that such a list does not have.
                own = getattr(model, "_compatible_flash_implementations", None) or ["flash_attention_2"]
                takes_it = model._supports_flash_attn and "flash_attention_2" in own
                # Classes that say so, but whose towers are made with the same.
                tower = towers.get(config.model_type, model)
                takes_it = takes_it and tower._supports_flash_attn
                assert takes_it is has_flash, config.model_type
    assert seen >= {"blip-2", "gemma2", "llama", "paligemma", "qwen2_vl"}


def test_every_family_calls_its_head_by_a_name_that_is_known():
    from importlib import import_module

    from vlmplan.architecture.families import FAMILIES
    from vlmplan.architecture.model import Model

    for name in sorted(set(FAMILIES.values())):
        for value in vars(import_module(f"vlmplan.architecture.families.{name}")).values():
            if isinstance(value, type) and issubclass(value, Model):
                assert value.HEAD.rpartition(".")[2] in HEADS


@pytest.fixture(scope="module")
def outcomes():
    """What real DeepSpeed engines do on one CPU process, by the probe's name."""
    pytest.importorskip("deepspeed")
    return deepspeed_probe.run(os.environ)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pure bf16 at stage 0", "only supported with ZeRO Stage 1, 2, or 3"),
        ("AdamW of torch offloaded", "ZeRO-Offload with a client provided optimizer"),
        ("pure bf16 of torch's AdamW offloaded", "with DeepSpeedCPUAdam"),
        ("odd all-gather bucket", "allgather_bucket_size must be a multiple"),
        ("untested optimizer not allowed", "zero_allow_untested_optimizer"),
    ],
)
def test_deepspeed_refuses_what_the_rules_refuse(outcomes, name, words):
    assert words in outcomes[name]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name",
    ["parameters offloaded at stage 2", "nvme at stage 2", "optimizer offloaded at stage 0"],
)
def test_deepspeed_passes_over_what_the_rules_refuse(outcomes, name):
    assert outcomes[name] == "runs"


@pytest.mark.sweep
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW8bit", "PagedAdamW8bit", "Adafactor"])
def test_deepspeed_runs_every_optimizer_at_every_stage(outcomes, stage, optimizer):
    assert outcomes[f"{optimizer} at stage {stage}"] == "runs"


@pytest.mark.sweep
def test_deepspeed_makes_float32_weights_16_bit(outcomes):
    assert outcomes["float32 beside bf16"] == "torch.bfloat16"


@pytest.mark.sweep
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_runs_pure_bf16_when_sharded(outcomes, stage):
    assert outcomes[f"pure bf16 at stage {stage}"] == "runs"


@pytest.mark.sweep
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_adafactor_keeps_a_whole_state_when_sharded(outcomes, stage):
    assert outcomes[f"Adafactor at stage {stage}: states"] == "exp_avg_sq"
    assert outcomes["Adafactor at stage 0: states"] == "exp_avg_sq_col exp_avg_sq_row"


def test_gpu_cases_are_what_they_say():
    assert card().supports_bf16
    assert not card(**T4).supports_bf16
