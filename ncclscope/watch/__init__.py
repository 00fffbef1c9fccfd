"""Watches a job while it runs, and says when its ranks diverge or stop."""
