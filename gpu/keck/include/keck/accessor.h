// Accessors by index. Stands in for ATen/core/TensorAccessor.h.
#pragma once

#include "keck/base.h"

#define KECK_HD C10_HOST_DEVICE inline

namespace at {

template <typename T>
struct DefaultPtrTraits { using PtrType = T*; };
template <typename T>
struct RestrictPtrTraits { using PtrType = T* __restrict__; };

// A view of sizes and strides that somebody else owns.
template <typename T, size_t N, template <typename> class PtrTraits = DefaultPtrTraits,
          typename index_t = int64_t>
class TensorAccessor {
 public:
  using PtrType = typename PtrTraits<T>::PtrType;
  KECK_HD TensorAccessor(PtrType data, const index_t* sizes, const index_t* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  KECK_HD index_t size(index_t i) const { return sizes_[i]; }
  KECK_HD index_t stride(index_t i) const { return strides_[i]; }
  KECK_HD PtrType data() const { return data_; }
  KECK_HD decltype(auto) operator[](index_t i) const {
    if constexpr (N == 1) {
      return static_cast<T&>(data_[strides_[0] * i]);
    } else {
      return TensorAccessor<T, N - 1, PtrTraits, index_t>(data_ + strides_[0] * i, sizes_ + 1,
                                                          strides_ + 1);
    }
  }

 private:
  PtrType data_;
  const index_t* sizes_;
  const index_t* strides_;
};

// The same with its own copy of both, to be passed to kernels by value.
template <typename T, size_t N, template <typename> class PtrTraits = DefaultPtrTraits,
          typename index_t = int64_t>
class GenericPackedTensorAccessor {
 public:
  using PtrType = typename PtrTraits<T>::PtrType;
  template <typename source_t>
  GenericPackedTensorAccessor(PtrType data, const source_t* sizes, const source_t* strides)
      : data_(data) {
    for (size_t i = 0; i < N; ++i) {
      sizes_[i] = static_cast<index_t>(sizes[i]);
      strides_[i] = static_cast<index_t>(strides[i]);
    }
  }
  KECK_HD index_t size(index_t i) const { return sizes_[i]; }
  KECK_HD index_t stride(index_t i) const { return strides_[i]; }
  KECK_HD PtrType data() const { return data_; }
  KECK_HD decltype(auto) operator[](index_t i) const {
    if constexpr (N == 1) {
      return static_cast<T&>(data_[strides_[0] * i]);
    } else {
      return TensorAccessor<T, N - 1, PtrTraits, index_t>(data_ + strides_[0] * i, sizes_ + 1,
                                                          strides_ + 1);
    }
  }

 private:
  PtrType data_;
  index_t sizes_[N];
  index_t strides_[N];
};

template <typename T, size_t N, template <typename> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, PtrTraits, int32_t>;
template <typename T, size_t N, template <typename> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, PtrTraits, int64_t>;

}  // namespace at

#undef KECK_HD
