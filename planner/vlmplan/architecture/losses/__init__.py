"""The output head and the loss: whole or in chunks, and as each trainer computes them

cross_entropy         logits and their cross entropy, whole or chunk by chunk
fused_head            TRL's head, which scores labels in tiles
liger                 Liger's head and cross entropy in one
selective             TRL's log-probabilities before its fused head
log_softmax           LLaMA-Factory's log-probabilities of preferences
selective_odds, tempered
                      ms-swift's ORPO, CPO and SimPO, and its GRPO
axolotl, axolotl_answers, axolotl_odds
                      axolotl's preferences, its GRPO, its ORPO and SimPO
row                   VLM-R1's and R1-V's GRPO, row by row
openrlhf, unsloth, verl
                      those of the trainers that they are called after
"""
