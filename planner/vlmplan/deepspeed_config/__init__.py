"""The ds_config.json of a recipe, and the recipe of a ds_config.json. Checked against DeepSpeed 0.19.8."""

# pyright: reportUnusedImport=false
from vlmplan.deepspeed_config.auto import auto_text
from vlmplan.deepspeed_config.content import KEYS, NEVER_PLANNED
from vlmplan.deepspeed_config.file import DsConfig, notes_beside, settings_from_ds_config
from vlmplan.deepspeed_config.keys import Effect, Key
from vlmplan.deepspeed_config.lookup import find_key
from vlmplan.deepspeed_config.merge import (
    batch_sizes,
    fixed_by_file,
    merged_recipe,
    with_keys_of_file,
)
from vlmplan.deepspeed_config.write import deepspeed_config
