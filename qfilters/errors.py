"""Every error qfilters raises on purpose. The text says what is wrong, both values, what to do."""


class QFiltersError(Exception):
    """A failure the user can act on; the command line prints the text, exit code `exit_code`."""

    exit_code = 1


class UsageError(QFiltersError, ValueError):
    """A bad value or an impossible combination, found before any work is done."""

    exit_code = 2


class FilterError(QFiltersError):
    """A filter artifact that is damaged, or made for another model."""

    exit_code = 2


class ModelError(QFiltersError):
    """A model that cannot be fetched, loaded, or served by the chosen method."""


class QFiltersWarning(UserWarning):
    """Something the user should know while work goes on; the command line prints it as a note."""
