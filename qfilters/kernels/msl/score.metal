// scores[b,h,n] = sum over i of keys[b,h,n,i] * directions[b,h,i], accumulated in fp32.
//
// A simdgroup takes ROWS rows, so that it loads the direction once for all of them. A lane owns
// elements 4 * lane to 4 * lane + 3 of every 128, however wide its loads are, and the lanes are
// added up in a fixed order. So a row's score has the same bits alone, in any chunk, in any layout
// and in `replace`.
//
// template: T, the dtype of keys
// grid (32, ceil(N / ROWS), B * H), threadgroup (32, 8, 1)
constexpr uint ROWS = 4;
const uint lane = thread_index_in_simdgroup;
const uint first = thread_position_in_grid.y * ROWS;
const uint bh = thread_position_in_grid.z;
const uint H = uint(keys_shape[1]);
const uint N = uint(keys_shape[2]);
const uint D = uint(keys_shape[3]);
if (first >= N) return;  // the grid may be rounded up

const bool wide = qf_wide(keys, D, keys_strides[0], keys_strides[1], keys_strides[2],
                          keys_strides[3]);
auto rows = keys + (bh / H) * keys_strides[0] + (bh % H) * keys_strides[1];
auto direction = directions + (bh / H) * directions_strides[0] + (bh % H) * directions_strides[1];

float sums[ROWS];
for (uint r = 0; r < ROWS; ++r) sums[r] = 0.0f;
for (uint i = 4 * lane; i < D; i += 128) {
  float weights[4];
  for (uint e = 0; e < 4; ++e)
    weights[e] = i + e < D ? direction[(i + e) * directions_strides[2]] : 0.0f;
  for (uint r = 0; r < ROWS; ++r) {
    const uint n = min(first + r, N - 1);  // behind the last row: read that one again
    auto row = rows + n * keys_strides[2] + i * keys_strides[3];
    sums[r] = qf_add4(row, keys_strides[3], D - i, wide, weights, sums[r]);
  }
}
for (uint r = 0; r < ROWS; ++r) {
  const float sum = qf_sum(sums[r]);
  if (lane == 0 && first + r < N) scores[ulong(bh) * N + first + r] = sum;
}
