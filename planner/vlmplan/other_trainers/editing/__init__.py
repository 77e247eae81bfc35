"""A configuration's text with other values, every other character as it is

splices      parts of a text replaced
objects      an object of YAML or JSON, changed by key
yaml_text, json_text    where keys and values stand
script_text  the training command of a shell script
engine       the DeepSpeed configuration of a file
keys, accelerate_keys   which keys of a file change for another recipe
patch        the changed texts, and what changed in them
"""
