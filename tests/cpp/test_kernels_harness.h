// Runs kernels as the executor would, without graph and plan: tensors by layout, every copy of the
// CPU kernel (one per instruction set) and the CUDA kernel in its emulation on the CPU
// (tests/cuda_emulation), workspace and prepared state included. Ops without a CUDA kernel are
// reported by test_kernels_cuda.cpp.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/scalar_math.h"

namespace ortmodule::testing {

/// Strides of images [N, C, ...] whose channels are innermost.
inline Sizes channels_last_strides(const Sizes& sizes) {
  Sizes strides = contiguous_strides(sizes);
  for (size_t d = 2; d < sizes.size(); ++d) strides[d] *= sizes[1];
  strides[1] = 1;
  return strides;
}

/// A tensor with its storage. Elements are read and written as doubles by logical position.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, Sizes sizes, Sizes strides = {}) : dtype_(dtype) {
    layout_.strides = strides.empty() ? contiguous_strides(sizes) : std::move(strides);
    layout_.sizes = std::move(sizes);
    storage_.resize(static_cast<size_t>(extent(layout_)) * size_of(dtype) / 64 + 1);
    forget();
  }

  /// Overwrites all elements.
  void forget() { std::memset(static_cast<void*>(storage_.data()), 0x5a, storage_.size() * 64); }

  static Tensor of(DType dtype, Sizes sizes, const std::vector<double>& values) {
    Tensor t(dtype, std::move(sizes));
    for (size_t i = 0; i < values.size(); ++i) t.set(static_cast<int64_t>(i), values[i]);
    return t;
  }
  static Tensor random(DType dtype, Sizes sizes, unsigned seed, double low = -2, double high = 2,
                       Sizes strides = {}) {
    Tensor t(dtype, std::move(sizes), std::move(strides));
    std::mt19937 generator(seed);
    std::uniform_real_distribution<double> draw(low, high);
    for (int64_t i = 0; i < t.count(); ++i) t.set(i, draw(generator));
    return t;
  }

  /// The same elements, the first one `elements` behind a multiple of 64 bytes.
  Tensor misaligned(int64_t elements) const {
    Tensor t = *this;
    t.begin_ = static_cast<size_t>(elements) * size_of(dtype_);
    t.storage_.resize(storage_.size() + t.begin_ / 64 + 1);
    std::memmove(t.bytes(), bytes(), (storage_.size() - begin_ / 64) * 64 - begin_ % 64);
    return t;
  }

  DType dtype() const { return dtype_; }
  const Layout& layout() const { return layout_; }
  const Sizes& sizes() const { return layout_.sizes; }
  int64_t count() const { return element_count(layout_.sizes); }
  void* data() { return bytes(); }
  OperandFacts facts() const { return {dtype_, layout_}; }
  TensorView view() {
    return {data(), dtype_, static_cast<int>(layout_.sizes.size()), layout_.sizes.data(),
            layout_.strides.data()};
  }

  /// Offset in elements of a logical position.
  int64_t offset(int64_t position) const {
    int64_t offset = 0;
    for (size_t d = layout_.sizes.size(); d-- > 0;) {
      offset += position % layout_.sizes[d] * layout_.strides[d];
      position /= layout_.sizes[d];
    }
    return offset;
  }
  double get(int64_t position) const {
    const std::byte* at = bytes() + offset(position) * static_cast<int64_t>(size_of(dtype_));
    switch (dtype_) {
      case DType::Float32: return read<float>(at);
      case DType::Float64: return read<double>(at);
      case DType::Float16: return to_float(read<Float16>(at));
      case DType::BFloat16: return to_float(read<BFloat16>(at));
      case DType::Int64: return static_cast<double>(read<int64_t>(at));
      case DType::Int32: return read<int32_t>(at);
      case DType::Int16: return read<int16_t>(at);
      case DType::Int8: return read<int8_t>(at);
      case DType::UInt8: return read<uint8_t>(at);
      case DType::Bool: return read<uint8_t>(at);
      default: throw InternalError("no such element");
    }
  }
  void set(int64_t position, double value) {
    std::byte* at = bytes() + offset(position) * static_cast<int64_t>(size_of(dtype_));
    switch (dtype_) {
      case DType::Float32: return write(at, static_cast<float>(value));
      case DType::Float64: return write(at, value);
      case DType::Float16: return write(at, to_float16(static_cast<float>(value)));
      case DType::BFloat16: return write(at, to_bfloat16(static_cast<float>(value)));
      case DType::Int64: return write(at, static_cast<int64_t>(value));
      case DType::Int32: return write(at, static_cast<int32_t>(value));
      case DType::Int16: return write(at, static_cast<int16_t>(value));
      case DType::Int8: return write(at, static_cast<int8_t>(value));
      case DType::UInt8: return write(at, static_cast<uint8_t>(value));
      case DType::Bool: return write(at, static_cast<uint8_t>(value != 0));
      default: throw InternalError("no such element");
    }
  }
  std::vector<double> values() const {
    std::vector<double> all(static_cast<size_t>(count()));
    for (int64_t i = 0; i < count(); ++i) all[static_cast<size_t>(i)] = get(i);
    return all;
  }
  /// Logical elements equal bit for bit.
  bool same_bits(const Tensor& other) const {
    const size_t width = size_of(dtype_);
    for (int64_t i = 0; i < count(); ++i)
      if (std::memcmp(bytes() + offset(i) * static_cast<int64_t>(width),
                      other.bytes() + other.offset(i) * static_cast<int64_t>(width), width) != 0)
        return false;
    return true;
  }

 private:
  template <class T>
  static T read(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
  }
  template <class T>
  static void write(std::byte* at, T value) {
    std::memcpy(at, &value, sizeof(T));
  }
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  const std::byte* bytes() const { return storage_.data()->bytes + begin_; }
  std::byte* bytes() { return storage_.data()->bytes + begin_; }

  DType dtype_ = DType::Undefined;
  Layout layout_;
  std::vector<CacheLine> storage_ = std::vector<CacheLine>(1);
  size_t begin_ = 0;  // of the elements, in bytes
};

