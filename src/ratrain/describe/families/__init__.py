"""The families of Hugging Face models, one file each."""
