"""The default places of rings and bundles: make, mark, measure and remove what is in them."""
