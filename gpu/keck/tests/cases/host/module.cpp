// Host code only, bound by hand: what Python sees of it must be what it sees with pybind11.
#include <torch/extension.h>
std::vector<int64_t> shape(const torch::Tensor& x) { return x.sizes().vec(); }
std::tuple<int64_t, int64_t, std::string, bool, int64_t> facts(at::Tensor x) {
  return {x.dim(), x.numel(), at::toString(x.scalar_type()), x.is_contiguous(), x.stride(0)};
}
torch::Tensor add_one(torch::Tensor x) {
  auto c = x.contiguous();
  auto y = torch::empty_like(c);
  AT_DISPATCH_ALL_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, c.scalar_type(), "add_one", [&] {
    const scalar_t* in = c.data_ptr<scalar_t>();
    scalar_t* out = y.data_ptr<scalar_t>();
    for (int64_t i = 0; i < c.numel(); ++i) out[i] = static_cast<scalar_t>(static_cast<float>(in[i]) + 1.f);
  });
  return y;
}
torch::Tensor identity(torch::Tensor x) { return x; }
void nothing() {}
double scalars(int a, int64_t b, float c, double d, bool e, const std::string& s) { return a + b + c + d + e + s.size(); }
torch::Tensor pick(std::optional<torch::Tensor> x, c10::optional<double> d, torch::Tensor y) { TORCH_CHECK(!d || *d > 0, "d is ", *d); return x ? *x : y; }
std::vector<torch::Tensor> made(at::IntArrayRef s, at::ScalarType t) {
  auto o = torch::TensorOptions().dtype(t);
  return {torch::empty(s, o), torch::zeros(s, o), torch::ones(s, o), torch::full(s, 2.5, o), torch::full({2, 3}, 7, torch::kInt32)};
}
std::tuple<torch::Tensor, torch::Tensor> views(torch::Tensor x) {
  return {x.view({-1}).reshape({2, -1}).transpose(0, 1).unsqueeze(0).squeeze(0).permute({1, 0}).flatten(), x.slice(0, 1, 3).narrow(1, 0, 2).select(0, 0).clone().to(torch::kDouble)};
}
torch::Tensor bad_view(torch::Tensor x) { return x.view({7, 7}); }
int64_t size_of(torch::Tensor x, int64_t d) { return x.size(d); }
float at2(torch::Tensor x) { auto a = x.accessor<float, 2>(); return a[1][2]; }
void throws(int kind) { if (kind == 0) throw std::runtime_error("plain"); if (kind == 1) throw 3; TORCH_CHECK(kind == 5, "kind is ", kind, " not ", 5.5); }
torch::Tensor undefined() { return torch::Tensor(); }
int overloaded(int a) { return a; }
double overloaded(torch::Tensor a) { return 2.5; }
std::vector<int64_t> half_bits(torch::Tensor floats, bool brain) {
  std::vector<int64_t> bits;
  for (int64_t i = 0; i < floats.numel(); ++i) {
    const float value = floats.data_ptr<float>()[i];
    bits.push_back(brain ? c10::BFloat16(value).x : c10::Half(value).x);
  }
  return bits;
}
torch::Tensor all_halves(bool brain) {
  auto y = torch::empty({65536}, torch::kFloat32);
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<unsigned short>(i);
    y.data_ptr<float>()[i] = brain ? static_cast<float>(c10::BFloat16(bits, c10::BFloat16::from_bits()))
                                   : static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
  }
  return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "a doc";
  m.def("shape", &shape, "doc"); m.def("facts", facts); m.def("add_one", torch::wrap_pybind_function(add_one));
  m.def("identity", &identity); m.def("nothing", &nothing);
  m.def("scalars", &scalars, py::arg("a"), py::arg("b") = 2, py::arg("c") = 0.5, py::arg("d") = 0.25, py::arg("e") = true, py::arg("s") = "abc");
  m.def("pick", &pick); m.def("made", &made); m.def("views", &views); m.def("bad_view", &bad_view); m.def("size_of", &size_of); m.def("at2", &at2);
  m.def("half_bits", &half_bits); m.def("all_halves", &all_halves);
  m.def("throws", &throws); m.def("undefined", &undefined); m.def("lambda", [](int64_t x) { return x * 2; });
  m.def("overloaded", static_cast<int (*)(int)>(&overloaded)); m.def("overloaded", static_cast<double (*)(torch::Tensor)>(&overloaded));
}
