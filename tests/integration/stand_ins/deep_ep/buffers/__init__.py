"""The classes of buffers."""
