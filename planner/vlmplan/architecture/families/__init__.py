"""Families: one file per kind of model, from ``config.json`` to the module tree

A file is called as transformers calls the model, and begins with how it differs from a relative that is described
elsewhere. Read ``llama`` first: most decoders are made of its parts. What several families share:

build, text, towers   which file describes a model_type: of a whole model, a language model, a vision tower
residual_layers, held_weights, partial_rotary, head_widths
                      layers under other names; what a model holds between layers; positions on a part of each head;
                      numbers of heads that transformers refuses
moe, group_router, clamped_experts, grouped_projection
                      experts as Mixtral has them and as DeepSeek-V3 does, those with clamped gates, matmuls by group
latent_attention, sparse_attention, compressed_attention, block_indexer
                      attention of DeepSeek-V2, V3.2 and V4, and of Qwen4-Exp
gated_delta, kimi_delta, lightning, selective_mixer, state_space, chunk_scan
                      linear attention, and the mixers of Mamba and Mamba-2
hyper_connections, gated_residual, ngram_embedding
                      several residual streams, and embeddings of several tokens together
image_text, vision_tower, packed_patches, idefics, qformer
                      models that see: a tower before a decoder, patches of all images in one row, tiles, queries
omni_thinker, omni_audio
                      models that hear too
"""

# pyright: reportUnusedImport=false
from vlmplan.architecture.families.build import FAMILIES, NO_MODEL_TYPE, build_model, has_family
