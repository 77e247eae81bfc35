"""LLaMA-Factory's configurations, and the DeepSpeed files that come with it."""
