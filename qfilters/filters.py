"""The filter artifact: one `.npz` per model, checked when it is read and when it meets a model.

The same input gives the same bytes: there are no timestamps inside.
"""

import io
import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .errors import FilterError, QFiltersWarning
from .files import atomic_write

SCHEMA_VERSION = 1
ARRAYS = {
    "q_filters": ("float32", 3),
    "layer_index": ("int32", 1),
    "query_mean": ("float32", 3),
    "explained_energy": ("float32", 2),
    "mean_projection": ("float32", 2),
    "other_projection": ("float32", 2),
}


@dataclass(frozen=True)
class Filters:
    """One direction per KV head, oriented so that `score = k . filter` and higher means keep.

    Attributes:
        q_filters: float32 `[n, H_kv, D]`, unit length; n = layers that can evict.
        layer_index: int32 `[n]`, places of those layers in the model's cache list.
        query_mean: float32 `[n, H, D]`.
        explained_energy, mean_projection, other_projection: float32 `[n, H]`, see `Drift`.
        metadata: model id, fingerprint, corpus and its hash, counts, versions. Published filters
            have no fingerprint and no arrays but `q_filters` and `layer_index`.
    """

    q_filters: np.ndarray
    layer_index: np.ndarray
    query_mean: np.ndarray | None = None
    explained_energy: np.ndarray | None = None
    mean_projection: np.ndarray | None = None
    other_projection: np.ndarray | None = None
    metadata: dict = field(default_factory=dict)

    def save(self, path: str | Path) -> Path:
        """Write the artifact atomically; the parent folder is made if needed.

        Raises:
            FilterError: what `load` would refuse, published filters among it.
        """
        held = {name: getattr(self, name) for name in ARRAYS}
        arrays = {name: array for name, array in held.items() if array is not None}
        if fault := _fault(arrays):
            raise FilterError(f"these filters cannot be saved as an artifact: {fault}")
        meta = json.dumps(self.metadata, sort_keys=True, ensure_ascii=False).encode()
        buffer = io.BytesIO()
        np.savez(buffer, **arrays, metadata=np.frombuffer(meta, dtype=np.uint8))
        return atomic_write(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "Filters":
        """Read an artifact, or published filters (`.safetensors`, negated on the hub).

        Raises:
            FilterError: not there, damaged, of another schema, or not finite.
        """
        path = Path(path)
        if path.is_dir():
            raise FilterError(f"{path} is a folder: name the filter file in it")
        if not path.is_file():
            raise FilterError(f"no filters at {path}: make them with `qfilters calibrate`")
        if path.suffix == ".safetensors":
            return _load_published(path)
        return _load_npz(path)

    def layer(self, index: int) -> dict:
        """The rows of one layer as arrays of the device: `q_filters` and `query_mean`."""
        import mlx.core as mx

        row = int(np.flatnonzero(self.layer_index == index)[0])
        mean = None if self.query_mean is None else mx.array(self.query_mean[row])
        return {"q_filters": mx.array(self.q_filters[row]), "query_mean": mean}

    def check(self, model, model_id: str | None = None) -> None:
        """Refuse a model these filters were not made for.

        Args:
            model: an mlx-lm model.
            model_id: its name; when only the name differs, that is noted and accepted.

        Raises:
            FilterError: layers, shapes or fingerprint differ.
        """
        from .plan import evicting_layers, fingerprint

        layers = evicting_layers(model, need_queries=True, what="filters")
        ours = (self.layer_index.tolist(), {self.q_filters.shape[1:]})
        theirs = ([p.index for p in layers], {(p.n_kv_heads, p.head_dim) for p in layers})
        made_for = self.metadata.get("model", "another model")
        remedy = "Run: qfilters calibrate --model ..."
        if ours != theirs:
            raise FilterError(
                f"the filters were made for {made_for} ({_sizes(*ours)}), but the model has "
                f"{_sizes(*theirs)}. {remedy}"
            )
        expected, found = self.metadata.get("fingerprint"), fingerprint(model)
        if expected is None:
            note = "published filters carry no fingerprint: only their shape was checked"
            warnings.warn(note, QFiltersWarning, stacklevel=2)
        elif expected != found:
            raise FilterError(
                f"the filters were made for {made_for} (fingerprint {expected[:12]}), but the "
                f"model's fingerprint is {found[:12]}: same shape, other weights. {remedy}"
            )
        elif model_id is not None and model_id != made_for:
            note = f"the filters were made for {made_for}; {model_id} has the same fingerprint"
            warnings.warn(note, QFiltersWarning, stacklevel=2)


def _sizes(layers, shapes):
    heads = " or ".join(f"{h} KV heads, head_dim {d}" for h, d in sorted(shapes))
    return f"{len(layers)} layers that evict, {layers[0]} to {layers[-1]}, {heads}"


def _load_npz(path: Path) -> Filters:
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as data:
            arrays = dict(data)
        if "metadata" not in arrays:
            raise ValueError("it has no array 'metadata'")
        metadata = json.loads(arrays.pop("metadata").tobytes())
        version = metadata.get("schema_version")
    except Exception as error:  # damaged bytes break zip, numpy and json anywhere
        reason = " ".join(str(error).split())
        raise FilterError(f"{path} cannot be read as a filter artifact: {reason}") from error
    if version != SCHEMA_VERSION:
        raise FilterError(
            f"{path} has schema version {version}, this qfilters reads {SCHEMA_VERSION}. "
            "Run: qfilters calibrate --model ..."
        )
    if fault := _fault(arrays):
        raise FilterError(f"{path} is not a filter artifact to rely on: {fault}")
    return Filters(**{name: arrays[name] for name in ARRAYS}, metadata=metadata)


def _fault(arrays: dict) -> str | None:
    """What is wrong with the arrays of an artifact, if anything."""
    for name, (dtype, rank) in ARRAYS.items():
        if name not in arrays:
            return f"it has no array '{name}'"
        if arrays[name].dtype != dtype or arrays[name].ndim != rank:
            found = f"{arrays[name].dtype} of rank {arrays[name].ndim}"
            return f"'{name}' is {found}, expected {dtype} of rank {rank}"
    layers, n_kv_heads, size = arrays["q_filters"].shape
    heads = arrays["query_mean"].shape[1]
    if not arrays["q_filters"].size or heads % n_kv_heads:
        return f"{layers} layers, {heads} query heads, {n_kv_heads} KV heads, head_dim {size}"
    expected = {"q_filters": (layers, n_kv_heads, size), "layer_index": (layers,)}
    expected["query_mean"] = (layers, heads, size)
    for name in ARRAYS:
        shape = expected.get(name, (layers, heads))
        if arrays[name].shape != shape:
            return f"'{name}' has shape {arrays[name].shape}, expected {shape}"
        if not np.isfinite(arrays[name]).all():
            return f"'{name}' holds values that are not finite"
    return None


def _load_published(path: Path) -> Filters:
    """Filters as their authors publish them: `q_filters` `[n, H_kv, D]`, negated, any length."""
    import mlx.core as mx

    try:
        arrays = mx.load(str(path))
    except RuntimeError as error:
        raise FilterError(f"{path} cannot be read as safetensors: {error}") from error
    if "q_filters" not in arrays or arrays["q_filters"].ndim != 3 or not arrays["q_filters"].size:
        raise FilterError(f"{path} holds no array 'q_filters' of rank 3")
    filters = -np.array(arrays["q_filters"].astype(mx.float32))
    length = np.linalg.norm(filters, axis=-1, keepdims=True)
    if not np.isfinite(filters).all() or (length == 0).any():
        raise FilterError(f"{path}: 'q_filters' holds zero vectors or values that are not finite")
    layers = np.arange(len(filters), dtype=np.int32)
    metadata = {"schema_version": SCHEMA_VERSION, "model": path.parent.name or path.stem}
    return Filters(q_filters=filters / length, layer_index=layers, metadata=metadata)
