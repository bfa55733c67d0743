// The tensor. Stands in for ATen/core/Tensor.h, without operators that compute.
#pragma once

#include "keck/accessor.h"
#include "keck/guard.h"

namespace at {

using std::optional;

// What the deprecated `tensor.type()` gives, as far as kernels use it.
class DeprecatedTypeProperties {
 public:
  DeprecatedTypeProperties(ScalarType type, Device device) : type_(type), device_(device) {}
  ScalarType scalarType() const { return type_; }
  bool is_cuda() const { return device_.is_cuda(); }
  Device device() const { return device_; }

 private:
  ScalarType type_;
  Device device_;
};

// One pointer with a count, like torch's: its functions read and make these.
class Tensor {
 public:
  Tensor() : impl_(nothing()) {}
  Tensor(const Tensor& o) : impl_(shared(o)) {}
  Tensor(Tensor&& o) noexcept : impl_(o.impl_) { o.impl_ = nothing(); }
  Tensor& operator=(const Tensor& o) & { Tensor copy(o); std::swap(impl_, copy.impl_); return *this; }
  Tensor& operator=(Tensor&& o) & noexcept { std::swap(impl_, o.impl_); return *this; }
  ~Tensor() { release(); }

  bool defined() const { return impl_ != nothing(); }
  void reset() { Tensor none; std::swap(impl_, none.impl_); }
  bool is_same(const Tensor& o) const { return impl_ == o.impl_; }

  int64_t dim() const { return get(aoti_torch_get_dim, "dim"); }
  int64_t ndimension() const { return dim(); }
  int64_t numel() const { return get(aoti_torch_get_numel, "numel"); }
  int64_t storage_offset() const { return get(aoti_torch_get_storage_offset, "storage_offset"); }
  IntArrayRef sizes() const { return list(aoti_torch_get_sizes, "sizes"); }
  IntArrayRef strides() const { return list(aoti_torch_get_strides, "strides"); }
  int64_t size(int64_t d) const { auto all = sizes(); return all[wrap(d, all.size())]; }
  int64_t stride(int64_t d) const { auto all = strides(); return all[wrap(d, all.size())]; }

  ScalarType scalar_type() const {
    return static_cast<ScalarType>(get32(aoti_torch_get_dtype, "scalar_type"));
  }
  TypeMeta dtype() const { return scalar_type(); }
  size_t element_size() const { return dtype().itemsize(); }
  size_t itemsize() const { return element_size(); }
  size_t nbytes() const { return static_cast<size_t>(numel()) * element_size(); }
  Layout layout() const { return Layout::Strided; }
  Device device() const {
    auto type = static_cast<DeviceType>(get32(aoti_torch_get_device_type, "device"));
    return {type, static_cast<DeviceIndex>(get32(aoti_torch_get_device_index, "device"))};
  }
  int64_t get_device() const { return get32(aoti_torch_get_device_index, "get_device"); }
  bool is_cuda() const { return device().is_cuda(); }
  bool is_cpu() const { return device().is_cpu(); }
  bool is_floating_point() const { return isFloatingType(scalar_type()); }
  DeprecatedTypeProperties type() const { return {scalar_type(), device()}; }
  TensorOptions options() const {
    return TensorOptions().dtype(scalar_type()).device(device()).layout(layout());
  }
  bool is_contiguous() const {
    bool value = false;
    keck::check(aoti_torch_is_contiguous(handle(), &value), "is_contiguous");
    return value;
  }
  bool is_contiguous(MemoryFormat format) const {
    TORCH_CHECK(format == MemoryFormat::Contiguous, "is_contiguous of another memory format");
    return is_contiguous();
  }

  void* data_ptr() const {
    void* data = nullptr;
    keck::check(aoti_torch_get_data_ptr(handle(), &data), "data_ptr");
    return data;
  }
  const void* const_data_ptr() const { return data_ptr(); }
  void* mutable_data_ptr() const { return data_ptr(); }
  template <typename T>
  T* data_ptr() const {
    constexpr auto wanted = keck::TypeOf<std::remove_const_t<T>>::value;
    const auto found = scalar_type();
    TORCH_CHECK(found == wanted, "expected scalar type ", wanted, " but found ", found);
    return static_cast<T*>(data_ptr());
  }
  template <typename T>
  const T* const_data_ptr() const { return data_ptr<const T>(); }
  template <typename T>
  T* mutable_data_ptr() const { return data_ptr<T>(); }
  template <typename T>
  T* data() const { return data_ptr<T>(); }

