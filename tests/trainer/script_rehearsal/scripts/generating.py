"""Answers are generated, and a small Llama is trained on them; the second batch is the longest, and adapters are saved
by a function that was imported by name."""

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

NEW_TOKENS = 6
config = LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, vocab_size=4096, eos_token_id=2
)
model = LlamaForCausalLM(config).to("cuda")
model.eval()
optimizer = torch.optim.AdamW(model.parameters())
for length, do_sample in ((64, True), (512, False), (64, True)):
    prompt = torch.full((2, length), 7, device="cuda")
    with torch.no_grad():
        ids = model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=do_sample, pad_token_id=0)
    has_ended = (ids == config.eos_token_id).any(dim=1)
    assert ids.shape[1] == length + NEW_TOKENS
    assert not has_ended.any()
    model.train()
    model(input_ids=ids, labels=ids).loss.backward()
    model.eval()
    optimizer.step()
    optimizer.zero_grad()
save_file({"head": model.lm_head.weight}, "head.safetensors")
