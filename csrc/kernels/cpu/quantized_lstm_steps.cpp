// QuantizedLSTMSteps: the recurrent weights are packed as bytes and widened in registers at each
// step, so that a step reads a quarter of the memory; scales and zero points come behind the sums.
// Gates are in torch's order: input, forget, cell, output.
#include "kernels/cpu/byte_vec.h"
#include "kernels/cpu/integer_finish.h"
#include "kernels/cpu/packed_product.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

namespace {

enum Operand : size_t {
  kPre,
  kR,
  kScale,
  kZero,
  kInputBias,
  kRecurrentBias,
  kInitialH,
  kInitialC,
  kLengths
};

struct Shape {
  int64_t steps, batch, hidden;
  bool reverse;

  explicit Shape(const StepFacts& facts)
      : steps(facts.inputs[kPre].layout.sizes[0]),
        batch(facts.inputs[kPre].layout.sizes[1]),
        hidden(facts.inputs[kR].layout.sizes[0]),
        reverse(facts.node().attrs.flag("reverse")) {}
  int64_t gates() const { return 4 * hidden; }
  /// Whether the weights are read as they lie: packing them takes as long as several products.
  bool reads_in_place() const { return steps * batch <= 16; }
};

template <class Q>
using Product = PackedProduct<float, Q>;

constexpr int64_t kLine = 64;

/// Parts of the workspace, from cache line to cache line.
struct Workspace {
  float *sums, *state, *cell, *bias, *scale, *zero;
  void* weights;
  int64_t bytes = 0;

  Workspace(const Shape& s, void* memory) : memory_(static_cast<char*>(memory)) {
    const Product<int8_t> product(s.hidden, s.gates());
    sums = take<float>(s.batch * product.row_elements());
    state = take<float>(s.batch * s.hidden);
    cell = take<float>(s.batch * s.hidden);
    bias = take<float>(s.gates());
    scale = take<float>(s.gates());
    zero = take<float>(s.gates());
    weights = take<int8_t>(s.reads_in_place() ? 0 : product.packed_elements());
  }

 private:
  template <class T>
  T* take(int64_t count) {
    char* at = memory_ ? memory_ + bytes : nullptr;
    bytes += ceil_div(count * static_cast<int64_t>(sizeof(T)), kLine) * kLine;
    return reinterpret_cast<T*>(at);
  }

  char* memory_;
};

template <class Q>
class Forward {
 public:
  explicit Forward(const KernelArgs& args)
      : args_(args), s_(args.facts), at_(s_, args.workspace), product_(s_.hidden, s_.gates()) {
    const TensorView& r = args.in[kR];
    if (!s_.reads_in_place())
      product_.pack(StridedMatrix<const Q>{r.as<Q>(), s_.hidden, s_.gates(), r.strides[0], 1},
                    weights());
    const Each scale(args, kScale), zero(args, kZero);
    for (int64_t j = 0; j < s_.gates(); ++j) {
      at_.scale[j] = scale.number(j);
      at_.zero[j] = static_cast<float>(zero.point(j));
      has_zero_ = has_zero_ || at_.zero[j] != 0.0f;
      at_.bias[j] = element(kInputBias, j) + element(kRecurrentBias, j);
    }
  }

