"""The model of a plan: loaded, frozen, adapted, every weight with its element type."""
