"""flash-attn for scripts that import it themselves."""

import importlib.util
import sys
from importlib import import_module

from vlmplan_trainer.rehearse import flash
from vlmplan_trainer.script_rehearsal.flash_package import flash_attn_package


def test_scripts_import_flash_attn_by_the_names_of_the_package():
    before = "flash_attn" in sys.modules
    with flash_attn_package():
        assert importlib.util.find_spec("flash_attn") is not None
        assert import_module("flash_attn").flash_attn_func is flash.flash_attn_func
        interface = import_module("flash_attn.flash_attn_interface")
        assert interface.flash_attn_varlen_func is flash.flash_attn_varlen_func
        padding = import_module("flash_attn.bert_padding")
        assert all(callable(getattr(padding, name)) for name in ("index_first_axis", "pad_input", "unpad_input"))
    assert ("flash_attn" in sys.modules) == before
