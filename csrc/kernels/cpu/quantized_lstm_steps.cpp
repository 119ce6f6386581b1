// QuantizedLSTMSteps: at each step the state of a row becomes bytes, whose products with the
// recurrent weights are summed exactly; scales and zero points come behind the sums, as in
// matmul_integer.cpp. The weights are read as they lie. Gates are in torch's order: input, forget,
// cell, output.
#include "kernels/cpu/byte_rows.h"
#include "kernels/cpu/dynamic_bytes.h"
#include "kernels/cpu/integer_copies.h"
#include "kernels/cpu/integer_finish.h"
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
};

constexpr int64_t kLine = 64;

/// Parts of the workspace, from cache line to cache line.
struct Workspace {
  uint8_t* quantized;  // rows of states as bytes
  int32_t *sums, *zero, *columns;
  float *gates, *state, *cell, *bias, *scale;
  int64_t bytes = 0;

  Workspace(const Shape& s, void* memory) : memory_(static_cast<char*>(memory)) {
    quantized = take<uint8_t>((s.batch + 1) * byte_row_stride(s.hidden));
    sums = take<int32_t>(s.batch * s.gates());
    zero = take<int32_t>(s.gates());
    columns = take<int32_t>(s.gates());
    gates = take<float>(s.batch * s.gates());
    state = take<float>(s.batch * s.hidden);
    cell = take<float>(s.batch * s.hidden);
    bias = take<float>(s.gates());
    scale = take<float>(s.gates());
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

class Forward {
 public:
  explicit Forward(const KernelArgs& args)
      : args_(args), s_(args.facts), at_(s_, args.workspace), stride_(byte_row_stride(s_.hidden)) {
    const TensorView& r = args.in[kR];
    const bool flips = r.dtype == DType::UInt8;
    weights_ = {static_cast<const int8_t*>(r.data), s_.hidden, s_.gates(), r.strides[0],
                static_cast<int8_t>(flips ? -128 : 0)};
    std::fill_n(at_.quantized, (s_.batch + 1) * stride_, uint8_t{0});
    const Each scale(args, kScale), zero(args, kZero);
    for (int64_t j = 0; j < s_.gates(); ++j) {
      at_.scale[j] = scale.number(j);
      at_.zero[j] = zero.point(j) - (flips ? 128 : 0);
      has_zero_ = has_zero_ || at_.zero[j] != 0;
      at_.bias[j] = element(kInputBias, j) + element(kRecurrentBias, j);
    }
    if (s_.steps > 1 || has(kInitialH))
      sum_columns();
    else
      std::fill_n(at_.columns, s_.gates(), 0);  // a state of zeros has the point 0
  }

  void run() {
    const int64_t work = s_.steps * s_.gates() * s_.hidden;
    const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 20) / std::max<int64_t>(work, 1));
    parallel_ranges(args_.context, s_.batch, grain,
                    [&](int64_t first, int64_t last) { run_rows(first, last); });
  }

 private:
  uint8_t* quantized(int64_t row) const { return at_.quantized + row * stride_; }

  /// What a zero point of a state is multiplied with: sums of weights less their zero points.
  void sum_columns() const {
    uint8_t* ones = quantized(s_.batch);
    std::fill_n(ones, s_.hidden, uint8_t{1});
    multiply_byte_rows(ones, 1, weights_, at_.columns, s_.gates());
    const auto inner = static_cast<int32_t>(s_.hidden);
    for (int64_t j = 0; j < s_.gates(); ++j) at_.columns[j] -= inner * at_.zero[j];
  }

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
    const int64_t n = s_.hidden;
    for (int64_t row = first; row < last; ++row) {
      load(kInitialH, row, at_.state + row * n);
      load(kInitialC, row, at_.cell + row * n);
    }
    for (int64_t i = 0; i < s_.steps; ++i) {
      const int64_t step = s_.reverse ? s_.steps - 1 - i : i;
      multiply(first, last);
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

  /// The products of the states of rows [first, last) with the weights.
  void multiply(int64_t first, int64_t last) const {
    const int64_t n = s_.hidden, gates = s_.gates();
    // A few rows at a time, whose scales fit the stack.
    for (int64_t begin = first; begin < last; begin += kTogether) {
      const int64_t count = std::min(kTogether, last - begin);
      float scales[kTogether];
      int32_t points[kTogether], totals[kTogether];
      for (int64_t r = 0; r < count; ++r) {
        const float* state = at_.state + (begin + r) * n;
        const DynamicScale bytes(range_of(state, n));
        bytes.quantize(state, n, quantized(begin + r));
        scales[r] = bytes.scale;
        points[r] = static_cast<int32_t>(bytes.zero);
        totals[r] = 0;
        for (int64_t k = 0; has_zero_ && k < n; ++k) totals[r] += quantized(begin + r)[k];
      }
      multiply_byte_rows(quantized(begin), count, weights_, at_.sums + begin * gates, gates);
      for (int64_t r = 0; r < count; ++r) {
        const int32_t *sums = at_.sums + (begin + r) * gates, point = points[r], total = totals[r];
        const float scale = scales[r];
        float* z = at_.gates + (begin + r) * gates;
        ORTM_SIMD
        for (int64_t j = 0; j < gates; ++j)
          z[j] = static_cast<float>(sums[j] - point * at_.columns[j] - total * at_.zero[j]) *
                 (scale * at_.scale[j]);
      }
    }
  }

  bool has_output(size_t i) const { return i < args_.out.size() && args_.out[i].data; }

  void update(int64_t step, int64_t row, float* y) const {
    const int64_t n = s_.hidden;
    float *z = at_.gates + row * s_.gates(), *state = at_.state + row * n;
    float* cell = at_.cell + row * n;
    const float* pre = args_.in[kPre].as<float>() + (step * s_.batch + row) * s_.gates();
    ORTM_SIMD
    for (int64_t j = 0; j < 4 * n; ++j) z[j] = (pre[j] + at_.bias[j]) + z[j];
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

  static constexpr int64_t kTogether = 16;

  const KernelArgs& args_;
  Shape s_;
  Workspace at_;
  int64_t stride_;
  ByteMatrix weights_{};
  bool has_zero_ = false;
};

void run(const KernelArgs& args) { Forward(args).run(); }

size_t workspace_bytes(const StepFacts& facts) {
  return static_cast<size_t>(Workspace(Shape(facts), nullptr).bytes);
}

REGISTER_CPU_KERNEL({.op = "QuantizedLSTMSteps",
                     .name = "quantized_lstm_steps_cpu",
                     .dtypes = {DType::Float32},
                     .run = run,
                     .unsupported = other_copy_runs,
                     .workspace_bytes = workspace_bytes,
                     .priority = kIntegerPriority});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
