// A decoded token whose rank is known: name the row that goes after it.
//
// As `replace`, for scores that are not one projection.
//
// now = (position of the new row, sinks, limit)
// grid (B * H * 256, 1, 1), threadgroup (256, 1, 1)
const uint id = thread_index_in_threadgroup;
const uint lane = thread_index_in_simdgroup;
const uint group = simdgroup_index_in_threadgroup;
const uint bh = threadgroup_position_in_grid.x;
const uint H = uint(ranks_shape[1]);
const uint S = uint(ranks_shape[2]);
const uint b = bh / H;
const uint h = bh % H;
const int freed = slot[b * slot_strides[0] + h * slot_strides[1]];
const int new_rank = new_ranks[b * new_ranks_strides[0] + h * new_ranks_strides[1]];
#include "worst.metal"
