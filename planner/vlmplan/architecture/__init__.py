"""The model as a tree of modules, and one micro batch through it on symbolic tensors

``build_model`` of ``families`` makes the tree, ``prepare`` what a recipe makes of it, ``Model.run`` takes a micro batch
through it and leaves a ``Trace``.

What is said of a model:
config, config_types, impossible_config, rotated_sections, compressed_layers
                      config.json: read, and what transformers refuses of it
images, audio, captured
                      what an image and a sound become, by rules and as captured from transformers

The tree:
model, causal_lm, reward_model
                      the whole model, with the head and the loss behind it
modules, parameter, named_parameters
                      building blocks, weights, and their names in order
attention, attention_backend, attention_kernels, sequence_parallel
                      attention as families call it, and the kernel that runs
families              one file per kind of model
generic               the tree of a model without a family
prepare, adapters, adapter_names, parameter_adapters, dora, packed_weight, int8_weight, liger_layers, tiled_mlp
                      a tree as a recipe has it: frozen, adapted, packed, with other kernels

The micro batch:
batch, packed_lengths
                      its shape
ops, indexing         operations: what each allocates, saves and computes
tape, recorder, storage, storage_log, module_log
                      what records them: bytes that live, saved tensors, work; by storage and by module too
tensor, trace         symbolic tensors, and the memory events and work that are left
first_layer, reused_layers, layer_calls, loop_recorder
                      equal layers and turns of loops, of which one stands for all
backward_visit        the module that backward is in
checkpointing, checkpoint_recorder, recomputation, unreleased, early_gradients, input_gradients
                      activation checkpointing
containers, empty_calls, leaf_module, read_weights
                      modules as ZeRO-3 sees them
losses                one file per way to compute head and loss: whole, in chunks, or as another trainer does
evaluation, reference, encoder_first, model_outputs
                      forwards without gradients, and what a model returns besides logits
"""
