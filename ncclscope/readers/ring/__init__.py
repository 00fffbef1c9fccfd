"""Rings -> ranks, read without taking all their calls apart."""
