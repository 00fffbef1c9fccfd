"""Runs the programs of ``tests/corpus/programs`` and scores what ncclscope says of them."""
