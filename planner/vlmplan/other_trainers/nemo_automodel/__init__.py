"""NeMo AutoModel: its recipes of supervised fine-tuning, trained by FSDP2 or DDP with a loop of its own"""
