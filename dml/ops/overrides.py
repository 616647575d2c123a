def key_of(override: str) -> str:
    """Return the key of an override: ``+loss.margin=0.2`` -> ``loss.margin``."""
    return override.partition("=")[0].lstrip("+~")
