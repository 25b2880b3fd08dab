"""Token streams of real text: read, tokenised once, packed, shuffled by a seed, exactly resumable.

Read in this order: tokenizer, sources, documents, prepare, store, order, samples.
"""
