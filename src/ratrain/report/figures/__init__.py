"""The parts of a page: each takes its contents and gives HTML, and every figure also a table."""
