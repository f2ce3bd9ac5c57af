"""How much of each language a mixture takes."""

from collections.abc import Mapping

# google-research/bert, multilingual.md.
_SMOOTHING = 0.7


def smoothed_passes(sizes: Mapping[str, float]) -> dict[str, float]:
    """Passes over each language, one on average, that give it its smoothed share of the whole.

    A share is taken to the power of 0.7, and all of them are brought to one whole again: rare languages are seen more
    often than they are written, and the frequent ones less.

    Args:
        sizes: How much text there is of each language, above 0.

    Example:

    ```python
    smoothed_passes({"en": 900, "is": 100})   # {'en': 0.915, 'is': 1.769}: 82 % and 18 %, where it was 90 % and 10 %
    ```
    """
    total = sum(sizes.values())
    shares = {name: size / total for name, size in sizes.items()}
    smoothed = {name: share**_SMOOTHING for name, share in shares.items()}
    return {name: smoothed[name] / sum(smoothed.values()) / share for name, share in shares.items()}
