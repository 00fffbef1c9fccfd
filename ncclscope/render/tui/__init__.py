"""Live view of ``ncclscope watch``: terminal, keys, lists and panes."""
