"""What cannot be trained, or not as the recipe says, and why: one small rule per combination.

Each rule cites the code that refuses or ignores the combination (deepspeed 0.19.8, transformers 5.23, bitsandbytes
0.50, peft 0.21, torch 2.13). An error is what those libraries refuse, or what they do otherwise than the estimate
says; a warning is allowed and rarely wanted. Rules are cheap: a search asks them for every recipe.

    engines   ZeRO stages, offload, optimizers
    fsdp      PyTorch's own sharding
    fsdp1     its first version, with flat parameters
    muon      DeepSpeed's Muon
    torchao   torchao's AdamW
    devices   what a card or a processor can do
    liger     what Liger's kernels run on, and for which models
    nemo      NeMo AutoModel's own norms, adapters and checkpoints
    models    attention, checkpoints, types of weights, loss, batch
    adapters  on what there can be none, and their options
    encoder_decoder  models that read with one stack and write with another
    sequences what GPUs that share a sample can do
    tiles     MLPs and gated delta nets of long samples
    batches   rows without padding
    tasks     preferences and rewards (DPO, KTO, GRPO), and what axolotl, ms_swift and others do of them
    references  what their log-probabilities are held to
    own_losses  losses that one trainer has
    reward_models  models that score answers

Looked at and allowed: fp16 in plain PyTorch (trained weights are float32, so GradScaler takes their gradients), paged
and 8-bit optimizers under every ZeRO stage, bitsandbytes on AMD and on CPUs, parameters offloaded without the
optimizer, chunked loss with capped logits (the trainer caps each chunk).
"""

# pyright: reportUnusedImport=false
from vlmplan.rules.adapters import default_lora_exclude
from vlmplan.rules.base import ModelFacts, model_facts
from vlmplan.rules.check import (
    check,
    objection,
    problems,
)
from vlmplan.rules.models import attention_implementations, default_attention, losses
