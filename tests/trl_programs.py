"""Programs that train with TRL as their authors write them, for tests."""

BY_NAME = """\
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

model_id, output_dir = "Qwen/Qwen2.5-0.5B-Instruct", "out"
trainer = SFTTrainer(
    model=model_id,
    args=SFTConfig(
        output_dir=output_dir,
        max_length=512,
        per_device_train_batch_size=2,
        model_init_kwargs={"dtype": "bfloat16", "use_cache": False},
    ),
    train_dataset=dataset,
    peft_config=LoraConfig(r=16, target_modules="all-linear"),
)
trainer.train()
"""
QLORA = """\
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

model_id = "Qwen/Qwen2.5-0.5B-Instruct"
bits = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_use_double_quant=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_compute_dtype=torch.bfloat16,
)
model = AutoModelForCausalLM.from_pretrained(
    model_id, quantization_config=bits, device_map="auto", torch_dtype=torch.bfloat16
)
tokenizer = AutoTokenizer.from_pretrained(model_id)
model = prepare_model_for_kbit_training(model)
adapters = LoraConfig(
    r=64, lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj"], bias="none", task_type="CAUSAL_LM"
)
model = get_peft_model(model, adapters)
arguments = SFTConfig(
    output_dir=made_up(),
    per_device_train_batch_size=16,
    optim="paged_adamw_32bit",
    bf16=True,
    max_length=4096,
)
trainer = SFTTrainer(model=model, args=arguments, train_dataset=dataset, processing_class=tokenizer)
trainer.train()
"""
