// Copies the rows kept[b,h,:] of keys, values, ranks and positions, in that order.
//
// One thread per four elements of a key and of a value.
//
// template: T, U, the dtypes of keys and values
// grid (ceil(max(D, D_v) / 4), K, B * H), threadgroup (up to 32, 8, 1)
const uint i = thread_position_in_grid.x * 4;
const uint j = thread_position_in_grid.y;
const uint bh = thread_position_in_grid.z;
const uint H = uint(keys_shape[1]);
const uint D = uint(keys_shape[3]);
const uint DV = uint(values_shape[3]);
const uint K = uint(kept_shape[2]);
if (j >= K) return;  // the grid may be rounded up

const uint b = bh / H;
const uint h = bh % H;
const ulong to = ulong(bh) * K + j;
const int from = kept[b * kept_strides[0] + h * kept_strides[1] + j * kept_strides[2]];
if (i == 0) {
  ranks_out[to] = ranks[b * ranks_strides[0] + h * ranks_strides[1] + from * ranks_strides[2]];
  positions_out[to] = positions[b * positions_strides[0] + h * positions_strides[1] +
                                from * positions_strides[2]];
}

const bool wide_keys = qf_wide(keys, D, keys_strides[0], keys_strides[1], keys_strides[2],
                               keys_strides[3]);
auto key = keys + b * keys_strides[0] + h * keys_strides[1] + from * keys_strides[2];
if (wide_keys && i < D)
  *(device vec<T, 4>*)(keys_out + to * D + i) = *(const device vec<T, 4>*)(key + i);
else
  for (uint e = i; e < D && e < i + 4; ++e)
    keys_out[to * D + e] = key[e * keys_strides[3]];

const bool wide_values = qf_wide(values, DV, values_strides[0], values_strides[1],
                                 values_strides[2], values_strides[3]);
auto value = values + b * values_strides[0] + h * values_strides[1] + from * values_strides[2];
if (wide_values && i < DV)
  *(device vec<U, 4>*)(values_out + to * DV + i) = *(const device vec<U, 4>*)(value + i);
else
  for (uint e = i; e < DV && e < i + 4; ++e)
    values_out[to * DV + e] = value[e * values_strides[3]];