  void run() {
    const int64_t work = s_.steps * s_.gates() * s_.hidden;
    const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 20) / std::max<int64_t>(work, 1));
    parallel_ranges(args_.context, s_.batch, grain,
                    [&](int64_t first, int64_t last) { run_rows(first, last); });
  }

 private:
  Q* weights() const { return static_cast<Q*>(at_.weights); }
  bool has(size_t i) const { return i < args_.in.size() && args_.in[i].data; }
  float element(size_t i, int64_t j) const { return has(i) ? args_.in[i].as<float>()[j] : 0.0f; }

  void load(size_t operand, int64_t row, float* to) const {
    if (has(operand))
      std::copy_n(args_.in[operand].as<float>() + row * s_.hidden, s_.hidden, to);
    else
      std::fill_n(to, s_.hidden, 0.0f);
  }

  bool is_valid(int64_t step, int64_t row) const {
    if (!has(kLengths)) return true;
    const TensorView& lengths = args_.in[kLengths];
    return step < (lengths.dtype == DType::Int64 ? lengths.as<int64_t>()[row]
                                                 : lengths.as<int32_t>()[row]);
  }

  void run_rows(int64_t first, int64_t last) const {
    const int64_t n = s_.hidden, width = product_.row_elements();
    for (int64_t row = first; row < last; ++row) {
      load(kInitialH, row, at_.state + row * n);
      load(kInitialC, row, at_.cell + row * n);
    }
    for (int64_t i = 0; i < s_.steps; ++i) {
      const int64_t step = s_.reverse ? s_.steps - 1 - i : i;
      if (s_.reads_in_place())
        for (int64_t row = first; row < last; ++row)
          multiply(at_.state + row * n, at_.sums + row * width);
      else
        product_.run(at_.state + first * n, n, last - first, weights(), at_.sums + first * width);
      for (int64_t row = first; row < last; ++row) {
        float* y = has_output(0) ? args_.out[0].as<float>() + (step * s_.batch + row) * n : nullptr;
        if (is_valid(step, row))
          update(step, row, y);
        else if (y)
          std::fill_n(y, n, 0.0f);
      }
    }
    for (int64_t row = first; row < last; ++row) {
      if (has_output(1)) std::copy_n(at_.state + row * n, n, args_.out[1].as<float>() + row * n);
      if (has_output(2)) std::copy_n(at_.cell + row * n, n, args_.out[2].as<float>() + row * n);
    }
  }

  /// sums = a state times the weights as they lie.
  void multiply(const float* state, float* sums) const {
    int64_t column = multiply_columns<8>(state, 0, sums);
    column = multiply_columns<1>(state, column, sums);
    const TensorView& r = args_.in[kR];
    for (; column < s_.gates(); ++column) {
      float total = 0.0f;
      for (int64_t k = 0; k < s_.hidden; ++k)
        total += state[k] * static_cast<float>(r.as<Q>()[k * r.strides[0] + column]);
      sums[column] = total;
    }
  }

  /// From `column` on, so many vectors of columns at a time. Returns the first column that is left.
  template <int kVectors>
  int64_t multiply_columns(const float* state, int64_t column, float* sums) const {
    constexpr int64_t kCount = FloatVec::kCount;
    const TensorView& r = args_.in[kR];
    for (; column + kVectors * kCount <= s_.gates(); column += kVectors * kCount) {
      FloatVec totals[kVectors];
      ORTM_UNROLL
      for (FloatVec& total : totals) total = FloatVec(0.0f);
      const Q* row = r.as<Q>() + column;
      for (int64_t k = 0; k < s_.hidden; ++k, row += r.strides[0]) {
        const FloatVec factor(state[k]);
        ORTM_UNROLL
        for (int v = 0; v < kVectors; ++v)
          totals[v] = multiply_add(factor, load_wide<FloatVec>(row + v * kCount), totals[v]);
      }
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v) totals[v].store(sums + column + v * kCount);
    }
    return column;
  }

  bool has_output(size_t i) const { return i < args_.out.size() && args_.out[i].data; }

  void update(int64_t step, int64_t row, float* y) const {
    const int64_t n = s_.hidden;
    float *z = at_.sums + row * product_.row_elements(), *state = at_.state + row * n;
    float* cell = at_.cell + row * n;
    const float* pre = args_.in[kPre].as<float>() + (step * s_.batch + row) * s_.gates();
    if (has_zero_) {
      const float total = static_cast<float>(row_sum(
          n, [](auto v) { return v; }, static_cast<const float*>(state)));
      ORTM_SIMD
      for (int64_t j = 0; j < 4 * n; ++j) z[j] -= at_.zero[j] * total;
    }
    ORTM_SIMD
    for (int64_t j = 0; j < 4 * n; ++j) z[j] = (pre[j] + at_.bias[j]) + z[j] * at_.scale[j];
    apply([](FloatVec v) { return sigmoid(v); }, z, 2 * n);
    apply([](FloatVec v) { return fast_tanh(v); }, z + 2 * n, n);
    apply([](FloatVec v) { return sigmoid(v); }, z + 3 * n, n);
    ORTM_SIMD
    for (int64_t j = 0; j < n; ++j) cell[j] = z[n + j] * cell[j] + z[j] * z[2 * n + j];
    std::copy_n(cell, n, state);
    apply([](FloatVec v) { return fast_tanh(v); }, state, n);
    ORTM_SIMD
    for (int64_t j = 0; j < n; ++j) state[j] *= z[3 * n + j];
    if (y) std::copy_n(state, n, y);
  }

  template <class F>
  static void apply(const F& f, float* x, int64_t count) {
    map_vectors(f, count, x, x);
  }

  const KernelArgs& args_;
  Shape s_;
  Workspace at_;
  Product<Q> product_;
  bool has_zero_ = false;
};

void run(const KernelArgs& args) {
  args.in[kR].dtype == DType::Int8 ? Forward<int8_t>(args).run() : Forward<uint8_t>(args).run();
}

size_t workspace_bytes(const StepFacts& facts) {
  return static_cast<size_t>(Workspace(Shape(facts), nullptr).bytes);
}

REGISTER_CPU_KERNEL({.op = "QuantizedLSTMSteps",
                     .name = "quantized_lstm_steps_cpu",
                     .dtypes = {DType::Float32},
                     .run = run,
                     .workspace_bytes = workspace_bytes});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
