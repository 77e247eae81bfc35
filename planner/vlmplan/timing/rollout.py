"""Seconds of what GRPO does before its steps: answers are generated, log-probabilities looked up, rewards given.

Generating is one forward over the prompts, then one over a single token of each answer for every further token.
transformers asks for each operation by itself, so that of small batches the host decides; vLLM replays CUDA graphs.
Both read all weights for every token. All answers are taken to be as long as they may be.

Source: ``_sample`` in transformers 5.23 ``generation/utils.py``; TRL 1.16 ``grpo_trainer.py`` and
``generation/vllm_generation.py``.
"""

from collections.abc import Sequence
from typing import NamedTuple

from vlmplan.architecture.trace import Trace, Work
from vlmplan.communication import CommunicationSeconds, communication_seconds
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase
from vlmplan.hardware import Cluster
from vlmplan.recipe import Recipe
from vlmplan.timing.overlap import shown_seconds
from vlmplan.timing.rates import RangedValue, Rates, Scenario, gpu_rates, host_copy_bytes_per_second
from vlmplan.timing.roofline import busy_seconds, micro_batch_seconds_at

TOKEN_OPERATIONS = RangedValue(163, 143, 122)
"""What ``generate`` does around each token beside the forward (sampling, masks, whether all answers have ended), in
operations that take the host as long (``KERNEL_SECONDS``).

Measured with transformers 5.23 and torch 2.13 on one core of a small cloud server, 2026, with tiny Llama, Qwen2 and
Qwen3 models in float32: 600 to 800 us of CPU time a token whatever the number of layers, where training took 3.27 us
for each dispatched operation, of which there are 1.5 for each one counted."""
CACHE_PASSES = 3
"""How often transformers moves the keys and values of all tokens for one more: ``DynamicLayer.update`` reads and writes
them (``torch.cat``), attention reads them."""
VLLM_STEP_SECONDS = RangedValue(6e-3, 2e-3, 1e-3)
"""What vLLM's scheduler and sampler take for each token of all answers. Assumed."""


class GenerationWork(NamedTuple):
    """The answers that one rank generates at once, or the ``num_sharing`` ranks that share vLLM's weights.

    ``prompt`` is the forward over all prompts, ``token`` that over one token of each answer with nothing before it.
    ``token_cache_bytes`` are the keys and values of one token of every answer.
    """

    prompt: Trace
    token: Trace
    token_cache_bytes: int
    prompt_tokens: int
    new_tokens: int
    is_vllm: bool = False
    num_sharing: int = 1

    @property
    def mean_cache_bytes(self) -> float:
        """Keys and values that are there for a token, over all but the first, which comes from the prompt."""
        return self.token_cache_bytes * (self.prompt_tokens + self.new_tokens / 2)


class RolloutWork(NamedTuple):
    """What one rank does before it trains ``num_micro_batches`` micro batches: those of one generation of answers, as
    often as they are trained on.

    ``generation`` is None where a server generates. ``whole_bytes`` are weights that have to be gathered before
    transformers generates, before vLLM gets them, and in each of ``passes``, forwards of one micro batch for
    log-probabilities. ``sent_bytes`` are copied to vLLM, ``slept_bytes`` go to host memory and come back as it sleeps.
    ``reward_flops`` are those of reward models, whose weights are gathered too (``reward_bytes``). ``num_passes``: how
    often each of ``passes`` runs.
    """

    num_micro_batches: int
    num_passes: int
    generation: GenerationWork | None
    passes: Sequence[Trace]
    whole_bytes: int = 0
    sent_bytes: int = 0
    slept_bytes: int = 0
    reward_flops: int = 0
    reward_bytes: int = 0


class RolloutSeconds(NamedTuple):
    """Seconds of rollouts for one optimizer step. ``generation`` is 0 where a server generates, whose GPUs a plan does
    not have."""

    generation: float
    scoring: float


def rollout_seconds(
    work: RolloutWork, recipe: Recipe, cluster: Cluster, scenario: Scenario = Scenario.EXPECTED
) -> RolloutSeconds | None:
    """The share of one optimizer step in what is done before several; None where a speed is not known."""
    gpu = cluster.node.gpu
    rates = gpu_rates(gpu, recipe, scenario)
    gathered = gathering_seconds(work.whole_bytes, recipe, cluster)
    rewards = gathering_seconds(work.reward_bytes, recipe, cluster)
    if rates is None or gathered is None or rewards is None:
        return None
    generation = 0.0
    if work.generation is not None:
        generation = shown_seconds(gathered, 0.0, 0.0, scenario) + generation_seconds(work.generation, rates, scenario)
        generation += 2 * work.sent_bytes / rates.bytes_per_second
    if work.slept_bytes:
        copied = host_copy_bytes_per_second(gpu, scenario)
        if copied is None:
            return None
        generation += work.slept_bytes / copied
    scoring = shown_seconds(rewards, 0.0, 0.0, scenario) + work.reward_flops / rates.matmul_flops_per_second
    for one in work.passes:
        forward, _, _ = micro_batch_seconds_at(rates, one, recipe).phases
        shown = shown_seconds(gathered, forward, 0.0, scenario)
        scoring += work.num_passes * (forward + shown)
    share = recipe.grad_accum / work.num_micro_batches
    return RolloutSeconds(share * generation, share * scoring)


def generation_seconds(work: GenerationWork, rates: Rates, scenario: Scenario) -> float:
    """Seconds of generating all answers, all tokens of them."""
    prompt, token = forward_work(work.prompt), forward_work(work.token)
    num_further = work.new_tokens - 1
    if work.is_vllm:
        first = _products_seconds(prompt, rates) / work.num_sharing
        cache = work.mean_cache_bytes / rates.bytes_per_second
        each = (_products_seconds(token, rates) + cache) / work.num_sharing + VLLM_STEP_SECONDS.at(scenario)
        return first + VLLM_STEP_SECONDS.at(scenario) + num_further * each
    around = TOKEN_OPERATIONS.at(scenario) * rates.kernel_seconds
    first = max(busy_seconds(prompt, rates).total, prompt.num_kernels * rates.kernel_seconds + around)
    cache = CACHE_PASSES * work.mean_cache_bytes / rates.bytes_per_second
    each = max(busy_seconds(token, rates).total + cache, token.num_kernels * rates.kernel_seconds + around)
    return first + num_further * each


def forward_work(trace: Trace) -> Work:
    forward, _, _ = trace.works()
    return forward


def _products_seconds(work: Work, rates: Rates) -> float:
    """Matrix products and attention: what is between them, vLLM does in the same kernels."""
    busy = busy_seconds(work, rates)
    return busy.matmuls + busy.attention


def gathering_seconds(num_bytes: int, recipe: Recipe, cluster: Cluster) -> CommunicationSeconds | None:
    """Seconds of gathering weights of so many bytes, all at once, among the ranks that share a copy of the model."""
    if not num_bytes:
        return CommunicationSeconds()
    sharing = recipe.sharing_ranks(cluster.num_gpus)
    gather = Collectives(CollectiveKind.ALL_GATHER, StepPhase.FORWARD, 1, num_bytes, sharing)
    return communication_seconds((gather,), cluster)
