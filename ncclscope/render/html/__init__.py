"""The HTML page of ``ncclscope report``."""
