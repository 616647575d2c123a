from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """Return the version of this package, or what is known if it runs from a folder in which it wasn't installed."""
    try:
        return version("dml")
    except PackageNotFoundError:
        return "not installed"
