"""Scripts that makers and users of vision-language models publish around Hugging Face's Trainer, with keys of their
own."""
