"""How a batch is computed in shards: replicas of the model, their threads, autograd, transfers."""
