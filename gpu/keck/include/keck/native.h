// What is taken from torch's libraries, by declaration only. Two kinds:
//
// - the stable C interface (torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h)
//   for everything about a tensor, for its life, for streams and guards;
// - the dispatcher's entry of each operator that allocates, views, copies or fills
//   (ATen/ops/<name>_ops.h). The real headers come down to the same entries, so that the same
//   operators run and the same errors are raised; the C interface's own way to the dispatcher
//   knows no scalars and loses the text of errors.
//
// No operator that computes is declared here.
#pragma once

#include "keck/options.h"

struct AtenTensorOpaque;
struct CUDAGuardOpaque;
using AtenTensorHandle = AtenTensorOpaque*;

extern "C" {
int32_t aoti_torch_delete_tensor_object(AtenTensorHandle tensor);
int32_t aoti_torch_new_tensor_handle(AtenTensorHandle from, AtenTensorHandle* to);
int32_t aoti_torch_new_uninitialized_tensor(AtenTensorHandle* to);
int32_t aoti_torch_is_defined(AtenTensorHandle tensor, bool* defined);
int32_t aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** data);
int32_t aoti_torch_get_storage_size(AtenTensorHandle tensor, int64_t* bytes);
int32_t aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* count);
int32_t aoti_torch_get_numel(AtenTensorHandle tensor, int64_t* count);
int32_t aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** sizes);
int32_t aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** strides);
int32_t aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* type);
int32_t aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* type);
int32_t aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* index);
int32_t aoti_torch_get_storage_offset(AtenTensorHandle tensor, int64_t* offset);
int32_t aoti_torch_is_contiguous(AtenTensorHandle tensor, bool* contiguous);
size_t aoti_torch_dtype_element_size(int32_t type);
int32_t torch_set_requires_grad(AtenTensorHandle tensor, bool value);
int32_t aoti_torch_get_current_cuda_stream(int32_t device, void** stream);
int32_t aoti_torch_create_cuda_guard(int32_t device, CUDAGuardOpaque** guard);
int32_t aoti_torch_delete_cuda_guard(CUDAGuardOpaque* guard);
}

namespace at {

class Tensor;

namespace _ops {

#define KECK_OP(name, result, ...) \
  struct name {                    \
    static result call(__VA_ARGS__); \
  };
#define KECK_LIKE                                                                    \
  std::optional<c10::ScalarType>, std::optional<c10::Layout>, std::optional<c10::Device>, \
      std::optional<bool>
using Sizes = c10::ArrayRef<c10::SymInt>;
using Format = std::optional<c10::MemoryFormat>;

KECK_OP(empty_memory_format, Tensor, Sizes, KECK_LIKE, Format)
KECK_OP(empty_strided, Tensor, Sizes, Sizes, KECK_LIKE)
KECK_OP(zeros, Tensor, Sizes, KECK_LIKE)
KECK_OP(ones, Tensor, Sizes, KECK_LIKE)
KECK_OP(full, Tensor, Sizes, const c10::Scalar&, KECK_LIKE)
KECK_OP(empty_like, Tensor, const Tensor&, KECK_LIKE, Format)
KECK_OP(zeros_like, Tensor, const Tensor&, KECK_LIKE, Format)
KECK_OP(ones_like, Tensor, const Tensor&, KECK_LIKE, Format)
KECK_OP(full_like, Tensor, const Tensor&, const c10::Scalar&, KECK_LIKE, Format)
KECK_OP(new_empty, Tensor, const Tensor&, Sizes, KECK_LIKE)
KECK_OP(new_zeros, Tensor, const Tensor&, Sizes, KECK_LIKE)
KECK_OP(new_ones, Tensor, const Tensor&, Sizes, KECK_LIKE)
KECK_OP(new_full, Tensor, const Tensor&, Sizes, const c10::Scalar&, KECK_LIKE)
KECK_OP(contiguous, Tensor, const Tensor&, c10::MemoryFormat)
KECK_OP(clone, Tensor, const Tensor&, Format)
KECK_OP(detach, Tensor, const Tensor&)
KECK_OP(view, Tensor, const Tensor&, Sizes)
KECK_OP(view_dtype, Tensor, const Tensor&, c10::ScalarType)
KECK_OP(view_as, Tensor, const Tensor&, const Tensor&)
KECK_OP(reshape, Tensor, const Tensor&, Sizes)
KECK_OP(flatten_using_ints, Tensor, const Tensor&, int64_t, int64_t)
KECK_OP(transpose_int, Tensor, const Tensor&, int64_t, int64_t)
KECK_OP(permute, Tensor, const Tensor&, c10::ArrayRef<int64_t>)
KECK_OP(t, Tensor, const Tensor&)
KECK_OP(squeeze, Tensor, const Tensor&)
KECK_OP(squeeze_dim, Tensor, const Tensor&, int64_t)
KECK_OP(unsqueeze, Tensor, const Tensor&, int64_t)
KECK_OP(expand, Tensor, const Tensor&, Sizes, bool)
KECK_OP(expand_as, Tensor, const Tensor&, const Tensor&)
KECK_OP(narrow, Tensor, const Tensor&, int64_t, c10::SymInt, c10::SymInt)
KECK_OP(select_int, Tensor, const Tensor&, int64_t, c10::SymInt)
KECK_OP(slice_Tensor, Tensor, const Tensor&, int64_t, std::optional<c10::SymInt>,
        std::optional<c10::SymInt>, c10::SymInt)
KECK_OP(to_dtype, Tensor, const Tensor&, c10::ScalarType, bool, bool, Format)
KECK_OP(to_device, Tensor, const Tensor&, c10::Device, c10::ScalarType, bool, bool, Format)
KECK_OP(to_dtype_layout, Tensor, const Tensor&, KECK_LIKE, bool, bool, Format)
KECK_OP(fill__Scalar, Tensor&, Tensor&, const c10::Scalar&)
KECK_OP(zero_, Tensor&, Tensor&)

#undef KECK_LIKE
#undef KECK_OP

}  // namespace _ops
}  // namespace at

inline size_t c10::TypeMeta::itemsize() const {
  return aoti_torch_dtype_element_size(static_cast<int32_t>(type_));
}

namespace keck {

inline at::_ops::Sizes sizes(c10::IntArrayRef list) {
  for (int64_t size : list) {
    // Below this a word means something else to torch.
    TORCH_CHECK(size > INT64_MIN / 4, "size out of range: ", size);
  }
  return {reinterpret_cast<const c10::SymInt*>(list.data()), list.size()};
}

}  // namespace keck
