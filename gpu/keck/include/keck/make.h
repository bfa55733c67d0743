// The functions that make a tensor. Stands in for ATen/Functions.h, without those that compute.
#pragma once

#include "keck/tensor.h"

namespace keck {

// A new tensor as its options ask for it.
inline at::Tensor made(at::Tensor tensor, const c10::TensorOptions& options) {
  if (options.requires_grad()) {
    check(torch_set_requires_grad(reinterpret_cast<AtenTensorHandle>(&tensor), true),
          "requires_grad");
  }
  return tensor;
}

}  // namespace keck

namespace at {

#define KECK_SPREAD(o) o.dtype_opt(), o.layout_opt(), o.device_opt(), o.pinned_memory_opt()
using Format = optional<MemoryFormat>;

inline Format format_of(const TensorOptions& o, Format format) {
  return format ? format : o.memory_format_opt();
}

inline Tensor empty(IntArrayRef shape, TensorOptions o = {}, Format format = std::nullopt) {
  return keck::made(_ops::empty_memory_format::call(keck::sizes(shape), KECK_SPREAD(o),
                                                    format_of(o, format)), o);
}
inline Tensor empty_strided(IntArrayRef shape, IntArrayRef strides, TensorOptions o = {}) {
  return keck::made(_ops::empty_strided::call(keck::sizes(shape), keck::sizes(strides),
                                              KECK_SPREAD(o)), o);
}
inline Tensor zeros(IntArrayRef shape, TensorOptions o = {}) {
  return keck::made(_ops::zeros::call(keck::sizes(shape), KECK_SPREAD(o)), o);
}
inline Tensor ones(IntArrayRef shape, TensorOptions o = {}) {
  return keck::made(_ops::ones::call(keck::sizes(shape), KECK_SPREAD(o)), o);
}
inline Tensor full(IntArrayRef shape, const Scalar& value, TensorOptions o = {}) {
  return keck::made(_ops::full::call(keck::sizes(shape), value, KECK_SPREAD(o)), o);
}
inline Tensor empty_like(const Tensor& like, TensorOptions o = {}, Format format = std::nullopt) {
  return keck::made(_ops::empty_like::call(like, KECK_SPREAD(o), format_of(o, format)), o);
}
inline Tensor zeros_like(const Tensor& like, TensorOptions o = {}, Format format = std::nullopt) {
  return keck::made(_ops::zeros_like::call(like, KECK_SPREAD(o), format_of(o, format)), o);
}
inline Tensor ones_like(const Tensor& like, TensorOptions o = {}, Format format = std::nullopt) {
  return keck::made(_ops::ones_like::call(like, KECK_SPREAD(o), format_of(o, format)), o);
}
inline Tensor full_like(const Tensor& like, const Scalar& value, TensorOptions o = {},
                        Format format = std::nullopt) {
  return keck::made(_ops::full_like::call(like, value, KECK_SPREAD(o), format_of(o, format)), o);
}

#undef KECK_SPREAD

inline optional<Device> device_of(const Tensor& t) {
  return t.defined() ? optional<Device>(t.device()) : std::nullopt;
}

}  // namespace at
