"""axolotl's configurations: what its keys mean, and the DeepSpeed files that come with it."""
