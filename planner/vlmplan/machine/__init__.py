"""This machine: its GPUs through NVML, its processor and memory."""
