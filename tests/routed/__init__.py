"""A small engine for tests of routed experts, and what it is held against."""
