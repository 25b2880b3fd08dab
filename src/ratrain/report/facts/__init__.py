"""Runs, plans and jobs read into `contents.py`: the only place of this room that knows them."""
