"""ms-swift's configurations, the data that it names, and the DeepSpeed files that it knows by name."""
