// MLX's own overloads constructors by address space, which plain C++ cannot express.
#pragma once
#include "mlx/backend/metal/kernels/bf16.h"

template <typename T>
struct complex_t {
  using value_type = T;
  T real, imag;
  constexpr complex_t(T r, T i) : real(r), imag(i) {}
  constexpr complex_t() : real(0), imag(0) {}
  constexpr complex_t(float r) : real(r), imag(0) {}
};
typedef complex_t<float> complex64_t;