  template <typename T, size_t N, template <typename> class P = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, P> packed_accessor32() const {
    TORCH_CHECK(numel() <= std::numeric_limits<int32_t>::max(),
                "numel needs to be smaller than int32_t max; otherwise, please use "
                "packed_accessor64");
    return packed<T, N, P, int32_t>();
  }
  template <typename T, size_t N, template <typename> class P = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, P> packed_accessor64() const { return packed<T, N, P, int64_t>(); }
  template <typename T, size_t N>
  TensorAccessor<T, N> accessor() const& {
    check_dim(N);
    return TensorAccessor<T, N>(data_ptr<T>(), sizes().data(), strides().data());
  }

  // Copies and views, each through torch's own operator.
  Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
    if (format == MemoryFormat::Contiguous && is_contiguous()) return *this;
    return _ops::contiguous::call(*this, format);
  }
  Tensor clone(optional<MemoryFormat> format = std::nullopt) const {
    return _ops::clone::call(*this, format);
  }
  Tensor detach() const { return _ops::detach::call(*this); }
  Tensor view(IntArrayRef shape) const { return _ops::view::call(*this, keck::sizes(shape)); }
  Tensor view(ScalarType type) const { return _ops::view_dtype::call(*this, type); }
  Tensor view_as(const Tensor& o) const { return _ops::view_as::call(*this, o); }
  Tensor reshape(IntArrayRef shape) const { return _ops::reshape::call(*this, keck::sizes(shape)); }
  Tensor flatten(int64_t from = 0, int64_t to = -1) const {
    return _ops::flatten_using_ints::call(*this, from, to);
  }
  Tensor transpose(int64_t a, int64_t b) const { return _ops::transpose_int::call(*this, a, b); }
  Tensor permute(IntArrayRef dims) const { return _ops::permute::call(*this, dims); }
  Tensor t() const { return _ops::t::call(*this); }
  Tensor squeeze() const { return _ops::squeeze::call(*this); }
  Tensor squeeze(int64_t dim) const { return _ops::squeeze_dim::call(*this, dim); }
  Tensor unsqueeze(int64_t dim) const { return _ops::unsqueeze::call(*this, dim); }
  Tensor expand(IntArrayRef shape, bool implicit = false) const {
    return _ops::expand::call(*this, keck::sizes(shape), implicit);
  }
  Tensor expand_as(const Tensor& o) const { return _ops::expand_as::call(*this, o); }
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const {
    return _ops::narrow::call(*this, dim, start, length);
  }
  Tensor select(int64_t dim, int64_t index) const {
    return _ops::select_int::call(*this, dim, index);
  }
  Tensor operator[](int64_t index) const { return select(0, index); }
  Tensor slice(int64_t dim = 0, optional<int64_t> start = std::nullopt,
               optional<int64_t> end = std::nullopt, int64_t step = 1) const {
    auto word = [](optional<int64_t> v) { return v ? optional<SymInt>(*v) : std::nullopt; };
    return _ops::slice_Tensor::call(*this, dim, word(start), word(end), step);
  }
  Tensor to(ScalarType type, bool non_blocking = false, bool copy = false,
            optional<MemoryFormat> format = std::nullopt) const {
    return _ops::to_dtype::call(*this, type, non_blocking, copy, format);
  }
  Tensor to(Device device, ScalarType type, bool non_blocking = false, bool copy = false,
            optional<MemoryFormat> format = std::nullopt) const {
    return _ops::to_device::call(*this, device, type, non_blocking, copy, format);
  }
  Tensor to(TensorOptions o, bool non_blocking = false, bool copy = false,
            optional<MemoryFormat> format = std::nullopt) const {
    return _ops::to_dtype_layout::call(*this, o.dtype_opt(), o.layout_opt(), o.device_opt(),
                                       o.pinned_memory_opt(), non_blocking, copy,
                                       format ? format : o.memory_format_opt());
  }
  Tensor toType(ScalarType type) const { return to(type); }
  Tensor& fill_(const Scalar& value) const {
    return _ops::fill__Scalar::call(const_cast<Tensor&>(*this), value);
  }
  Tensor& zero_() const { return _ops::zero_::call(const_cast<Tensor&>(*this)); }
  Tensor new_empty(IntArrayRef shape, TensorOptions o = {}) const {
    return _ops::new_empty::call(*this, keck::sizes(shape), o.dtype_opt(), o.layout_opt(),
                                 o.device_opt(), o.pinned_memory_opt());
  }
  Tensor new_zeros(IntArrayRef shape, TensorOptions o = {}) const {
    return _ops::new_zeros::call(*this, keck::sizes(shape), o.dtype_opt(), o.layout_opt(),
                                 o.device_opt(), o.pinned_memory_opt());
  }
  Tensor new_ones(IntArrayRef shape, TensorOptions o = {}) const {
    return _ops::new_ones::call(*this, keck::sizes(shape), o.dtype_opt(), o.layout_opt(),
                                o.device_opt(), o.pinned_memory_opt());
  }
  Tensor new_full(IntArrayRef shape, const Scalar& value, TensorOptions o = {}) const {
    return _ops::new_full::call(*this, keck::sizes(shape), value, o.dtype_opt(), o.layout_opt(),
                                o.device_opt(), o.pinned_memory_opt());
  }

