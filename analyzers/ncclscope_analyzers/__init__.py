"""The analyzers that ncclscope ships, each found by its entry point."""
