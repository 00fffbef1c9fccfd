"""Transfers between engines: both ends joined, and the reason why one does not end."""
