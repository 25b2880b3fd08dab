"""Files of Grolar (earlier: Zorse): a training configuration, a cluster's description, and a table
of layer times by model, GPU, sequence length and dtype.

Its data parallelism is by stage: a group of GPUs is one pipeline position, and each GPU takes some
micro-batches of every step. In a RATrain plan a replica is a pipeline of fixed ranks. The two are
one where all groups divide the micro-batches alike; other plans are refused.
"""
