"""The options of what is trained for: preferences (DPO) or rewards (GRPO) in place of samples as they are."""

import click

from vlmplan.cli.option_kinds import count, under

TASK = under(
    "Preferences and rewards",
    click.option(
        "--task",
        type=click.Choice(("sft", "dpo", "grpo")),
        help="Samples as they are, preferences between two answers, or rewards of generated answers; the last two as "
        "TRL trains them.  [default: sft]",
    ),
    click.option(
        "--reference",
        type=click.Choice(("none", "adapter-off", "copy", "precomputed")),
        help="Where log-probabilities of the model before training come from.  [default: adapter-off or copy in DPO, "
        "none in GRPO]",
    ),
    count(
        "--max-completion-tokens",
        "Of the tokens of --seq-len, those of an answer, which are scored.  [default: 512 in GRPO, all in DPO]",
    ),
    click.option(
        "--reentrant-checkpoints/--no-reentrant-checkpoints",
        default=None,
        help="DPO: reentrant, as TRL's own script forces with adapters under ZeRO-3.  [default: off]",
    ),
    count("--num-generations", "GRPO: answers to each prompt.  [default: 8]"),
    count("--steps-per-generation", "GRPO: micro batches that are generated at once.  [default: --grad-accum]"),
    click.option(
        "--generation",
        type=click.Choice(("transformers", "vllm", "server")),
        help="GRPO: what generates: the model itself, vLLM on the same GPUs, or on others.  [default: transformers]",
    ),
    click.option(
        "--vllm-memory-utilization",
        type=float,
        metavar="X",
        help="Part of each GPU's memory that vLLM takes.  [default: what it needs]",
    ),
    count("--vllm-sleep-level", "0: vLLM keeps its memory in training, 1 or 2: it gives it back.  [default: 0]"),
    count("--vllm-tensor-parallel", "GPUs that share vLLM's weights.  [default: 1]"),
    count("--reward-model-parameters", "GRPO: parameters of reward models; 0: functions alone.  [default: 0]"),
)