/// A node whose operands are the step's inputs 0, 1, ... and whose outputs are the step's outputs.
inline NodeFacts node_of(std::string op, Attrs attrs, const std::vector<Tensor*>& in,
                         const std::vector<Tensor*>& out) {
  NodeFacts node;
  node.op = std::move(op);
  node.attrs = std::move(attrs);
  int inputs = 0, outputs = 0;
  for (Tensor* t : in) {
    node.inputs.push_back(t ? OperandRef{OperandRef::Kind::Input, inputs} : OperandRef{});
    node.input_dtypes.push_back(t ? t->dtype() : DType::Undefined);
    ++inputs;
  }
  for (Tensor* t : out) {
    node.outputs.push_back(t ? outputs : -1);
    node.output_dtypes.push_back(t ? t->dtype() : DType::Undefined);
    node.output_sizes.push_back(t ? t->sizes() : Sizes{});
    node.output_used.push_back(t != nullptr);
    ++outputs;
  }
  return node;
}

/// Two threads, each with its half, so that splits show.
inline void run_on_two_threads(void*, int64_t count, int64_t grain, const ParallelFor::Body& body) {
  const int64_t middle = count <= grain ? count : count / 2;
  std::exception_ptr failure;
  std::thread other([&] {
    try {
      if (middle < count) body(middle, count);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  try {
    if (middle > 0) body(0, middle);
  } catch (...) {
    other.join();
    throw;
  }
  other.join();
  if (failure) std::rethrow_exception(failure);
}

inline const ParallelFor two_threads(&run_on_two_threads, nullptr);

inline constexpr uint64_t kSeed = 0x9E3779B97F4A7C15ull;

/// Runs one kernel; absent operands are null. What is in results that are no operands is forgotten
/// first, so that none has the elements of another kernel.
inline void run_kernel(const KernelDef& def, const StepFacts& facts, const std::vector<Tensor*>& in,
                       const std::vector<Tensor*>& out, ParallelFor parallel_for = {}) {
  std::vector<TensorView> in_views, out_views;
  for (Tensor* t : in) in_views.push_back(t ? t->view() : TensorView{});
  for (Tensor* t : out) out_views.push_back(t ? t->view() : TensorView{});
  for (Tensor* t : out)
    if (t && std::find(in.begin(), in.end(), t) == in.end()) t->forget();
  const size_t bytes = def.workspace_bytes ? def.workspace_bytes(facts) : 0;
  std::vector<std::byte> workspace(bytes + 128, std::byte{0xa5});
  const uintptr_t address = reinterpret_cast<uintptr_t>(workspace.data());
  std::byte* aligned = workspace.data() + (64 - address % 64) % 64;
  std::fill(aligned + bytes, workspace.data() + workspace.size(), std::byte{0x77});
  KernelContext context;
  context.parallel_for = parallel_for;
  context.seed.value = kSeed;
  const std::shared_ptr<const void> prepared = def.prepare ? def.prepare(facts) : nullptr;
  def.run({facts, in_views, out_views, aligned, prepared.get(), context});
  for (std::byte* at = aligned + bytes; at < workspace.data() + workspace.size(); ++at)
    ASSERT_EQ(*at, std::byte{0x77}) << def.name << " wrote behind its workspace";
}

inline StepFacts facts_of(std::vector<NodeFacts> nodes, const std::vector<Tensor*>& in,
                          const std::vector<Tensor*>& out) {
  StepFacts facts;
  facts.nodes = std::move(nodes);
  for (Tensor* t : in) facts.inputs.push_back(t ? t->facts() : OperandFacts{});
  for (Tensor* t : out) facts.outputs.push_back(t ? t->facts() : OperandFacts{});
  return facts;
}

/// Runs every kernel of `key` on these facts, the CPU's on one and on two threads, CUDA's twice,
/// and calls check after each. A kernel that refuses fails the test. Those of negative priority,
/// which stand in where nothing faster does, may want other layouts: run_kernel_named runs them.
inline void run_all_kernels(std::string_view key, const StepFacts& facts,
                            const std::vector<Tensor*>& in, const std::vector<Tensor*>& out,
                            const std::function<void()>& check) {
  const std::vector<const KernelDef*> defs = kernels_of(key);
  ASSERT_FALSE(defs.empty()) << "no kernel for " << key;
  const bool same_on_all = key == "PointwiseGroup" && isa_available(Isa::Avx2);
  std::vector<Tensor> widest;  // results of the first kernel, that of the widest instruction set
  for (const KernelDef* def : defs) {
    if (def->priority < 0) continue;
    SCOPED_TRACE(def->name);
    if (def->unsupported) {
      const Reason reason = def->unsupported(facts);
      ASSERT_FALSE(reason) << def->name << ": " << *reason;
    }
    const DType leading = in.empty() ? out[0]->dtype() : in[0]->dtype();
    ASSERT_TRUE(def->dtypes.contains(leading))
        << def->name << " does not take " << name_of(leading);
    std::vector<Tensor> first(out.size());
    run_kernel(*def, facts, in, out);
    for (size_t i = 0; i < out.size(); ++i)
      if (out[i]) first[i] = *out[i];
    check();
    if (widest.empty()) widest = first;
    for (size_t i = 0; i < out.size() && same_on_all && def->device == Device::CUDA; ++i)
      EXPECT_TRUE(first[i].same_bits(widest[i])) << def->name << " has bits of its own in " << i;
    run_kernel(*def, facts, in, out, two_threads);
    for (size_t i = 0; i < out.size(); ++i) {
      if (!out[i]) continue;
      EXPECT_TRUE(first[i].same_bits(*out[i]))
          << def->name << ": a second run changes output " << i;
    }
  }
}

/// Runs every copy of the kernel called `name` that this processor can run on one and on two
/// threads, and calls check.
inline void run_kernel_named(std::string_view name, const std::string& op, const Attrs& attrs,
                             const std::vector<Tensor*>& in, const std::vector<Tensor*>& out,
                             const std::function<void()>& check) {
  const StepFacts facts = facts_of({node_of(op, attrs, in, out)}, in, out);
  int copies = 0;
  for (const KernelDef* def : kernels_of(op)) {
    if (def->name != name) continue;
    SCOPED_TRACE(def->name);
    const Reason reason = def->unsupported ? def->unsupported(facts) : Reason();
    if (reason && reason->starts_with("the processor has no ")) continue;
    ++copies;
    ASSERT_FALSE(reason) << *reason;
    ASSERT_TRUE(def->dtypes.contains(in[0]->dtype())) << name_of(in[0]->dtype());
    run_kernel(*def, facts, in, out);
    check();
    std::vector<Tensor> first;
    for (const Tensor* t : out) first.push_back(t ? *t : Tensor());
    run_kernel(*def, facts, in, out, two_threads);
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_TRUE(!out[i] || first[i].same_bits(*out[i])) << "two threads differ in output " << i;
  }
  EXPECT_GT(copies, 0) << "no kernel is called " << name;
}

/// The same for a pointwise group of these nodes.
inline void run_group(std::vector<NodeFacts> nodes, const std::vector<Tensor*>& in,
                      const std::vector<Tensor*>& out, const std::function<void()>& check) {
  run_all_kernels("PointwiseGroup", facts_of(std::move(nodes), in, out), in, out, check);
}

/// The same for a step of one node of a kernel registered under its op's name.
inline void run_op(const std::string& op, const Attrs& attrs, const std::vector<Tensor*>& in,
                   const std::vector<Tensor*>& out, const std::function<void()>& check) {
  run_all_kernels(op, facts_of({node_of(op, attrs, in, out)}, in, out), in, out, check);
}

/// Unit roundoff of a stored type.
inline double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::Float64: return 0x1p-53;
    case DType::Float16: return 0x1p-11;
    case DType::BFloat16: return 0x1p-8;
    case DType::Float32: return 0x1p-24;
    default: return 0;
  }
}

/// |a - b| within `ulps` roundoffs of the type at the larger of |b| and `scale`; NaN equals NaN.
inline void expect_close(const Tensor& actual, const std::vector<double>& expected, double ulps,
                         double scale, const std::string& what) {
  ASSERT_EQ(static_cast<size_t>(actual.count()), expected.size()) << what;
  for (int64_t i = 0; i < actual.count(); ++i) {
    const double a = actual.get(i), b = expected[static_cast<size_t>(i)];
    if (std::isnan(a) && std::isnan(b)) continue;
    if (a == b) continue;
    const double allowed = ulps * epsilon_of(actual.dtype()) * std::max(std::fabs(b), scale);
    ASSERT_TRUE(std::fabs(a - b) <= allowed)
        << what << ": element " << i << " is " << a << ", not " << b;
  }
}

}  // namespace ortmodule::testing
