"""Real vLLM services that hang, or are healthy though they look odd, and what ncclscope says."""
