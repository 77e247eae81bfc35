"""Bytes: what one GPU, a host and a disk hold in every phase of a run

timeline              the phases of a run, from an engine's walk and a trace
phases, peaks         a phase and its peak by component
evaluation, evaluated_preferences, evaluated_answers
                      phases of evaluations
rollout, inference_engine
                      GRPO's phases before the steps that train, and vLLM's part
resume, lasting       reading a checkpoint; what is there through all steps
ranks                 the rank with the highest peak
device, overhead      from tensors to what nvidia-smi shows: reserve, CUDA context, NCCL, and whether it fits
host, disk            a node's memory, and its disk
allocator             torch's caching allocator
reservation, replayed_steps, rollout_reservation, precomputed_reference
                      what it reserves: which steps are replayed through it, those of tasks too
blocks, lasting_blocks, gathered_blocks, sharded_copy, step_batches, forwards_alone, head_reads, replayed_tokens
                      what is replayed: tensors of engines, of a second model, of batches, of forwards alone
first_reads           heads that the first forward of all reads, with their shards from the host
reserved_peaks        what replays found, kept by setup
"""
