"""Embedding of many images: in parts, by several machines, and so that an interrupted command goes on."""
