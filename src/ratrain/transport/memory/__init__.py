"""Memory as peers reach it: registered regions, pages, rows of addresses, mapped segments."""
