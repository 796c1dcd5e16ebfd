"""qfilters doctor: what this machine offers, what falls back and why."""

from .console import out


def doctor() -> None:
    """Print versions, device, BLAS with a measured speed, kernel path, cache folder, fallbacks."""
    from ..doctor import diagnose

    for fact in diagnose():
        out(f"{fact.name:<20}{fact.value}{f'  ({fact.note})' if fact.note else ''}")
