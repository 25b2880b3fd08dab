"""`python -m ratrain`: the command line, where the command itself is not on the PATH."""

from ratrain.cli.start import main

main()
