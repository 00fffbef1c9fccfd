"""One page with everything: ``ncclscope report``."""
