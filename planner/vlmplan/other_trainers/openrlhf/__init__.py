"""OpenRLHF: samples and preferences, trained by DeepSpeed with a loop of its own

common   what its programs' options mean alike: the model, the engine, batches, adapters
samples  those of ``openrlhf.cli.train_sft``
pairs    those of ``openrlhf.cli.train_dpo``
scores   those of ``openrlhf.cli.train_rm``
"""