 private:
  void* impl_;

  AtenTensorHandle handle() const {
    return reinterpret_cast<AtenTensorHandle>(const_cast<Tensor*>(this));
  }
  // Takes the pointer out of a handle, which is a tensor of torch on the heap.
  static void* taken(AtenTensorHandle handle) {
    void* impl = *reinterpret_cast<void**>(handle);
    ::operator delete(static_cast<void*>(handle));
    return impl;
  }
  static void* nothing() {
    static void* const impl = [] {
      AtenTensorHandle fresh = nullptr;
      keck::check(aoti_torch_new_uninitialized_tensor(&fresh), "an undefined tensor");
      return taken(fresh);
    }();
    return impl;
  }
  static void* shared(const Tensor& from) {
    if (!from.defined()) return nothing();
    AtenTensorHandle copy = nullptr;
    keck::check(aoti_torch_new_tensor_handle(from.handle(), &copy), "sharing a tensor");
    return taken(copy);
  }
  void release() noexcept {
    if (impl_ == nothing()) return;
    void** handle = static_cast<void**>(::operator new(sizeof(void*)));
    *handle = impl_;
    aoti_torch_delete_tensor_object(reinterpret_cast<AtenTensorHandle>(handle));
  }

  int64_t get(int32_t (*ask)(AtenTensorHandle, int64_t*), const char* what) const {
    int64_t value = 0;
    keck::check(ask(handle(), &value), what);
    return value;
  }
  int32_t get32(int32_t (*ask)(AtenTensorHandle, int32_t*), const char* what) const {
    int32_t value = 0;
    keck::check(ask(handle(), &value), what);
    return value;
  }
  IntArrayRef list(int32_t (*ask)(AtenTensorHandle, int64_t**), const char* what) const {
    int64_t* values = nullptr;
    keck::check(ask(handle(), &values), what);
    return {values, static_cast<size_t>(dim())};
  }
  static int64_t wrap(int64_t d, size_t count) {
    const auto n = static_cast<int64_t>(count);
    if (d >= -n && d < n) return d < 0 ? d + n : d;
    return detail::maybe_wrap_dim_slow<int64_t>(d, n, false);
  }
  void check_dim(size_t wanted) const {
    TORCH_CHECK(dim() == static_cast<int64_t>(wanted),
                "TensorAccessor expected ", wanted, " dims but tensor has ", dim());
  }
  template <typename T, size_t N, template <typename> class P, typename index_t>
  GenericPackedTensorAccessor<T, N, P, index_t> packed() const {
    check_dim(N);
    return {data_ptr<T>(), sizes().data(), strides().data()};
  }
};
static_assert(sizeof(Tensor) == sizeof(void*));

using TensorList = c10::ArrayRef<Tensor>;

}  // namespace at
