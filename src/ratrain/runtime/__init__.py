"""The program on torch: lanes, ledger, network, states, and the processes that run them."""
