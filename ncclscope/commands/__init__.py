"""One verb per file; each a class with ``prepare_parser`` and ``run``."""
