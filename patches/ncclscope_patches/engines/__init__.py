"""Patches for other engines: names of groups and steps of DeepSpeed, Megatron-core and SGLang."""
