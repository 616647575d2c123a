"""Numbers of things as sentences have them."""


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun.

    >>> format_count(1, "class", "classes"), format_count(2000, "image")
    ('1 class', '2,000 images')

    Args:
        number: number of things.
        noun: name of one of them.
        plural: name of several of them; "" adds an s.
    """
    return f"1 {noun}" if number == 1 else f"{number:,} {plural or f'{noun}s'}"
