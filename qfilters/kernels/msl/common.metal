// Shared by all kernels. Everything works on bits or with fma, so no math mode can change it.

static constant constexpr int QF_PROTECTED = 0x7FFFFFFF;
static constant constexpr int QF_NAN = -0x7FFFFFFF - 1;

// A score as a rank: the same order on integers, NaN lowest, -0 equal to +0.
inline int qf_rank(float score) {
  const uint bits = as_type<uint>(score);
  const uint size = bits & 0x7FFFFFFFu;
  if (size > 0x7F800000u) return QF_NAN;
  return bits == size || size == 0u ? int(size) : ~int(size);
}

// The rank of a row in force: the first `sinks` positions and those from `limit` on are protected.
inline int qf_lift(int rank, int position, int sinks, int limit) {
  return position >= sinks && position < limit ? rank : QF_PROTECTED;
}

// The rank in force as an unsigned number in the same order.
inline uint qf_key(int rank, int position, int sinks, int limit) {
  return uint(qf_lift(rank, position, sinks, limit)) ^ 0x80000000u;
}

// Whether one row goes before another: lower rank, among equals the higher position.
inline bool qf_worse(int rank, int position, int other_rank, int other_position) {
  return rank < other_rank || (rank == other_rank && position > other_position);
}

// Whether rows can be read four elements at a time: all of them begin at multiples of four.
template <typename T>
inline bool qf_wide(const device T* rows, uint size, int64_t batch_stride, int64_t head_stride,
                    int64_t row_stride, int64_t stride) {
  return size % 4 == 0 && stride == 1 && batch_stride % 4 == 0 && head_stride % 4 == 0 &&
         row_stride % 4 == 0 && (ulong)rows % (4 * sizeof(T)) == 0;
}

// sum + row[0] * weights[0] + ..., in this order, of four elements or as many as are left.
template <typename T>
inline float qf_add4(const device T* row, int64_t stride, uint left, bool wide,
                     const thread float* weights, float sum) {
  if (wide) {
    const vec<T, 4> x = *(const device vec<T, 4>*)row;
    sum = fma(float(x.x), weights[0], sum);
    sum = fma(float(x.y), weights[1], sum);
    sum = fma(float(x.z), weights[2], sum);
    return fma(float(x.w), weights[3], sum);
  }
  for (uint i = 0; i < min(left, 4u); ++i) sum = fma(float(row[i * stride]), weights[i], sum);
  return sum;
}

// The sum over a simdgroup, in every lane. Not simd_sum, whose order of additions is not specified.
inline float qf_sum(float x) {
  for (ushort mask = 16; mask > 0; mask >>= 1) x += simd_shuffle_xor(x, mask);
  return x;
}
