"""Compare each call with those of peers on this host before it is made."""
