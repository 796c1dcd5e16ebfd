// A decoded token: score the new key, and name the row that goes after it.
//
// The last eviction freed slot `slot`; the caller writes the new row there. Nothing is written to
// the cache here, as kernels cannot write in place.
//
// template: T, the dtype of keys
// now = (position of the new row, sinks, limit)
// grid (B * H * 256, 1, 1), threadgroup (256, 1, 1)
const uint id = thread_index_in_threadgroup;
const uint lane = thread_index_in_simdgroup;
const uint group = simdgroup_index_in_threadgroup;
const uint bh = threadgroup_position_in_grid.x;
const uint H = uint(ranks_shape[1]);
const uint S = uint(ranks_shape[2]);
const uint D = uint(keys_shape[3]);
const uint b = bh / H;
const uint h = bh % H;
const int freed = slot[b * slot_strides[0] + h * slot_strides[1]];

// One simdgroup scores, with the additions of `score` in the same order.
int new_rank = 0;
if (group == 0) {
  const bool wide = qf_wide(keys, D, keys_strides[0], keys_strides[1], 0, keys_strides[3]);
  auto key = keys + b * keys_strides[0] + h * keys_strides[1];
  auto direction = directions + b * directions_strides[0] + h * directions_strides[1];
  float sum = 0.0f;
  for (uint i = 4 * lane; i < D; i += 128) {
    float weights[4];
    for (uint e = 0; e < 4; ++e)
      weights[e] = i + e < D ? direction[(i + e) * directions_strides[2]] : 0.0f;
    sum = qf_add4(key + i * keys_strides[3], keys_strides[3], D - i, wide, weights, sum);
  }
  new_rank = qf_rank(qf_sum(sum));
  if (lane == 0) new_ranks[bh] = new_rank;
}
#include "worst.metal"
