"""Watch a running job, and report when its ranks diverge or hang."""
