"""What the commands share: the model they run, the filters that fit it, the text they read.

Everything is opened once, on first use, from checked settings. Prints nothing; notes are warnings
and `watch(label, total)` gives a progress callback.
"""

import hashlib
import os
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from .commands import CalibrateConfig
from .errors import FilterError, QFiltersWarning, UsageError
from .results import sanitize
from .settings import Settings

FILTERS = Path("artifacts/filters")
RESULTS = Path("artifacts/results")

Watch = Callable[[str, int], Callable[..., None]]


def _quiet(label: str, total: int) -> Callable[..., None]:
    return lambda *args: None


class Session:
    """One command's model, filters and text.

    Args:
        settings: of any command.
        watch: called with (label, total) before long work; returns what is called with
            (done, total, ...) as it goes on.
    """

    def __init__(self, settings: Settings, watch: Watch = _quiet):
        self.settings = settings
        self.watch = watch

    @cached_property
    def _loaded(self):
        # It says that PyTorch is missing, and warns of texts that are cut into rows here anyway.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        from transformers.utils import logging

        from .models import load

        logging.set_verbosity_error()
        s = self.settings
        return load(
            s.model,
            adapter_path=s.adapter_path,
            trust_remote_code=s.trust_remote_code,
            dtype=s.dtype,
        )

    @property
    def model(self):
        """The mlx-lm model."""
        return self._loaded[0]

    @property
    def tokenizer(self):
        """Its tokenizer."""
        return self._loaded[1]

    @cached_property
    def bare_tokenizer(self):
        """The tokenizer alone, for work that needs no weights."""
        from .models import load_tokenizer

        return load_tokenizer(self.settings.model, self.settings.trust_remote_code)

    @property
    def model_id(self) -> str:
        """The model's name in artifacts: alias or hub id, of a path the folder's name."""
        path = Path(self.settings.model).expanduser()
        name = path.resolve().name if path.exists() else self.settings.model
        adapter = self.settings.adapter_path
        return f"{name}+{Path(adapter).resolve().name}" if adapter else name

    def rows(self, split: str) -> tuple[list[list[int]], dict]:
        """Token rows of the settings' text, and what identifies them: name, sha256, seed."""
        from .text import load_corpus, token_rows

        s = self.settings
        corpus = load_corpus(s.data_path, split, s.text_field)
        rows = token_rows(corpus, self.tokenizer, s.num_samples, s.sequence_length, s.seed)
        return rows, {"name": corpus.name, "sha256": corpus.sha256, "seed": s.seed}

    def calibrated(self):
        """Filters of this model from the settings' text (a `CalibrateConfig`)."""
        from .calibration import calibrate

        rows, corpus = self.rows("calibration")
        return calibrate(
            self.model,
            self.tokenizer,
            rows,
            model_id=self.model_id,
            corpus=corpus,
            step_size=self.settings.step_size,
            progress=self.watch("calibrating", len(rows)),
        )

    @cached_property
    def named_filters(self):
        """The filters the settings name, read but not yet checked against the model, or None."""
        from .filters import Filters

        return Filters.load(self.settings.filters) if self.settings.filters else None

    @cached_property
    def filters(self):
        """The filters named by the settings, else those in `artifacts/filters`, else new ones.

        Raises:
            FilterError: the named file does not fit, or none fits and calibrating was ruled out.
        """
        from .filters import Filters
        from .plan import fingerprint

        if found := self.named_filters:
            found.check(self.model, self.model_id)
            return found
        wanted, tried = fingerprint(self.model), []
        for path in sorted(FILTERS.glob(f"{sanitize(self.model_id)}*.npz")):
            found = Filters.load(path)
            if found.metadata.get("fingerprint") == wanted:
                found.check(self.model)
                return found
            tried.append(path)
        if not self.settings.auto_calibrate:
            raise FilterError(
                f"no filters in {FILTERS} fit {self.model_id} (fingerprint {wanted[:12]}, "
                f"{len(tried)} looked at). Run: qfilters calibrate --model {self.settings.model}"
            )
        return self._auto_calibrate(wanted, tried)

    def note_own_text(self, corpus: dict, what: str) -> None:
        """Warn when the filters were made from the very text, as `rows` names it, of a result."""
        if self.filters.metadata.get("corpus", {}).get("sha256") == corpus["sha256"]:
            text = f"the filters were calibrated on the text they are {what} on, {corpus['name']}"
            warnings.warn(text, QFiltersWarning, stacklevel=3)

    def note_reach(self, tokens: int) -> None:
        """Warn when texts of `tokens` tokens go beyond the positions the filters were made at."""
        made = self.filters.metadata.get("sequence_length")
        if made and tokens > made:
            text = (
                f"the filters were made from sequences of up to {made} tokens, this goes to "
                f"{tokens}: the rotary embedding turns queries with their position, so filters "
                f"from longer ones rank better (qfilters calibrate --sequence-length {tokens})"
            )
            warnings.warn(text, QFiltersWarning, stacklevel=3)

    def _auto_calibrate(self, wanted, tried):
        from .config import resolve

        s = self.settings
        flags = {
            "model": s.model,
            "adapter_path": s.adapter_path,
            "trust_remote_code": s.trust_remote_code,
            "dtype": s.dtype,
        }
        settings = resolve(CalibrateConfig, None, flags)
        other = Session(settings, self.watch)
        other._loaded = self._loaded
        path = filters_path(self.model_id, wanted if tried else None)
        text = (
            f"no filters for {self.model_id} in {FILTERS}: calibrating on {settings.num_samples} x "
            f"{settings.sequence_length} tokens of the built-in text, kept as {path}"
        )
        warnings.warn(text, QFiltersWarning, stacklevel=3)
        made = other.calibrated()
        made.save(path)
        return made


def filters_path(model_id: str, other_than: str | None = None) -> Path:
    """Where calibrated filters are kept; `other_than` is a fingerprint that names a second file."""
    suffix = f"-{other_than[:8]}" if other_than else ""
    return FILTERS / f"{sanitize(model_id)}{suffix}.npz"


def filters_sha256(filters) -> str:
    """Hash of what the filters rank by."""
    return hashlib.sha256(filters.q_filters.tobytes()).hexdigest()


def check_methods(specs) -> list:
    """Build every method named by the settings, before a model is loaded.

    Raises:
        UsageError: unknown method or option, with what is known.
    """
    from .methods import make_method

    made = [make_method(*spec) for spec in specs]
    if not made:
        raise UsageError("no method is named: give at least one with --method")
    return made
