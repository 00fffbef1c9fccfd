"""Commands, one file for each: a class with ``prepare_parser`` and ``run``."""
