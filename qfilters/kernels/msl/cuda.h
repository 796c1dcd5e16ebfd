// The words of the Metal Shading Language that our kernels use, in CUDA's terms.
//
// Asked of the kernels: simdgroups of 32 lanes, scalars as arrays of one element, and guards of
// their own, as MLX rounds the grid up to whole blocks here.
#define QF_INLINE static __device__ __forceinline__

// Macros, because system headers may have types of these names, and types, to write uint(x).
typedef unsigned short qf_ushort;
typedef unsigned int qf_uint;
typedef unsigned long long qf_ulong;
#define ushort qf_ushort
#define uint qf_uint
#define ulong qf_ulong

template <typename T, int N>
struct vec;
template <typename T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
};

template <typename To, typename From>
QF_INLINE To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

QF_INLINE uint qf_index() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
QF_INLINE uint3 qf_position() {
  return make_uint3(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,
                    blockIdx.z * blockDim.z + threadIdx.z);
}
#define thread_position_in_grid qf_position()
#define threadgroup_position_in_grid blockIdx
#define threads_per_threadgroup blockDim
#define thread_index_in_threadgroup qf_index()
#define thread_index_in_simdgroup (qf_index() & 31u)
#define simdgroup_index_in_threadgroup (qf_index() >> 5)
#define simdgroups_per_threadgroup ((blockDim.x * blockDim.y * blockDim.z + 31u) >> 5)

enum class mem_flags { mem_threadgroup };
QF_INLINE void threadgroup_barrier(mem_flags) { __syncthreads(); }

template <typename T>
QF_INLINE T simd_shuffle_xor(T value, ushort mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}
QF_INLINE uint simd_prefix_exclusive_sum(uint value) {
  const uint lane = qf_index() & 31u;
  uint sum = value;
  for (uint delta = 1; delta < 32; delta <<= 1) {
    const uint other = __shfl_up_sync(0xFFFFFFFFu, sum, delta);
    if (lane >= delta) sum += other;
  }
  return sum - value;
}

struct atomic_uint {
  uint value;
};
#define memory_order_relaxed 0
QF_INLINE void atomic_store_explicit(atomic_uint* p, uint value, int) {
  *(volatile uint*)&p->value = value;
}
QF_INLINE uint atomic_load_explicit(const atomic_uint* p, int) {
  return *(const volatile uint*)&p->value;
}
QF_INLINE uint atomic_fetch_add_explicit(atomic_uint* p, uint value, int) {
  return atomicAdd(&p->value, value);
}

