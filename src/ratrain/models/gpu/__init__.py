"""What a layer does on a GPU, in Triton."""
