"""The options of what is trained for: preferences (DPO), reward models, good and bad answers (KTO) or rewards (GRPO) in
place of samples as they are."""

import click

from vlmplan.cli.option_kinds import REAL, count, one_of, under

TASK = under(
    "Preferences and rewards",
    click.option(
        "--task",
        type=one_of(("sft", "dpo", "reward", "kto", "grpo")),
        help="Supervised fine-tuning (sft), preferences between two answers (dpo), a reward model of them (reward), "
        "answers that are good or bad (kto), or rewards of generated answers (grpo); the last four as TRL trains "
        "them.  [default: sft]",
    ),
    click.option(
        "--reference",
        type=one_of(("none", "adapter-off", "adapter-copy", "copy", "precomputed")),
        help="Where the reference model's log-probabilities come from.  [default: adapter-off or copy in DPO and KTO, "
        "with launch --adapter adapter-copy; none in GRPO]",
    ),
    count(
        "--max-completion-tokens",
        "Tokens of --seq-len that are the answer.  [default: 512 in GRPO, else all]",
    ),
    click.option(
        "--kto-loss",
        type=one_of(("kto", "apo-zero-unpaired")),
        help="KTO: its own loss, which estimates the KL divergence by forwards without gradients, or APO-zero, which "
        "does without.  [default: kto]",
    ),
    click.option(
        "--reentrant-checkpoints/--no-reentrant-checkpoints",
        default=None,
        help="DPO, reward, KTO: reentrant checkpointing, as TRL's scripts set it with adapters and ZeRO-3.  "
        "[default: off, with --for trl as there]",
    ),
    click.option(
        "--disable-dropout/--no-disable-dropout",
        default=None,
        help="TRL's disable_dropout, of the model and its adapters.  [default: on; off in GRPO, and with "
        "--lora-dropout]",
    ),
    click.option(
        "--router-loss/--no-router-loss",
        default=None,
        help="DPO, KTO, GRPO: TRL adds the loss of routers of experts, as the model's configuration weighs it; "
        "without, router_aux_loss_coef is 0.  [default: added]",
    ),
    count("--num-generations", "GRPO: answers to each prompt.  [default: 8]"),
    count(
        "--steps-per-generation", "GRPO: micro batches whose answers are generated together.  [default: --grad-accum]"
    ),
    count("--num-iterations", "GRPO: times that generated answers are trained on.  [default: 1]"),
    click.option(
        "--generation",
        type=one_of(("transformers", "vllm", "server")),
        help="GRPO: what generates answers: transformers, vLLM on the same GPUs, or a vLLM server on others.  "
        "[default: transformers]",
    ),
    click.option(
        "--vllm-memory-utilization",
        type=REAL,
        metavar="X",
        help="Fraction of each GPU's memory that vLLM takes.  [default: what it needs]",
    ),
    count("--vllm-sleep-level", "While training, vLLM keeps its memory (0) or gives it back (1, 2).  [default: 0]"),
    count("--vllm-tensor-parallel", "GPUs that share vLLM's weights.  [default: 1]"),
    count(
        "--reward-model-parameters",
        "GRPO: parameters of reward models on the GPU; 0 where rewards are functions.  [default: 0]",
    ),
    click.option(
        "--task-trainer",
        type=click.Choice(
            (
                *("trl", "verl", "verl-engine", "llamafactory", "openrlhf", "ms-swift", "axolotl", "easyr1"),
                *("unsloth", "vlm-r1", "r1-v"),
            )
        ),
        help="Whose training is planned: trl, axolotl, ms-swift; of GRPO also verl, verl-engine, easyr1, unsloth and "
        "vlm-r1, r1-v; of DPO also llamafactory and openrlhf. --config reads their scripts and files.  [default: trl]",
        metavar="NAME",
    ),
    count(
        "--scoring-batch",
        "verl, Unsloth: answers per GPU in a forward for log-probabilities.  [default: --micro-batch; Unsloth: all]",
    ),
    click.option(
        "--idle-offload",
        type=click.Choice(("none", "weights", "optimizer", "all")),
        help="verl: what waits in host memory while nothing computes with it; ms-swift: while vLLM generates.  "
        "[default: none]",
    ),
    click.option(
        "--reference-shards",
        type=click.Choice(("gpu", "host", "host-float32")),
        help="verl: where the second model of --reference copy has its shards, in bfloat16 or float32.  [default: gpu]",
    ),
    count("--sync-buffer-mib", "verl, ms-swift: buffer on the GPU through which weights go to vLLM.  [default: 0]"),
    count("--sync-groups", "ms-swift: groups of layers that go to vLLM one after another; 0: at once.  [default: 0]"),
)
