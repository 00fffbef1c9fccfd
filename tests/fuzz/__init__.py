"""Damaged and hostile input, made at random: ``make fuzz``."""
